// What a decoder layer does between its matrices, one row at a time; in float32, rounded where the result is stored.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace openai_kv {
namespace {

// The value once it is stored as T.
template <class T>
inline vec rounded(vec x) {
  T stored[W];
  store(stored, x);
  return load(stored);
}

// RMSNorm (Zhang and Sennrich 2019).
template <class T>
void norm(const Norm& norm, const void* from, void* to) {
  const T* x = static_cast<const T*>(from);
  T* out = static_cast<T*>(to);
  vec squares{};
  for (int i = 0; i < norm.size; i += W) {
    vec v = load_some(x + i, norm.size - i);
    squares += v * v;
  }
  float sum = 0;
  for (int l = 0; l < W; ++l) sum += squares[l];
  float scale = 1.f / __builtin_sqrtf(sum / float(norm.size) + norm.epsilon);
  for (int i = 0; i < norm.size; i += W) {
    vec v = load_some(x + i, norm.size - i) * scale;
    if (norm.rounds) v = rounded<T>(v);
    store_some(out + i, v * load_some(norm.weight + i, norm.size - i), norm.size - i);
  }
}

template <class T>
void add(const void* x, const void* y, void* to, int size) {
  const T *a = static_cast<const T*>(x), *b = static_cast<const T*>(y);
  T* out = static_cast<T*>(to);
  for (int i = 0; i < size; i += W) store_some(out + i, load_some(a + i, size - i) + load_some(b + i, size - i), size - i);
}

inline vec silu(vec x) {
  vec limit = splat(-87.f);
  return x / (1.f + exp(-max(x, limit)));
}

// The approximation by tanh: x / (1 + e^(-2 y)).
inline vec gelu_tanh(vec x) {
  vec y = 0.7978845608f * (x + 0.044715f * x * x * x);
  return x / (1.f + exp(-2.f * max(y, splat(-43.f))));
}

// out = act(gate) * up; the activation is rounded to T as a layer of its own would.
template <class T>
void gate(int activation, const void* gates, const void* ups, void* to, int size) {
  const T *gate = static_cast<const T*>(gates), *up = static_cast<const T*>(ups);
  T* out = static_cast<T*>(to);
  for (int i = 0; i < size; i += W) {
    vec g = load_some(gate + i, size - i);
    vec activated = rounded<T>(activation == 0 ? silu(g) : gelu_tanh(g));
    store_some(out + i, activated * load_some(up + i, size - i), size - i);
  }
}

// Rotary position embedding over the first 2 * half elements (Su et al. 2021), halves rotated against each other.
template <class T>
void rotate(void* row, const void* cosines, const void* sines, int half) {
  T* x = static_cast<T*>(row);
  const T *cosine = static_cast<const T*>(cosines), *sine = static_cast<const T*>(sines);
  for (int i = 0; i < half; i += W) {
    int count = half - i;
    vec a = load_some(x + i, count), b = load_some(x + half + i, count);
    vec first = a * load_some(cosine + i, count) - b * load_some(sine + i, count);
    vec second = b * load_some(cosine + half + i, count) + a * load_some(sine + half + i, count);
    store_some(x + i, first, count);
    store_some(x + half + i, second, count);
  }
}

}  // namespace
}  // namespace openai_kv
