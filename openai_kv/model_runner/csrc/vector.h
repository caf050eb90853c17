// Vectors of WIDTH floats by the compiler's vector extension, loads from the three element types, and exp.
#pragma once

#include <cstdint>
#include <cstring>

#if defined(__F16C__)
#include <immintrin.h>
#endif

namespace openai_kv {
namespace {  // compiled once per instruction set: nothing here may be shared between them

constexpr int W = WIDTH;
using vec = float __attribute__((vector_size(4 * W)));
using ivec = int32_t __attribute__((vector_size(4 * W)));
using uvec = uint32_t __attribute__((vector_size(4 * W)));
using hvec = uint16_t __attribute__((vector_size(2 * W)));

struct bf16 {
  uint16_t bits;
};
struct f16 {
  uint16_t bits;
};

template <class To, class From>
inline To as(From from) {
  static_assert(sizeof(To) == sizeof(From));
  To to;
  memcpy(&to, &from, sizeof to);
  return to;
}

template <class V, class T>
inline V read(const T* p) {
  V v;
  memcpy(&v, p, sizeof v);
  return v;
}

inline vec splat(float x) { return x - vec{}; }
inline vec load(const float* p) { return read<vec>(p); }

// gcc makes five instructions of a __builtin_convertvector to 512 bits, hence the intrinsics.
inline uvec load_half(const uint16_t* p) {
#if WIDTH == 16
  return uvec(_mm512_cvtepu16_epi32(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#else
  return __builtin_convertvector(read<hvec>(p), uvec);
#endif
}

inline vec load(const bf16* p) { return as<vec>(load_half(&p->bits) << 16); }

inline vec load(const f16* p) {
#if WIDTH == 16
  return vec(_mm512_cvtph_ps(_mm256_loadu_si256(reinterpret_cast<const __m256i*>(p))));
#elif WIDTH == 8
  return vec(_mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(p))));
#else
  // Moves the exponent by a multiplication, exact for subnormals too; infinities become 65536.
  uvec half = load_half(&p->bits);
  vec magnitude = as<vec>((half & 0x7fff) << 13) * 0x1p112f;
  return as<vec>(as<uvec>(magnitude) | (half & 0x8000) << 16);
#endif
}

inline float load_one(const float* p) { return *p; }
inline float load_one(const bf16* p) { return as<float>(uint32_t(p->bits) << 16); }
inline float load_one(const f16* p) {
  float magnitude = as<float>(uint32_t(p->bits & 0x7fff) << 13) * 0x1p112f;
  return p->bits & 0x8000 ? -magnitude : magnitude;
}

inline void store(float* p, vec v) { memcpy(p, &v, sizeof v); }

inline void store_one(float* p, float x) { *p = x; }

// Round to nearest, ties to even.
inline void store_one(bf16* p, float x) {
  uint32_t bits = as<uint32_t>(x);
  p->bits = x != x ? 0x7fc0 : uint16_t((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

// The same; adding 0.5 aligns a subnormal result's last bit with the float's (F. Giesen, float_to_half_fast3_rtne).
inline void store_one(f16* p, float x) {
  uint32_t bits = as<uint32_t>(x) & 0x7fffffff, sign = as<uint32_t>(x) >> 16 & 0x8000, half;
  if (bits >= 0x47800000) {
    half = bits > 0x7f800000 ? 0x7e00 : 0x7c00;
  } else if (bits < 0x38800000) {
    half = as<uint32_t>(as<float>(bits) + 0.5f) - 0x3f000000;
  } else {
    half = (bits - 0x38000000 + 0xfff + (bits >> 13 & 1)) >> 13;
  }
  p->bits = uint16_t(half | sign);
}

inline void store(bf16* p, vec x) {
  uvec bits = as<uvec>(x), nan = as<uvec>(x != x);
  uvec rounded = (((bits + 0x7fff + (bits >> 16 & 1)) >> 16) & ~nan) | (nan & 0x7fc0);
#if WIDTH == 16
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(p), _mm512_cvtepi32_epi16(__m512i(rounded)));
#else
  hvec halves = __builtin_convertvector(rounded, hvec);
  memcpy(p, &halves, sizeof halves);
#endif
}

inline void store(f16* p, vec x) {
  for (int i = 0; i < W; ++i) store_one(p + i, x[i]);
}

// The first `count` elements, or all; what is not there reads as 0.
template <class T>
inline vec load_some(const T* p, int count) {
  if (count >= W) return load(p);
  T some[W] = {};
  for (int i = 0; i < count; ++i) some[i] = p[i];
  return load(some);
}

template <class T>
inline void store_some(T* p, vec x, int count) {
  if (count >= W) return store(p, x);
  for (int i = 0; i < count; ++i) store_one(p + i, x[i]);
}

constexpr int kAhead = 4096;

// Gets these bytes on their way to the second cache. To the first instead, linear layers take 1.05 (bfloat16, int8) and
// 1.09 (int4) times as long.
template <int bytes>
inline void fetch(const void* from) {
  for (int i = 0; i < bytes; i += 64) __builtin_prefetch(static_cast<const char*>(from) + i, 0, 2);
}

// The same for what lies kAhead behind them; the hardware stops at the end of each page. Measured with AVX-512 and weights
// that lie in memory: linear layers take 1/1.2 of the time at 1 row, 1/1.3 at 4 and 8.
template <int bytes>
inline void fetch_ahead(const void* from) {
  fetch<bytes>(static_cast<const char*>(from) + kAhead);
}

inline vec max(vec a, vec b) { return a > b ? a : b; }
inline ivec iota() {
  ivec v;
  for (int i = 0; i < W; ++i) v[i] = i;
  return v;
}

// e^x for x <= 88, to 2 ulp: x = n ln 2 + r, a polynomial in r (Cephes' expf); below -87, where floats end, exactly 0.
inline vec exp(vec x) {
  vec low = splat(-87.f), y = max(x, low);
  vec n = y * 1.44269504f + 12582912.f - 12582912.f;
  vec r = y - n * 0.693359375f + n * 2.12194440e-4f;
  vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
  p = p * r + 8.3334519073e-3f;
  p = p * r + 4.1665795894e-2f;
  p = p * r + 1.6666665459e-1f;
  p = p * r + 5.0000001201e-1f;
  p = p * r * r + r + 1.f;
  vec scaled = as<vec>(as<ivec>(p) + (__builtin_convertvector(n, ivec) << 23));
  return x < low ? vec{} : scaled;
}

// cap * tanh(x / cap)
inline vec soft_cap(vec x, float cap) {
  vec y = x * (2.f / cap), limit = splat(40.f);
  vec e = exp(y > limit ? limit : y);
  return cap * ((e - 1.f) / (e + 1.f));
}

// Sums of neighbours, a's before b's.
inline vec add_pairs(vec a, vec b) {
#if __has_builtin(__builtin_shufflevector)
#define OPENAI_KV_SHUFFLE(...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
#define OPENAI_KV_SHUFFLE(...) __builtin_shuffle(a, b, ivec{__VA_ARGS__})
#endif
#if WIDTH == 16
  return OPENAI_KV_SHUFFLE(0, 2, 4, 6, 8, 10, 12, 14, 16, 18, 20, 22, 24, 26, 28, 30) +
         OPENAI_KV_SHUFFLE(1, 3, 5, 7, 9, 11, 13, 15, 17, 19, 21, 23, 25, 27, 29, 31);
#elif WIDTH == 8
  return OPENAI_KV_SHUFFLE(0, 2, 4, 6, 8, 10, 12, 14) + OPENAI_KV_SHUFFLE(1, 3, 5, 7, 9, 11, 13, 15);
#else
  return OPENAI_KV_SHUFFLE(0, 2, 4, 6) + OPENAI_KV_SHUFFLE(1, 3, 5, 7);
#endif
}

// Element j of the result is the sum of v[j]'s elements; v is overwritten.
inline vec row_sums(vec* v) {
  for (int n = W; n > 1; n /= 2) {
    for (int i = 0; i < n / 2; ++i) v[i] = add_pairs(v[2 * i], v[2 * i + 1]);
  }
  return v[0];
}

}  // namespace
}  // namespace openai_kv
