// Few query vectors (decode): vectors run along head_dim, and each K and V element is read once for all heads of its
// group. Scores are [lane][kTile].
#pragma once

#include "tile.h"

namespace openai_kv {
namespace {

// Where the tile's keys lie: in the pool, or restored.
template <class K, class V>
inline const K* key_at(const Tile<K, V>& tile, const float*, int, int n) {
  return tile.key(n);
}
template <class V>
inline const float* key_at(const Tile<channel_int4, V>&, const float* restored, int d, int n) {
  return restored + n * d;
}

template <int L, class K, class V>
void dot(const Tile<K, V>& tile, const float* restored, const float* query, int d, float* scores) {
  for (int n = 0; n < tile.count; n += W) {
    vec products[L][W];
    for (int i = 0; i < W; i += kRows) {
      vec sums[kRows][L] = {};
      decltype(key_at(tile, restored, d, 0)) keys[kRows];
      for (int r = 0; r < kRows; ++r) {
        int token = min(n + i + r, tile.count - 1);
        keys[r] = key_at(tile, restored, d, token);
        prefetch(tile.value(token), d);
      }
      for (int k = 0; k < d; k += W) {
        for (int r = 0; r < kRows; ++r) {
          vec key = load_at(keys[r], k, d);
          for (int l = 0; l < L; ++l) sums[r][l] += key * load(query + l * d + k);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int l = 0; l < L; ++l) products[l][i + r] = sums[r][l];
      }
    }
    for (int l = 0; l < L; ++l) store(scores + l * kTile + n, tile.key_scales.times(n, row_sums(products[l])));
  }
}

// Turns weights into what multiplies the values as they lie in the pool.
template <class T>
void spread(const Scales<T>&, int, int, int, float*, float*, float*) {}

inline void spread(const Scales<int8_t>& scales, int count, int lanes, int, float* weights, float*, float*) {
  for (int l = 0; l < lanes; ++l, weights += kTile) {
    for (int n = 0; n < count; n += W) store(weights + n, load(weights + n) * load(scales.scale + n));
  }
}

// Those of the second half go kFewLanes behind the first's. The lows are added to the output, which decays before.
inline void spread(const Scales<int4>& scales, int count, int lanes, int d, float* weights, float* decay,
                   float* output) {
  for (int l = 0; l < lanes; ++l, weights += kTile) {
    vec lows[2] = {};
    for (int n = 0; n < count; n += W) {
      vec weight = load(weights + n);
      for (int half = 0; half < 2; ++half) {
        lows[half] += weight * load(scales.low[half] + n);
        store(weights + half * kFewLanes * kTile + n, weight * load(scales.step[half] + n));
      }
    }
    float sums[2] = {};
    for (int i = 0; i < W; ++i) sums[0] += lows[0][i], sums[1] += lows[1][i];
    for (int k = 0; k < d; k += W, output += W) store(output, load(output) * decay[l] + sums[k >= d / 2]);
    decay[l] = 1;
  }
}

template <int L, int C, class K, class V>
void add_values(const Tile<K, V>& tile, const float* weights, const float* decay, int d, int column, float* output) {
  vec sums[L][C];
  const float* shares[C];
  for (int c = 0; c < C; ++c) {
    bool second = kPacked<V> == 2 && column + c * W >= d / 2;
    shares[c] = weights + second * kFewLanes * kTile;
  }
  for (int l = 0; l < L; ++l) {
    for (int c = 0; c < C; ++c) sums[l][c] = load(output + l * d + column + c * W) * decay[l];
  }
  for (int n = 0; n < tile.count; ++n) {
    vec value[C];
    for (int c = 0; c < C; ++c) value[c] = load_at(tile.value(n), column + c * W, d);
    for (int l = 0; l < L; ++l) {
      for (int c = 0; c < C; ++c) sums[l][c] += value[c] * shares[c][l * kTile + n];
    }
  }
  for (int l = 0; l < L; ++l) {
    for (int c = 0; c < C; ++c) store(output + l * d + column + c * W, sums[l][c]);
  }
}

template <int L, class K, class V>
void add_values(const Tile<K, V>& tile, const float* weights, const float* decay, int d, float* output) {
  int column = 0;
  for (; column + kColumns * W <= d; column += kColumns * W) {
    add_values<L, kColumns>(tile, weights, decay, d, column, output);
  }
  for (; column < d; column += W) add_values<L, 1>(tile, weights, decay, d, column, output);
}

// Calls f with the lanes in groups whose sums fit the registers.
template <class F>
inline void by_lanes(int lanes, F f) {
  int l = 0;
  for (; l + 4 <= lanes; l += 4) f.template operator()<4>(l);
  if (lanes - l == 3) f.template operator()<3>(l);
  if (lanes - l == 2) f.template operator()<2>(l);
  if (lanes - l == 1) f.template operator()<1>(l);
}

template <class K, class V>
struct Few {
  const Layer& layer;
  const Lanes& lanes;
  const int d;
  float* query;     // [lanes][d], scaled
  float* scores;    // [lanes][kTile], and behind kFewLanes as many again for spread
  float* restored;  // [kTile][d], see key_at

