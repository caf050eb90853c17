// Picks the instruction set, and runs pieces of work on torch's threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <atomic>

#include "kernels.h"

namespace openai_kv {

using at::Tensor;

inline int type_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return 0;
    case at::kBFloat16: return 1;
    case at::kHalf: return 2;
    default: TORCH_CHECK(false, "openai_kv: float32, bfloat16 or float16, not ", tensor.scalar_type());
  }
}

inline const Kernels& best_kernels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return kernels_avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) {
    return kernels_avx2;
  }
#endif
  return kernels_generic;
}

inline const Kernels& kernels_for(int64_t width) {
  const Kernels& best = best_kernels();
#if defined(__x86_64__)
  if (width == 8 && &best == &kernels_avx512) return kernels_avx2;
#endif
  return width == 4 ? kernels_generic : best;
}

struct Nothing {
  void operator()() const {}
};

// Runs f(i) for i < n; whoever is free takes the next, as pieces differ in size. Each thread ends with `done`.
template <class F, class Done = Nothing>
void for_each(int64_t n, const F& f, const Done& done = {}) {
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min<int64_t>(n, at::get_num_threads()), 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < n; i = next++) f(i);
    done();
  });
}

}  // namespace openai_kv
