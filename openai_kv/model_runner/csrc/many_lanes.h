// Many query vectors (prefill): one per vector element, K and V elements are broadcast. Lanes come in panels of C
// vectors; per panel query [head_dim][C * W], scores [kTile][C * W], output [head_dim][C * W].
#pragma once

#include <optional>

#include "tile.h"

namespace openai_kv {
namespace {

// c[i] = decay * c[i] + sum over k of a[i * row + k * column] * b[k]; no decay: c starts at 0.
// rows: a multiple of kRows.
template <int C>
void multiply(int rows, int depth, const float* a, int row, int column, const float* b, float* c, const vec* decay) {
  for (int i = 0; i < rows; i += kRows) {
    vec sums[kRows][C] = {};
    if (decay) {
      for (int r = 0; r < kRows; ++r) {
        for (int v = 0; v < C; ++v) sums[r][v] = load(c + ((i + r) * C + v) * W) * decay[v];
      }
    }
    for (int k = 0; k < depth; ++k) {
      vec x[C];
      for (int v = 0; v < C; ++v) x[v] = load(b + (k * C + v) * W);
      for (int r = 0; r < kRows; ++r) {
        vec y = splat(a[(i + r) * row + k * column]);
        for (int v = 0; v < C; ++v) sums[r][v] += x[v] * y;
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < C; ++v) store(c + ((i + r) * C + v) * W, sums[r][v]);
    }
  }
}

// The sums over k = first, first + W, .. of N such firsts, added up as row_sums does.
template <int C, int N>
void sum_chains(int first, int depth, const float* a, int row, const float* b, vec (*sums)[C]) {
  if constexpr (N > 1) {
    vec others[kRows][C];
    sum_chains<C, N / 2>(first, depth, a, row, b, sums);
    sum_chains<C, N / 2>(first + N / 2, depth, a, row, b, others);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < C; ++v) sums[r][v] += others[r][v];
    }
  } else {
    vec chain[kRows][C] = {};
    for (int k = first; k < depth; k += W) {
      vec x[C];
      for (int v = 0; v < C; ++v) x[v] = load(b + (k * C + v) * W);
      for (int r = 0; r < kRows; ++r) {
        vec y = splat(a[r * row + k]);
        for (int v = 0; v < C; ++v) chain[r][v] += x[v] * y;
      }
    }
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < C; ++v) sums[r][v] = chain[r][v];
    }
  }
}

// The scores of `multiply` in the order of few_lanes.h; depth: a multiple of W.
template <int C>
void multiply_as_few(int rows, int depth, const float* a, int row, const float* b, float* c) {
  for (int i = 0; i < rows; i += kRows) {
    vec sums[kRows][C];
    sum_chains<C, W>(0, depth, a + i * row, row, b, sums);
    for (int r = 0; r < kRows; ++r) {
      for (int v = 0; v < C; ++v) store(c + ((i + r) * C + v) * W, sums[r][v]);
    }
  }
}

// Rows of a tile as floats [count][stride], what lies beyond set to 0.
template <class T>
void widen(const int64_t* rows, int count, const T* pool, const Scales<T>& scales, int d, int stride, float* to) {
  bool whole = kPacked<T> == 1 || d / 2 % W == 0;  // no vector reaches over both halves
  for (int n = 0; n < round_up(count, kRows); ++n, to += stride) {
    int k = 0;
    if (n < count) {
      const T* row = pool + rows[n] / kPacked<T>;
      for (; whole && k + W <= d; k += W) store(to + k, scales.restore(load_at(row, k, d), n, k, d));
      for (; k < d; ++k) to[k] = scales.restore(one_at(row, k, d), n, k, d);
    }
    for (; k < stride; ++k) to[k] = 0;
  }
}

template <int C>
struct Panel {
  const Layer& layer;
  const Lanes& lanes;
  const int first, count, d, stride;
  float *query, *scores, *output;
  ivec from[C], to[C];  // each lane's Span
  vec max[C], sum[C];

  Panel(const Layer& layer, const Lanes& lanes, int first, float* query, float* scores, float* output)
      : layer(layer), lanes(lanes), first(first), count(min(lanes.lanes - first, C * W)), d(layer.head_dim),
        stride(round_up(d, kRows)), query(query), scores(scores), output(output) {
    for (int l = 0; l < C * W; ++l) {
      int lane = first + min(l, count - 1);  // the last lane again where there are none left
      with_query(layer, lanes, lane, [&](const auto* q) {
        for (int k = 0; k < d; ++k) query[k * C * W + l] = load_one(q + k) * layer.scale;
      });
      Span span(layer, lanes, lane);
      from[l / W][l % W] = span.first;
      to[l / W][l % W] = span.last;
    }
    for (int v = 0; v < C; ++v) max[v] = splat(kLowest), sum[v] = vec{};
    memset(output, 0, sizeof(float) * stride * C * W);
  }

  bool as_few() const { return lanes.alone && d % W == 0; }

  void score(int begin, int tokens, const float* keys) {
    if (as_few()) {
      multiply_as_few<C>(round_up(tokens, kRows), d, keys, stride, query, scores);
    } else {
      multiply<C>(round_up(tokens, kRows), d, keys, stride, 1, query, scores, nullptr);
    }
    if (layer.softcap != 0) {
      for (int i = 0; i < tokens * C * W; i += W) store(scores + i, soft_cap(load(scores + i), layer.softcap));
    }
    if (Span(layer, lanes, first).last < begin + tokens - 1 || Span(layer, lanes, first + count - 1).first > begin) {
      for (int i = 0; i < tokens * C; ++i) {
        ivec position = ivec{} + (begin + i / C);
        vec s = load(scores + i * W);
        store(scores + i * W, (position >= from[i % C]) & (position <= to[i % C]) ? s : splat(kMasked));
      }
    }
  }

