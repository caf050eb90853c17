// Attention over a block table with an online softmax, in tiles of kTile positions; sums in float32 (FlashAttention-2,
// Dao 2023; splits merged as in Flash-Decoding). Two ways to lay the work on vectors:
//   few lanes (decode):   along head_dim; each K and V element is read once for all query heads of its group.
//   many lanes (prefill): one query vector per vector element, K and V elements broadcast.
// A lane's result depends on its request and the tile boundaries alone, never on the other lanes.

#include "kernels.h"
#include "vector.h"

namespace openai_kv {
namespace {

constexpr float kLowest = -1e30f;          // running maximum before anything was seen; exp(kLowest - x) is 0
constexpr float kMasked = -__builtin_inff();
constexpr int kFewLanes = 8;
constexpr int kColumns = W == 16 ? 4 : 2;  // vectors per register tile, by the number of registers
constexpr int kRows = 4;

inline int round_up(int x, int to) { return (x + to - 1) / to * to; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

// Up to kTile positions from `begin` and where their rows lie in the pool.
template <class T>
struct Tile {
  int begin, count;
  int64_t rows[kTile];
  const T *keys, *values;

  Tile(const Layer& layer, const Lanes& lanes, int begin, int end)
      : begin(begin), count(min(end - begin, kTile)), keys(static_cast<const T*>(layer.keys)),
        values(static_cast<const T*>(layer.values)) {
    int block = begin / layer.block_size, slot = begin % layer.block_size;
    for (int n = 0; n < count; ++block, slot = 0) {
      int64_t head = int64_t(lanes.block_table[block]) * layer.kv_heads + lanes.kv_head;
      int64_t row = (head * layer.block_size + slot) * layer.head_dim;
      int stop = min(count, n + layer.block_size - slot);
      for (; n < stop; ++n, row += layer.head_dim) rows[n] = row;
    }
  }
  const T* key(int n) const { return keys + rows[n]; }
  const T* value(int n) const { return values + rows[n]; }
};

// The positions a lane may see: first .. last.
struct Span {
  int first, last;

  Span(const Layer& layer, const Lanes& lanes, int i) {
    last = lanes.first_position + lanes.row(i, layer.group);
    first = layer.window ? max(0, last - layer.window + 1) : 0;
  }
};

template <class T>
const T* query_at(const Layer& layer, const Lanes& lanes, int i) {
  int64_t row = lanes.first_row + lanes.row(i, layer.group);
  return static_cast<const T*>(layer.query) + row * layer.query_row + lanes.head(i, layer.group) * layer.query_head;
}

// ---- few lanes: scores [lane][kTile]

template <class T>
inline void prefetch(const T* row, int d) {
  for (int k = 0; k < d; k += 64 / int(sizeof(T))) __builtin_prefetch(row + k);
}

template <int L, class T>
void dot(const Tile<T>& tile, const float* query, int d, float* scores) {
  for (int n = 0; n < tile.count; n += W) {
    vec products[L][W];
    for (int i = 0; i < W; i += kRows) {
      vec sums[kRows][L] = {};
      const T* keys[kRows];
      for (int r = 0; r < kRows; ++r) {
        int token = min(n + i + r, tile.count - 1);
        keys[r] = tile.key(token);
        prefetch(tile.value(token), d);
      }
      for (int k = 0; k < d; k += W) {
        for (int r = 0; r < kRows; ++r) {
          vec key = load(keys[r] + k);
          for (int l = 0; l < L; ++l) sums[r][l] += key * load(query + l * d + k);
        }
      }
      for (int r = 0; r < kRows; ++r) {
        for (int l = 0; l < L; ++l) products[l][i + r] = sums[r][l];
      }
    }
    for (int l = 0; l < L; ++l) store(scores + l * kTile + n, row_sums(products[l]));
  }
}

template <int L, int C, class T>
void add_values(const Tile<T>& tile, const float* weights, const float* decay, int d, int column, float* output) {
  vec sums[L][C];
  for (int l = 0; l < L; ++l) {
    for (int c = 0; c < C; ++c) sums[l][c] = load(output + l * d + column + c * W) * decay[l];
  }
  for (int n = 0; n < tile.count; ++n) {
    vec value[C];
    for (int c = 0; c < C; ++c) value[c] = load(tile.value(n) + column + c * W);
    for (int l = 0; l < L; ++l) {
      for (int c = 0; c < C; ++c) sums[l][c] += value[c] * weights[l * kTile + n];
    }
  }
  for (int l = 0; l < L; ++l) {
    for (int c = 0; c < C; ++c) store(output + l * d + column + c * W, sums[l][c]);
  }
}

template <int L, class T>
void add_values(const Tile<T>& tile, const float* weights, const float* decay, int d, float* output) {
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

template <class T>
struct Few {
  const Layer& layer;
  const Lanes& lanes;
  const int d;
  float* query;   // [lanes][d], scaled
  float* scores;  // [lanes][kTile]

  Few(const Layer& layer, const Lanes& lanes, float* scratch)
      : layer(layer), lanes(lanes), d(layer.head_dim), query(scratch), scores(scratch + kFewLanes * d) {
    for (int l = 0; l < lanes.lanes; ++l) {
      const T* from = query_at<T>(layer, lanes, l);
      for (int k = 0; k < d; k += W) store(query + l * d + k, load(from + k) * layer.scale);
    }
  }

  void score(const Tile<T>& tile) {
    by_lanes(lanes.lanes, [&]<int L>(int l) { dot<L>(tile, query + l * d, d, scores + l * kTile); });
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
  float soften(const Tile<T>& tile, int l, Partial out) {
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
    for (Tile<T> tile(layer, lanes, begin, end); tile.count > 0;) {
      Tile<T> next(layer, lanes, tile.begin + tile.count, end);
      score(tile);
      for (int n = 0; n < next.count; ++n) prefetch(next.key(n), d);
      float decay[kFewLanes];
      for (int l = 0; l < lanes.lanes; ++l) decay[l] = soften(tile, l, out);
      by_lanes(lanes.lanes, [&]<int L>(int l) {
        add_values<L>(tile, scores + l * kTile, decay + l, d, out.output + l * d);
      });
      tile = next;
    }
  }

  void weigh(int begin, int end, const float* lse, float* weights) {
    int heads = layer.kv_heads * layer.group;
    for (int start = begin; start < end; start += kTile) {
      Tile<T> tile(layer, lanes, start, end);
      score(tile);
      for (int l = 0; l < lanes.lanes; ++l) {
        int64_t row = lanes.first_row + lanes.row(l, layer.group);
        float total = lse[row * heads + lanes.head(l, layer.group)];
        for (int n = 0; n < tile.count; n += W) store(scores + l * kTile + n, exp(load(scores + l * kTile + n) - total));
        for (int n = 0; n < tile.count; ++n) weights[start - begin + n] += scores[l * kTile + n];
      }
    }
  }
};

// ---- many lanes: panels of C vectors of lanes; per panel query [d][C * W], scores [kTile][C * W], output [d][C * W]

// c[i] = decay * c[i] + sum over k of a[i * row + k * column] * b[k]; no decay: c starts at 0. rows: a multiple of kRows.
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

// Rows of a tile as floats [count][stride], what lies beyond set to 0.
template <class T>
void widen(const Tile<T>& tile, const T* pool, int d, int stride, float* to) {
  for (int n = 0; n < round_up(tile.count, kRows); ++n, to += stride) {
    int k = 0;
    if (n < tile.count) {
      const T* row = pool + tile.rows[n];
      for (; k + W <= d; k += W) store(to + k, load(row + k));
      for (; k < d; ++k) to[k] = load_one(row + k);
    }
    for (; k < stride; ++k) to[k] = 0;
  }
}

template <class T, int C>
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
      const T* q = query_at<T>(layer, lanes, lane);
      for (int k = 0; k < d; ++k) query[k * C * W + l] = load_one(q + k) * layer.scale;
      Span span(layer, lanes, lane);
      from[l / W][l % W] = span.first;
      to[l / W][l % W] = span.last;
    }
    for (int v = 0; v < C; ++v) max[v] = splat(kLowest), sum[v] = vec{};
    memset(output, 0, sizeof(float) * stride * C * W);
  }

  void score(int begin, int tokens, const float* keys) {
    multiply<C>(round_up(tokens, kRows), d, keys, stride, 1, query, scores, nullptr);
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
    for (int v = 0; v < C; ++v) {
      decay[v] = exp(max[v] - top[v]);
      max[v] = top[v];
      sum[v] = sum[v] * decay[v] + total[v];
    }
    multiply<C>(stride, tokens, values, 1, stride, scores, output, decay);
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
    vec total[C];
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

template <class T, int C>
void many_lanes(const Layer& layer, const Lanes& lanes, int first, int begin, int end, Partial out, const float* lse,
                float* weights, float* scratch) {
  int stride = round_up(layer.head_dim, kRows), width = C * W;
  float *keys = scratch, *values = keys + kTile * stride, *query = values + kTile * stride;
  float *output = query + layer.head_dim * width, *scores = output + stride * width;
  Panel<T, C> panel(layer, lanes, first, query, scores, output);
  for (int start = begin; start < end; start += kTile) {
    Tile<T> tile(layer, lanes, start, end);
    widen(tile, tile.keys, layer.head_dim, stride, keys);
    if (weights) {
      panel.weigh(start, tile.count, keys, lse, weights + (start - begin));
    } else {
      widen(tile, tile.values, layer.head_dim, stride, values);
      panel.attend(start, tile.count, keys, values);
    }
  }
  if (!weights) panel.save(out);
}

template <class T>
void many(const Layer& layer, const Lanes& lanes, int begin, int end, Partial out, const float* lse, float* weights,
          float* scratch) {
  for (int l = 0; l < lanes.lanes;) {
    if (lanes.lanes - l > W && kColumns > 1) {
      int columns = lanes.lanes - l > 2 * W ? kColumns : 2;
      auto run = columns == 2 ? many_lanes<T, 2> : many_lanes<T, kColumns>;
      run(layer, lanes, l, begin, end, out, lse, weights, scratch);
      l += columns * W;
    } else {
      many_lanes<T, 1>(layer, lanes, l, begin, end, out, lse, weights, scratch);
      l += W;
    }
  }
}

// ---- the table

bool are_few(const Layer& layer, const Lanes& lanes) {
  return lanes.lanes <= kFewLanes && layer.head_dim % W == 0;
}

template <class T>
void attend(const Layer& layer, const Lanes& lanes, int begin, int end, Partial out, float* scratch) {
  if (are_few(layer, lanes)) {
    Few<T>(layer, lanes, scratch).attend(begin, end, out);
  } else {
    many<T>(layer, lanes, begin, end, out, nullptr, nullptr, scratch);
  }
}

template <class T>
void weigh(const Layer& layer, const Lanes& lanes, int begin, int end, const float* lse, float* weights,
           float* scratch) {
  if (are_few(layer, lanes)) {
    Few<T>(layer, lanes, scratch).weigh(begin, end, lse, weights);
  } else {
    many<T>(layer, lanes, begin, end, {}, lse, weights, scratch);
  }
}

template <class T>
void finish(const Layer& layer, const Lanes& lanes, float* partials, int count, void* out, float* lse) {
  int d = layer.head_dim, heads = layer.kv_heads * layer.group;
  int64_t step = partial_floats(lanes.lanes, d);
  for (int l = 0; l < lanes.lanes; ++l) {
    int head = lanes.head(l, layer.group);
    int64_t to = (lanes.first_row + lanes.row(l, layer.group)) * heads + head;
    float max = layer.sinks ? layer.sinks[head] : kLowest;
    for (int i = 0; i < count; ++i) {
      float m = partial_at(partials + i * step, lanes.lanes, d).max[l];
      max = m > max ? m : max;
    }
    float sum = layer.sinks ? exp(splat(layer.sinks[head] - max))[0] : 0;
    float* merged = partials + int64_t(l) * d;
    for (int i = 0; i < count; ++i) {
      Partial part = partial_at(partials + i * step, lanes.lanes, d);
      float share = exp(splat(part.max[l] - max))[0];
      const float* from = part.output + int64_t(l) * d;
      sum += part.sum[l] * share;
      for (int k = 0; k < d; ++k) merged[k] = from[k] * share + (i ? merged[k] : 0.f);
    }
    T* row = static_cast<T*>(out) + to * d;
    for (int k = 0; k < d; ++k) store_one(row + k, merged[k] / sum);
    if (lse) lse[to] = max + __builtin_logf(sum);
  }
}

}  // namespace

extern const Kernels KERNELS;
const Kernels KERNELS = {
    {attend<float>, attend<bf16>, attend<f16>},
    {finish<float>, finish<bf16>, finish<f16>},
    {weigh<float>, weigh<bf16>, weigh<f16>},
};

}  // namespace openai_kv
