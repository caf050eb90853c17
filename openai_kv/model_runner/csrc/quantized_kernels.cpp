// One instruction set's functions for linear layers with int8 and int4 weights.

#include "quantized.h"

#include <utility>

#if defined(__AVX2__)
#include <immintrin.h>
#endif

#include "vector.h"

namespace openai_kv {
namespace {

using bvec = int8_t __attribute__((vector_size(W)));
constexpr int kVectors = 2;
static_assert(kQuantizedPanel % (kVectors * W) == 0);

inline vec load_float16(const uint16_t* p) { return load(reinterpret_cast<const f16*>(p)); }

// Adds the products of four unsigned and four signed bytes in each element.
template <class Weights>
inline ivec add_products(ivec sums, uvec unsigned_bytes, int32_t signed_bytes) {
#if defined(__AVX512VNNI__) && WIDTH == 16
  return ivec(_mm512_dpbusd_epi32(__m512i(sums), __m512i(unsigned_bytes), _mm512_set1_epi32(signed_bytes)));
#elif WIDTH == 8
  if constexpr (Weights::kBits == 4) {  // two products fit 16 bits
    __m256i pairs = _mm256_maddubs_epi16(__m256i(unsigned_bytes), _mm256_set1_epi32(signed_bytes));
    return sums + ivec(_mm256_madd_epi16(pairs, _mm256_set1_epi16(1)));
  }
#endif
  for (int i = 0; i < 4; ++i) {
    sums += as<ivec>(unsigned_bytes >> 8 * i & 0xff) * int32_t(int8_t(signed_bytes >> 8 * i));
  }
  return sums;
}

template <class T>
void quantize_group(const T* from, int count, int row, Activations& to) {
  vec values[kGroup / W], most{};
  for (int i = 0; i < kGroup / W; ++i) {
    values[i] = load_some(from + i * W, count - i * W);
    most = max(most, max(values[i], -values[i]));
  }
  float largest = 0;
  for (int l = 0; l < W; ++l) largest = most[l] > largest ? most[l] : largest;
  float inverse = largest > 0 ? 127.f / largest : 0.f;
  int8_t bytes[kGroup];
  ivec sums{};
  for (int i = 0; i < kGroup / W; ++i) {
    ivec nearest = __builtin_convertvector(values[i] * inverse + 12582912.f - 12582912.f, ivec);
    sums += nearest;
    bvec narrow = __builtin_convertvector(nearest, bvec);
    memcpy(bytes + i * W, &narrow, W);
  }
  for (int q = 0; q < kQuads; ++q) memcpy(&to.quads[q][row], bytes + 4 * q, 4);
  for (int l = 0; l < W; ++l) to.sums[row] += sums[l];
  to.scales[row] = largest / 127.f;
}

template <class T>
void quantize(const void* x, int64_t stride, int rows, int size, int groups, Activations* to) {
  for (int g = 0; g < groups; ++g) {
    const T* from = static_cast<const T*>(x) + g * kGroup;
    to[g] = {};
    for (int r = 0; r < rows; ++r) quantize_group(from + r * stride, size - g * kGroup, r, to[g]);
  }
}

template <class Weights, class T, int Rows>
void tile(const QuantizedLinear<Weights>& linear, const Activations* x, const Weights* weights, int64_t row,
          int64_t column) {
  constexpr int kParts = 8 / Weights::kBits, kStored = kQuads / kParts;
  vec totals[Rows][kVectors] = {};
  int within = int(column % kQuantizedPanel);
  for (int g = 0; g < linear.groups; ++g, ++x, ++weights) {
    ivec sums[Rows][kVectors];
    for (int r = 0; r < Rows; ++r) {
      for (int c = 0; c < kVectors; ++c) sums[r][c] = ivec{} - Weights::kZero * x->sums[r];
    }
    for (int i = 0; i < kStored; ++i) {
      uvec stored[kVectors];
      fetch_ahead<sizeof weights->values[i]>(weights->values[i]);
      for (int c = 0; c < kVectors; ++c) stored[c] = read<uvec>(weights->values[i][within + c * W]);
      for (int part = 0; part < kParts; ++part) {
        const int32_t* quads = x->quads[part * kStored + i];
        uvec bytes[kVectors];
        for (int c = 0; c < kVectors; ++c) {
          bytes[c] = kParts == 1 ? stored[c] : stored[c] >> 4 * part & 0x0f0f0f0f;
        }
#pragma GCC unroll 6
        for (int r = 0; r < Rows; ++r) {
          for (int c = 0; c < kVectors; ++c) sums[r][c] = add_products<Weights>(sums[r][c], bytes[c], quads[r]);
        }
      }
    }
    fetch_ahead<sizeof(Weights) - sizeof weights->values>(weights->scales);
    for (int c = 0; c < kVectors; ++c) {
      vec scales = load_float16(weights->scales + within + c * W);
      for (int r = 0; r < Rows; ++r) {
        totals[r][c] += __builtin_convertvector(sums[r][c], vec) * (scales * x->scales[r]);
      }
      if constexpr (Weights::kBits == 4) {
        vec minimums = load_float16(weights->minimums + within + c * W);
        for (int r = 0; r < Rows; ++r) totals[r][c] += minimums * (x->scales[r] * float(x->sums[r]));
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

template <class Weights, class T, int... Less>
void some_rows(int rows, const QuantizedLinear<Weights>& linear, const Activations* x, const Weights* weights,
               int64_t row, int64_t column, std::integer_sequence<int, Less...>) {
  static_cast<void>(
      ((rows == Less + 1 && (tile<Weights, T, Less + 1>(linear, x, weights, row, column), true)) || ...));
}

template <class Weights, class T>
void multiply(const QuantizedLinear<Weights>& linear, int64_t row, int rows, int64_t panel) {
  const Activations* x = linear.x + row / kQuantizedRows * linear.groups;
  const Weights* weights = linear.weights + panel * linear.groups;
  int64_t first = panel * kQuantizedPanel;
  for (int64_t c = first; c < first + kQuantizedPanel && c < linear.columns; c += kVectors * W) {
    some_rows<Weights, T>(rows, linear, x, weights, row, c, std::make_integer_sequence<int, kQuantizedRows>{});
  }
}

}  // namespace

extern const QuantizedKernels KERNELS;
const QuantizedKernels KERNELS = {
    {quantize<float>, quantize<bf16>},
    {multiply<Int8Weights, float>, multiply<Int8Weights, bf16>},
    {multiply<Int4Weights, float>, multiply<Int4Weights, bf16>},
};

}  // namespace openai_kv
