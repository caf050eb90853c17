// Linear layers with int8 or int4 weights and int8 activations, without torch. The .cpp is compiled once per instruction set.
//
// Both are cut along the depth into groups: the sums within a group are exact integers, and the groups are added up in
// float32 in one order, whatever rows a call has.
#pragma once

#include <cstdint>

namespace openai_kv {

constexpr int kGroup = 32;
constexpr int kQuads = kGroup / 4;   // integer products are added up in fours
constexpr int kQuantizedPanel = 32;  // columns whose weights lie together
constexpr int kQuantizedRows = 6;    // rows multiplied at a time, by every instruction set
constexpr int kQuantizedTypes = 2;   // element types: 0 float32, 1 bfloat16

// Of one panel and one group, with a scale in float16 for each column, as in llama.cpp's Q8_0.
struct Int8Weights {
  static constexpr int kBits = 8, kZero = 128;
  uint8_t values[kQuads][kQuantizedPanel][4];  // a weight plus kZero
  uint16_t scales[kQuantizedPanel];
};

// With a scale and a minimum, as in llama.cpp's Q4_1.
struct Int4Weights {
  static constexpr int kBits = 4, kZero = 0;
  uint8_t values[kQuads / 2][kQuantizedPanel][4];  // low halves: the group's first half
  uint16_t scales[kQuantizedPanel], minimums[kQuantizedPanel];
};

// Activations of one group and up to kQuantizedRows rows.
struct Activations {
  int32_t quads[kQuads][kQuantizedRows];  // four int8 in each
  int32_t sums[kQuantizedRows];           // of those int8
  float scales[kQuantizedRows];
};

template <class Weights>
struct QuantizedLinear {
  const Activations* x;    // [rows / kQuantizedRows, groups]
  const Weights* weights;  // [panels, groups]
  const float* bias;       // [columns], or null
  void* out;               // [rows, columns]
  int groups;
  int64_t columns;
};

struct QuantizedKernels {
  // x [rows, size], rows <= kQuantizedRows, to [groups]; what lies behind the rows and behind `size` becomes 0.
  void (*quantize[kQuantizedTypes])(const void* x, int64_t stride, int rows, int size, int groups, Activations* to);
  // Rows [row, row + rows) of a panel's columns; row is a multiple of kQuantizedRows, rows <= kQuantizedRows.
  void (*multiply_int8[kQuantizedTypes])(const QuantizedLinear<Int8Weights>&, int64_t row, int rows, int64_t panel);
  void (*multiply_int4[kQuantizedTypes])(const QuantizedLinear<Int4Weights>&, int64_t row, int rows, int64_t panel);
};

extern const QuantizedKernels quantized_generic;
extern const QuantizedKernels quantized_avx2;
extern const QuantizedKernels quantized_avx512;

}  // namespace openai_kv
