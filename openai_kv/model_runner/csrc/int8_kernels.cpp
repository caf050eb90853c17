// One instruction set's functions for int8 linear layers.

#include "int8.h"

#include <utility>

#if defined(__AVX512VNNI__)
#include <immintrin.h>
#endif

#include "vector.h"

namespace openai_kv {
namespace {

constexpr int kVectors = 2;
static_assert(kInt8Panel % (kVectors * W) == 0);

// Adds the products of four unsigned and four signed bytes in each element.
inline ivec add_products(ivec sums, uvec unsigned_bytes, int32_t signed_bytes) {
#if defined(__AVX512VNNI__) && WIDTH == 16
  return ivec(_mm512_dpbusd_epi32(__m512i(sums), __m512i(unsigned_bytes), _mm512_set1_epi32(signed_bytes)));
#else
  for (int i = 0; i < 4; ++i) {
    sums += as<ivec>(unsigned_bytes >> 8 * i & 0xff) * int32_t(int8_t(signed_bytes >> 8 * i));
  }
  return sums;
#endif
}

template <class T>
void quantize(const void* x, int64_t stride, int rows, int size, int groups, Int8Rows* to) {
  for (int g = 0; g < groups; ++g) {
    to[g] = {};
    for (int r = 0; r < rows; ++r) {
      const T* from = static_cast<const T*>(x) + r * stride + g * kGroup;
      int count = size - g * kGroup < kGroup ? size - g * kGroup : kGroup;
      float values[kGroup] = {}, most = 0;
      for (int k = 0; k < count; ++k) {
        values[k] = load_one(from + k);
        float magnitude = __builtin_fabsf(values[k]);
        most = magnitude > most ? magnitude : most;
      }
      float inverse = most > 0 ? 127.f / most : 0.f;
      int8_t bytes[kGroup];
      int sum = 0;
      for (int k = 0; k < kGroup; ++k) {
        bytes[k] = int8_t(int(values[k] * inverse + 12582912.f - 12582912.f));  // to the nearest
        sum += bytes[k];
      }
      for (int q = 0; q < kQuads; ++q) memcpy(&to[g].quads[q][r], bytes + 4 * q, 4);
      to[g].offset[r] = -128 * sum;
      to[g].scales[r] = most / 127.f;
    }
  }
}

template <class T, int Rows>
void tile(const Int8Linear& linear, const Int8Rows* x, const Int8Weights* weights, int64_t row, int64_t column) {
  vec totals[Rows][kVectors] = {};
  int within = int(column % kInt8Panel);
  for (int g = 0; g < linear.groups; ++g, ++x, ++weights) {
    ivec sums[Rows][kVectors];
    for (int r = 0; r < Rows; ++r) {
      for (int c = 0; c < kVectors; ++c) sums[r][c] = ivec{} + x->offset[r];
    }
    for (int q = 0; q < kQuads; ++q) {
      uvec bytes[kVectors];
      fetch_ahead<sizeof weights->values[q]>(weights->values[q]);
      for (int c = 0; c < kVectors; ++c) bytes[c] = read<uvec>(weights->values[q][within + c * W]);
#pragma GCC unroll 6
      for (int r = 0; r < Rows; ++r) {
        for (int c = 0; c < kVectors; ++c) sums[r][c] = add_products(sums[r][c], bytes[c], x->quads[q][r]);
      }
    }
    for (int c = 0; c < kVectors; ++c) {
      vec scales = load(weights->scales + within + c * W);
      for (int r = 0; r < Rows; ++r) {
        totals[r][c] += __builtin_convertvector(sums[r][c], vec) * (scales * x->scales[r]);
      }
    }
  }
  for (int r = 0; r < Rows; ++r) {
    T* out = static_cast<T*>(linear.out) + (row + r) * linear.columns + column;
    for (int c = 0; c < kVectors && column + c * W < linear.columns; ++c) {
      int count = int(linear.columns - column) - c * W;
      vec total = totals[r][c];
      if (linear.bias) total += load_some(linear.bias + column + c * W, count);
      store_some(out + c * W, total, count);
    }
  }
}

template <class T, int... Less>
void some_rows(int rows, const Int8Linear& linear, const Int8Rows* x, const Int8Weights* weights, int64_t row,
               int64_t column, std::integer_sequence<int, Less...>) {
  static_cast<void>(((rows == Less + 1 && (tile<T, Less + 1>(linear, x, weights, row, column), true)) || ...));
}

template <class T>
void multiply(const Int8Linear& linear, int64_t row, int rows, int64_t panel) {
  const Int8Rows* x = linear.x + row / kInt8Rows * linear.groups;
  const Int8Weights* weights = linear.weights + panel * linear.groups;
  for (int64_t c = panel * kInt8Panel; c < (panel + 1) * kInt8Panel && c < linear.columns; c += kVectors * W) {
    some_rows<T>(rows, linear, x, weights, row, c, std::make_integer_sequence<int, kInt8Rows>{});
  }
}

}  // namespace

extern const Int8Kernels KERNELS;
const Int8Kernels KERNELS = {{quantize<float>, quantize<bf16>}, {multiply<float>, multiply<bf16>}};

}  // namespace openai_kv
