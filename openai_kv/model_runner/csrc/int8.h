// Linear layers with int8 weights and activations, without torch. int8.cpp is compiled once per instruction set.
//
// Both are cut along the depth into groups of kGroup with a scale each, as in llama.cpp's Q8_0: the sums within a group
// are exact integers, and the groups are added up in float32 in one order, whatever rows a call has.
#pragma once

#include <cstdint>

namespace openai_kv {

constexpr int kGroup = 64;
constexpr int kQuads = kGroup / 4;   // integer products are added up in fours
constexpr int kInt8Panel = 32;       // columns whose weights lie together
constexpr int kInt8Rows = 6;         // rows multiplied at a time, by every instruction set
constexpr int kInt8Types = 2;        // element types: 0 float32, 1 bfloat16

// Of one panel and one group.
struct Int8Weights {
  uint8_t values[kQuads][kInt8Panel][4];  // a weight plus 128
  float scales[kInt8Panel];
};

// Of one group and up to kInt8Rows rows.
struct Int8Rows {
  int32_t quads[kQuads][kInt8Rows];  // four int8 in each
  int32_t offset[kInt8Rows];         // what the 128 in each weight adds up to, negative
  float scales[kInt8Rows];
};

struct Int8Linear {
  const Int8Rows* x;            // [rows / kInt8Rows, groups]
  const Int8Weights* weights;   // [panels, groups]
  const float* bias;            // [columns], or null
  void* out;                    // [rows, columns]
  int groups;
  int64_t columns;
};

struct Int8Kernels {
  // x [rows, size], rows <= kInt8Rows, to [groups]; what lies behind the rows and behind `size` becomes 0.
  void (*quantize[kInt8Types])(const void* x, int64_t stride, int rows, int size, int groups, Int8Rows* to);
  // Rows [row, row + rows) of a panel's columns; row is a multiple of kInt8Rows, rows <= kInt8Rows.
  void (*multiply[kInt8Types])(const Int8Linear&, int64_t row, int rows, int64_t panel);
};

extern const Int8Kernels int8_generic;
extern const Int8Kernels int8_avx2;
extern const Int8Kernels int8_avx512;

}  // namespace openai_kv