  Few(const Layer& layer, const Lanes& lanes, float* scratch)
      : layer(layer), lanes(lanes), d(layer.head_dim), query(scratch), scores(scratch + kFewLanes * d),
        restored(scores + 2 * kFewLanes * kTile) {
    for (int l = 0; l < lanes.lanes; ++l) {
      with_query(layer, lanes, l, [&](const auto* from) {
        for (int k = 0; k < d; k += W) store(query + l * d + k, load(from + k) * layer.scale);
      });
    }
  }

  void score(const Tile<K, V>& tile) {
    if constexpr (kByChannel<K>) restore_keys(tile, layer, lanes, d, restored);
    by_lanes(lanes.lanes, [&]<int L>(int l) { dot<L>(tile, restored, query + l * d, d, scores + l * kTile); });
    for (int l = 0; l < lanes.lanes; ++l) {
      Span span(layer, lanes, l);
      int first = span.first - tile.begin, last = min(span.last - tile.begin, tile.count - 1);
      for (int n = 0; n < tile.count; n += W) {
        float* at = scores + l * kTile + n;
        vec s = layer.softcap != 0 ? soft_cap(load(at), layer.softcap) : load(at);
        ivec position = iota() + n;
        store(at, (position >= first) & (position <= last) ? s : splat(kMasked));
      }
    }
  }

  // Turns a lane's scores into weights and returns by how much earlier sums shrink.
  float soften(const Tile<K, V>& tile, int l, Partial out) {
    float* s = scores + l * kTile;
    vec top = splat(out.max[l]), sum = {};
    for (int n = 0; n < tile.count; n += W) top = openai_kv::max(top, load(s + n));
    float max = top[0];
    for (int i = 1; i < W; ++i) max = top[i] > max ? top[i] : max;
    for (int n = 0; n < tile.count; n += W) {
      vec weight = exp(load(s + n) - max);
      store(s + n, weight);
      sum += weight;
    }
    float decay = exp(splat(out.max[l] - max))[0], total = 0;
    for (int i = 0; i < W; ++i) total += sum[i];
    out.max[l] = max;
    out.sum[l] = out.sum[l] * decay + total;
    return decay;
  }

  void attend(int begin, int end, Partial out) {
    for (int l = 0; l < lanes.lanes; ++l) out.max[l] = kLowest, out.sum[l] = 0;
    memset(out.output, 0, sizeof(float) * lanes.lanes * d);
    for (Tile<K, V> tile(layer, lanes, begin, end); tile.count > 0;) {
      Tile<K, V> next(layer, lanes, tile.begin + tile.count, end);
      score(tile);
      for (int n = 0; n < next.count; ++n) prefetch(next.key(n), d);
      float decay[kFewLanes];
      for (int l = 0; l < lanes.lanes; ++l) decay[l] = soften(tile, l, out);
      spread(tile.value_scales, tile.count, lanes.lanes, d, scores, decay, out.output);
      by_lanes(lanes.lanes, [&]<int L>(int l) {
        add_values<L>(tile, scores + l * kTile, decay + l, d, out.output + l * d);
      });
      tile = next;
    }
  }

  void weigh(int begin, int end, const float* lse, float* weights) {
    int heads = layer.kv_heads * layer.group;
    for (int start = begin; start < end; start += kTile) {
      Tile<K, V> tile(layer, lanes, start, end);
      score(tile);
      for (int l = 0; l < lanes.lanes; ++l) {
        int64_t row = lanes.first_row + lanes.row(l, layer.group);
        float total = lse[row * heads + lanes.head(l, layer.group)];
        float* s = scores + l * kTile;
        for (int n = 0; n < tile.count; n += W) store(s + n, exp(load(s + n) - total));
        for (int n = 0; n < tile.count; ++n) weights[start - begin + n] += s[n];
      }
    }
  }
};

}  // namespace
}  // namespace openai_kv
