// Paged attention on plain pointers, without torch. kernels.cpp is compiled once per instruction set.
#pragma once

#include <cstdint>

namespace openai_kv {

constexpr int kTile = 64;      // context positions handled at a time
constexpr int kMaxLanes = 64;  // query vectors in one piece of work
constexpr int kFewLanes = 8;   // so many at most go the way of a single one, see few_lanes.h
constexpr int kTypes = 3;      // element types: 0 float32, 1 bfloat16, 2 float16
constexpr int kPools = 7;      // keys and values: as above, 3 int8 8, 4 int8 4, 5 and 6 int4 by channel and int8 or int4
constexpr int kCodes = 2;      // 0 int8, 1 int4, two in a byte: number i of a row beside number head_dim / 2 + i
constexpr int kScales[kCodes] = {1, 4};  // bfloat16 numbers beside a row: its scale, or step and low of each half

// What all pieces of work of one layer share. Strides in elements; the pool is contiguous,
// (num_blocks, kv_heads, block_size, head_dim).
struct Layer {
  const void* query;
  int query_type;  // element type, as that of the output; the pool may have another
  int64_t query_row, query_head;
  const void* keys;
  const void* values;
  const uint16_t *key_scales, *value_scales;  // null beside floats
  const void* open_keys;  // (num_slots, kv_heads, block_size, head_dim) of the query's type; null: keys are in the pool
  int kv_heads, block_size, head_dim;
  int group;  // query heads per kv head
  float scale;
  float softcap;       // 0: none
  int window;          // positions a row sees, its own included; 0: all
  const float* sinks;  // [heads], or null
};

// `lanes` query vectors of one request and kv head: lane l of the request is its row l / group, head l % group.
struct Lanes {
  const int32_t* block_table;
  int64_t first_row;       // the request's first row in the query
  int first_position;      // and that row's position in the context
  int own_slot;            // where the keys of these rows' own block lie in open_keys; -1: in the pool
  int kv_head, lane, lanes;
  bool alone = false;  // each lane gets the bits that it would have in a job of few

  int row(int i, int group) const { return (lane + i) / group; }
  int head(int i, int group) const { return kv_head * group + (lane + i) % group; }
};

// Attention over part of a context, not divided by `sum`: output [lanes][head_dim], max [lanes], sum [lanes].
struct Partial {
  float* output;
  float* max;
  float* sum;
};

inline int64_t partial_floats(int lanes, int head_dim) { return int64_t(lanes) * (head_dim + 2); }

inline Partial partial_at(float* memory, int lanes, int head_dim) {
  float* max = memory + int64_t(lanes) * head_dim;
  return {memory, max, max + lanes};
}

inline int64_t scratch_floats(int head_dim) {
  return 4 * int64_t(kMaxLanes) * (head_dim + 4) + int64_t(kMaxLanes) * (kTile + 4);
}

constexpr int kPanel = 32;        // columns whose weights lie together

// x [.., depth] @ weights.T. Weights in panels of kPanel columns, padded with 0: float32 [depth][kPanel], bfloat16
// [depth / 2][kPanel][2]. The depth is even, x lies as `arrange` puts it.
struct Linear {
  const float* x;
  const void* weights;
  const float* bias;  // [columns], or null
  void* out;          // [.., columns]
  int depth;
  int64_t columns;
  int tile_rows;  // rows whose elements lie together, at most Kernels::tile_rows
};

// `rounds`: the normalized row is rounded to its type before the weight is applied, as in Llama; without it only the
// product is, as in Gemma.
struct Norm {
  const float* weight;
  int size;
  float epsilon;
  bool rounds;
};

// One instruction set's functions, by element type: attend and weigh by the pool, finish by the query's.
// `scratch`: scratch_floats() floats, aligned to 64 bytes.
struct Kernels {
  // Attends context positions [begin, end).
  void (*attend[kPools])(const Layer&, const Lanes&, int begin, int end, Partial, float* scratch);
  // Merges partials that lie one after another, writes out [rows, heads, head_dim] and, unless null, lse [rows, heads].
  void (*finish[kTypes])(const Layer&, const Lanes&, float* partials, int count, void* out, float* lse);
  // Adds the softmax weight of all lanes to weights[0 .. end - begin).
  void (*weigh[kPools])(const Layer&, const Lanes&, int begin, int end, const float* lse, float* weights,
                        float* scratch);
  // A row of floats as codes and their scales, to the nearest, halves to even.
  void (*encode[kCodes])(const float* row, int d, void* codes, void* scales);
  int tile_rows;  // that `multiply` takes at most at a time
  // Rows [first, last) of x, converted and in the order of `multiply`; the columns behind `size` become 0.
  void (*arrange[kTypes])(const void* x, int64_t stride, int size, int depth, int tile_rows, int64_t first, int64_t last,
                          float* to);
  // Rows [first, last) of a panel's columns; first is a multiple of the tile's. None for float16.
  void (*multiply[kTypes])(const Linear&, int64_t first, int64_t last, int64_t panel);
  void (*norm[kTypes])(const Norm&, const void* x, void* out);
  void (*add[kTypes])(const void* x, const void* y, void* out, int size);
  // activation: 0 SiLU, 1 GELU by tanh
  void (*gate[kTypes])(int activation, const void* gates, const void* ups, void* out, int size);
  void (*rotate[kTypes])(void* row, const void* cosines, const void* sines, int half);
};

extern const Kernels kernels_generic;
extern const Kernels kernels_avx2;
extern const Kernels kernels_avx512;

}  // namespace openai_kv
