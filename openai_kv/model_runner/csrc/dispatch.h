// Picks the instruction set, and runs pieces of work on torch's threads.
#pragma once

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <atomic>
#include <vector>

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

// Pieces of work next .. end, on a cache line of its own.
struct alignas(64) Run {
  std::atomic<int64_t> next;
  int64_t end;
};

struct Nothing {
  void operator()() const {}
};

// Runs f(i) for i < n. Each thread has a run of neighbours, and helps the others when it is through with it, as pieces
// differ in size. Each thread ends with `done`.
template <class F, class Done = Nothing>
void for_each(int64_t n, const F& f, const Done& done = {}) {
  int64_t threads = std::min<int64_t>(n, at::get_num_threads());
  std::vector<Run> runs(threads);
  for (int64_t t = 0; t < threads; ++t) runs[t].next = n * t / threads, runs[t].end = n * (t + 1) / threads;
  at::parallel_for(0, threads, 1, [&](int64_t first, int64_t) {
    for (int64_t t = 0; t < threads; ++t) {
      Run& run = runs[(first + t) % threads];
      for (int64_t i = run.next++; i < run.end; i = run.next++) f(i);
    }
    done();
  });
}

}  // namespace openai_kv