  void attend(int begin, int tokens, const float* keys, const float* values) {
    score(begin, tokens, keys);
    vec top[C], decay[C], total[C];
    for (int v = 0; v < C; ++v) top[v] = max[v], total[v] = vec{};
    for (int n = 0; n < tokens; ++n) {
      for (int v = 0; v < C; ++v) top[v] = openai_kv::max(top[v], load(scores + (n * C + v) * W));
    }
    for (int n = 0; n < tokens; ++n) {
      for (int v = 0; v < C; ++v) {
        vec weight = exp(load(scores + (n * C + v) * W) - top[v]);
        store(scores + (n * C + v) * W, weight);
        total[v] += weight;
      }
    }
    if (as_few()) {
      for (int v = 0; v < C; ++v) total[v] = sum_as_few(tokens, v);
    }
    for (int v = 0; v < C; ++v) {
      decay[v] = exp(max[v] - top[v]);
      max[v] = top[v];
      sum[v] = sum[v] * decay[v] + total[v];
    }
    multiply<C>(stride, tokens, values, 1, stride, scores, output, decay);
  }

  // A vector's weights, in the order of few_lanes.h.
  vec sum_as_few(int tokens, int v) const {
    vec total = {};
    for (int first = 0; first < min(W, tokens); ++first) {
      vec chain = {};
      for (int n = first; n < tokens; n += W) chain += load(scores + (n * C + v) * W);
      total += chain;
    }
    return total;
  }

  void save(Partial out) {
    for (int l = 0; l < count; ++l) {
      for (int k = 0; k < d; ++k) out.output[int64_t(first + l) * d + k] = output[k * C * W + l];
      out.max[first + l] = max[l / W][l % W];
      out.sum[first + l] = sum[l / W][l % W];
    }
  }

  void weigh(int begin, int tokens, const float* keys, const float* lse, float* weights) {
    score(begin, tokens, keys);
    int heads = layer.kv_heads * layer.group;
    vec total[C] = {};
    for (int l = 0; l < C * W; ++l) {
      int lane = first + min(l, count - 1);
      float known = lse[(lanes.first_row + lanes.row(lane, layer.group)) * heads + lanes.head(lane, layer.group)];
      total[l / W][l % W] = l < count ? known : -kMasked;  // no weight where there is no lane
    }
    for (int n = 0; n < tokens; ++n) {
      vec weight = {};
      for (int v = 0; v < C; ++v) weight += exp(load(scores + (n * C + v) * W) - total[v]);
      for (int i = 0; i < W; ++i) weights[n] += weight[i];
    }
  }
};

constexpr int kMaxWide = kMaxLanes / (kColumns * W);

// Panels of kColumns vectors, and one of `Rest` for the lanes that are left: each tile is widened once for all of them,
// while the next one is on its way.
template <class K, class V, int Rest>
void many_lanes(const Layer& layer, const Lanes& lanes, int begin, int end, Partial out, const float* lse,
                float* weights, float* scratch) {
  int d = layer.head_dim, stride = round_up(d, kRows), count = 0;
  float *keys = scratch, *values = keys + kTile * stride, *query = values + kTile * stride;
  float *output = query + d * kMaxLanes, *scores = output + stride * kMaxLanes;
  std::optional<Panel<kColumns>> wide[kMaxWide];
  std::optional<Panel<max(Rest, 1)>> rest;
  for (; (count + 1) * kColumns * W <= lanes.lanes; ++count) {
    int first = count * kColumns * W;
    wide[count].emplace(layer, lanes, first, query + first * d, scores, output + first * stride);
  }
  int first = count * kColumns * W;
  if (Rest) rest.emplace(layer, lanes, first, query + first * d, scores, output + first * stride);
  auto each = [&](auto f) {
    for (int i = 0; i < count; ++i) f(*wide[i]);
    if (Rest) f(*rest);
  };
  for (Tile<K, V> tile(layer, lanes, begin, end); tile.count > 0;) {
    Tile<K, V> next(layer, lanes, tile.begin + tile.count, end);
    if constexpr (kByChannel<K>) {
      memset(keys, 0, sizeof(float) * kTile * stride);
      restore_keys(tile, layer, lanes, stride, keys);
    } else {
      widen(tile.rows, tile.count, tile.keys, tile.key_scales, d, stride, keys);
    }
    if (!weights) widen(tile.rows, tile.count, tile.values, tile.value_scales, d, stride, values);
    for (int n = 0; n < next.count; ++n) {
      prefetch(next.key(n), d);
      if (!weights) prefetch(next.value(n), d);
    }
    each([&](auto& panel) {
      if (weights) return panel.weigh(tile.begin, tile.count, keys, lse, weights + (tile.begin - begin));
      panel.attend(tile.begin, tile.count, keys, values);
    });
    tile = next;
  }
  if (!weights) each([&](auto& panel) { panel.save(out); });
}

template <class K, class V>
void many(const Layer& layer, const Lanes& lanes, int begin, int end, Partial out, const float* lse, float* weights,
          float* scratch) {
  int rest = lanes.lanes % (kColumns * W);
  auto run = rest == 0       ? many_lanes<K, V, 0>
             : rest <= W     ? many_lanes<K, V, 1>
             : rest <= 2 * W ? many_lanes<K, V, 2>
             : rest <= 3 * W ? many_lanes<K, V, min(3, kColumns)>
                             : many_lanes<K, V, kColumns>;
  run(layer, lanes, begin, end, out, lse, weights, scratch);
}

}  // namespace
}  // namespace openai_kv
