// The operators of a decoder layer's small parts, on tensors.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <vector>

#include "dispatch.h"

namespace openai_kv {
namespace {

constexpr int64_t kGrain = 4096;  // elements worth another thread

int64_t grain(int64_t size) { return std::max<int64_t>(1, kGrain / std::max<int64_t>(size, 1)); }

const char* at_row(const Tensor& x, int64_t row) {
  return static_cast<const char*>(x.const_data_ptr()) + row * x.stride(-2) * x.element_size();
}

// Rows [n, size] of equal stride, dense in the last dimension.
Tensor as_rows(const Tensor& x) {
  Tensor dense = x.stride(-1) == 1 ? x : x.contiguous();
  return dense.reshape({-1, x.size(-1)});
}

// weight float32 [size]; see rows.h
Tensor rms_norm(const Tensor& x, const Tensor& weight, double epsilon, bool rounds, int64_t width) {
  TORCH_CHECK(weight.scalar_type() == at::kFloat && weight.is_contiguous() && weight.numel() == x.size(-1),
              "rms_norm: the weight must be ", x.size(-1), " contiguous float32");
  Tensor rows = as_rows(x), out = at::empty(x.sizes(), x.options());
  Norm norm{weight.const_data_ptr<float>(), int(x.size(-1)), float(epsilon), rounds};
  auto run = kernels_for(width).norm[type_of(x)];
  int64_t bytes = x.size(-1) * x.element_size();
  char* to = static_cast<char*>(out.data_ptr());
  at::parallel_for(0, rows.size(0), grain(norm.size), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) run(norm, at_row(rows, row), to + row * bytes);
  });
  return out;
}

// x + y, of one shape and type, dense.
Tensor sum(const Tensor& x, const Tensor& y) {
  TORCH_CHECK(x.sizes() == y.sizes() && x.scalar_type() == y.scalar_type() && x.is_contiguous() && y.is_contiguous(),
              "sum: ", x.sizes(), " and ", y.sizes(), " do not fit together");
  Tensor out = at::empty(x.sizes(), x.options());
  auto run = kernels_for(0).add[type_of(x)];
  int64_t size = x.size(-1), bytes = size * x.element_size();
  char* to = static_cast<char*>(out.data_ptr());
  at::parallel_for(0, x.numel() / size, grain(size), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) run(at_row(x, row), at_row(y, row), to + row * bytes, int(size));
  });
  return out;
}

// gates_and_ups [.., 2 * size], gates first; returns act(gates) * ups [.., size]
Tensor gated(const Tensor& gates_and_ups, int64_t activation, int64_t width) {
  Tensor rows = as_rows(gates_and_ups);
  int64_t size = rows.size(1) / 2, bytes = size * rows.element_size();
  std::vector<int64_t> sizes = gates_and_ups.sizes().vec();
  sizes.back() = size;
  Tensor out = at::empty(sizes, rows.options());
  auto run = kernels_for(width).gate[type_of(rows)];
  char* to = static_cast<char*>(out.data_ptr());
  at::parallel_for(0, rows.size(0), grain(size), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      run(int(activation), at_row(rows, row), at_row(rows, row) + bytes, to + row * bytes, int(size));
    }
  });
  return out;
}

// Rotates x [T, heads, head_dim] in place by cos and sin [.., T, rotary_dim], all of one type.
void rotate(Tensor x, const Tensor& cos, const Tensor& sin, int64_t width) {
  TORCH_CHECK(x.dim() == 3 && x.stride(2) == 1 && cos.sizes() == sin.sizes() && cos.dim() >= 2 &&
                  cos.is_contiguous() && sin.is_contiguous() && cos.numel() == x.size(0) * cos.size(-1) &&
                  cos.size(-2) == x.size(0) && cos.size(-1) <= x.size(2) && cos.size(-1) % 2 == 0 &&
                  cos.scalar_type() == x.scalar_type() && sin.scalar_type() == x.scalar_type(),
              "rotate: x ", x.sizes(), " and cos ", cos.sizes(), " do not fit together");
  auto run = kernels_for(width).rotate[type_of(x)];
  int64_t size = x.element_size();
  char* data = static_cast<char*>(x.data_ptr());
  at::parallel_for(0, x.size(0), grain(x.size(1) * x.size(2)), [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      for (int64_t head = 0; head < x.size(1); ++head) {
        char* at = data + (row * x.stride(0) + head * x.stride(1)) * size;
        run(at, at_row(cos, row), at_row(sin, row), int(cos.size(-1) / 2));
      }
    }
  });
}

}  // namespace
}  // namespace openai_kv
