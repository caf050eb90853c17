// Rows of the pool: floats, or codes with scales beside them, as codes.py has them. int8: scale * code. int4: of each half
// of a row low + step * code; number i lies in the low bits of byte i, number head_dim / 2 + i in the high ones.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace openai_kv {
namespace {

struct int4 {
  uint8_t bits;
};

// Keys whose scales belong to a channel of a block: steps [head_dim], then lows [head_dim].
struct channel_int4 {
  uint8_t bits;
};

template <class T>
constexpr int kPacked = 1;
template <>
constexpr int kPacked<int4> = 2;
template <>
constexpr int kPacked<channel_int4> = 2;
template <class T>
constexpr bool kByChannel = false;
template <>
constexpr bool kByChannel<channel_int4> = true;

using bvec = uint8_t __attribute__((vector_size(W)));
using cvec = int8_t __attribute__((vector_size(W)));

inline vec load(const int8_t* p) {
#if WIDTH == 16
  return vec(_mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p)))));
#elif WIDTH == 8
  return vec(_mm256_cvtepi32_ps(_mm256_cvtepi8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p)))));
#else
  return __builtin_convertvector(read<cvec>(p), vec);
#endif
}

inline uvec load_bytes(const uint8_t* p) {
#if WIDTH == 16
  return uvec(_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#elif WIDTH == 8
  return uvec(_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(p))));
#else
  return __builtin_convertvector(read<bvec>(p), uvec);
#endif
}

inline float load_one(const int8_t* p) { return *p; }

// Numbers k .. k + W of a row, without its scales; of int4 within one half.
template <class T>
inline vec load_at(const T* row, int k, int) {
  return load(row + k);
}
inline vec load_codes(const uint8_t* row, int k, int d) {
  int second = k >= d / 2;
  uvec codes = load_bytes(row + k - second * (d / 2)) >> 4 * second & 15;
  return __builtin_convertvector(as<ivec>(codes), vec);
}
inline vec load_at(const int4* row, int k, int d) { return load_codes(&row->bits, k, d); }

template <class T>
inline float one_at(const T* row, int k, int) {
  return load_one(row + k);
}
inline float one_code(const uint8_t* row, int k, int d) {
  int second = k >= d / 2;
  return float(row[k - second * (d / 2)] >> 4 * second & 15);
}
inline float one_at(const int4* row, int k, int d) { return one_code(&row->bits, k, d); }

inline float widened(uint16_t bits) { return as<float>(uint32_t(bits) << 16); }

// What lies beside the rows of a tile: nothing beside floats.
template <class T>
struct Scales {
  void read(const Layer&, const uint16_t*, int64_t, int, int) {}
  vec times(int, vec sums) const { return sums; }
  template <class X>
  X restore(X x, int, int, int) const {
    return x;
  }
};

template <>
struct Scales<int8_t> {
  float scale[kTile] = {};

  // Of `token` and those behind it in its block, to n .. stop.
  void read(const Layer&, const uint16_t* from, int64_t token, int n, int stop) {
    for (int i = 0; i < stop - n; ++i) scale[n + i] = widened(from[token + i]);
  }
  vec times(int n, vec sums) const { return sums * load(scale + n); }
  template <class X>
  X restore(X x, int n, int, int) const {
    return x * scale[n];
  }
};

template <>
struct Scales<int4> {
  float step[2][kTile] = {}, low[2][kTile] = {};

  void read(const Layer&, const uint16_t* from, int64_t token, int n, int stop) {
    const uint16_t* at = from + 4 * token;
    for (; n < stop; ++n, at += 4) {
      for (int half = 0; half < 2; ++half) step[half][n] = widened(at[2 * half]), low[half][n] = widened(at[2 * half + 1]);
    }
  }
  template <class X>
  X restore(X x, int n, int k, int d) const {
    return x * step[k >= d / 2][n] + low[k >= d / 2][n];
  }
};

// Of each token its block's, null for those whose keys are open.
template <>
struct Scales<channel_int4> {
  const uint16_t* beside[kTile];

  void read(const Layer& layer, const uint16_t* from, int64_t token, int n, int stop) {
    const uint16_t* at = from ? from + token / layer.block_size * 2 * layer.head_dim : nullptr;
    for (; n < stop; ++n) beside[n] = at;
  }
  vec times(int, vec sums) const { return sums; }
};

// Comparisons that keep a nan: it has to show in what is read back.
inline float larger(float x, float most) { return x > most || x != x ? x : most; }
inline float smaller(float x, float least) { return x < least || x != x ? x : least; }

inline float to_bf16(float x, uint16_t* to) {
  bf16 rounded;
  store_one(&rounded, x);
  *to = rounded.bits;
  return widened(rounded.bits);
}

// x / step to the nearest, halves to even; a step of 0 is that of numbers which are all alike.
inline int code_of(float x, float step, float least, float most) {
  float code = step > 0 ? x / step : 0.f;
  code = code < least ? least : code > most ? most : code;
  return int(code + 12582912.f - 12582912.f);
}

inline void encode_int8(const float* row, int d, void* codes, void* scales) {
  float most = 0;
  for (int k = 0; k < d; ++k) most = larger(__builtin_fabsf(row[k]), most);
  float scale = to_bf16(most / 127.f, static_cast<uint16_t*>(scales));
  for (int k = 0; k < d; ++k) static_cast<int8_t*>(codes)[k] = int8_t(code_of(row[k], scale, -127, 127));
}

inline void encode_int4(const float* row, int d, void* codes, void* scales) {
  uint8_t* bytes = static_cast<uint8_t*>(codes);
  for (int half = 0; half < 2; ++half, row += d / 2) {
    float least = row[0], most = row[0];
    for (int k = 1; k < d / 2; ++k) least = smaller(row[k], least), most = larger(row[k], most);
    uint16_t* at = static_cast<uint16_t*>(scales) + 2 * half;
    float low = to_bf16(least, at + 1), step = to_bf16((most - low) / 15.f, at);
    for (int k = 0; k < d / 2; ++k) {
      int code = code_of(row[k] - low, step, 0, 15);
      bytes[k] = uint8_t(half ? bytes[k] | code << 4 : code);
    }
  }
}

}  // namespace
}  // namespace openai_kv
