// The operators of linear layers with int8 weights, on tensors.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "dispatch.h"
#include "int8.h"
#include "linear_operators.h"

namespace openai_kv {
namespace {

const Int8Kernels& int8_kernels_for(int64_t width) {
#if defined(__x86_64__)
  const Kernels& kernels = kernels_for(width);
  if (&kernels == &kernels_avx512 && __builtin_cpu_supports("avx512vnni")) return int8_avx512;
  if (&kernels != &kernels_generic) return int8_avx2;
#endif
  return int8_generic;
}

int64_t groups_of(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

void pack_column(const float* weight, int64_t depth, int64_t group, int column, Int8Weights& to) {
  float values[kGroup] = {}, most = 0;
  for (int64_t k = 0; k < kGroup && group * kGroup + k < depth; ++k) {
    values[k] = weight[group * kGroup + k];
    most = std::max(most, std::fabs(values[k]));
  }
  to.scales[column] = most / 127.f;
  for (int k = 0; k < kGroup; ++k) {
    float scaled = most > 0 ? values[k] * (127.f / most) : 0.f;
    to.values[k / 4][column][k % 4] = uint8_t(128 + std::lrintf(scaled));
  }
}

// weight [columns, depth] float32 -> [panels, groups, bytes of Int8Weights] uint8.
Tensor pack_int8(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && weight.scalar_type() == at::kFloat && weight.stride(1) == 1,
              "pack_int8: a float32 matrix, dense in its rows");
  int64_t columns = weight.size(0), depth = weight.size(1), groups = groups_of(depth);
  int64_t panels = (columns + kInt8Panel - 1) / kInt8Panel;
  Tensor packed = at::empty({panels, groups, int64_t(sizeof(Int8Weights))}, weight.options().dtype(at::kByte));
  auto* to = static_cast<Int8Weights*>(packed.data_ptr());
  const float* from = weight.const_data_ptr<float>();
  at::parallel_for(0, panels * groups, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      for (int c = 0; c < kInt8Panel; ++c) {
        int64_t column = i / groups * kInt8Panel + c;
        pack_column(from + column * weight.stride(0), column < columns ? depth : 0, i % groups, c, to[i]);
      }
    }
  });
  return packed;
}

void check_int8(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t columns) {
  TORCH_CHECK(weight.dim() == 3 && weight.is_contiguous() && weight.size(2) == sizeof(Int8Weights) &&
                  groups_of(x.size(-1)) == weight.size(1) &&
                  (columns + kInt8Panel - 1) / kInt8Panel == weight.size(0),
              "int8_linear: x ", x.sizes(), " does not fit ", columns, " columns in ", weight.sizes());
  TORCH_CHECK(type_of(x) < kInt8Types, "int8_linear: x must be float32 or bfloat16, not ", x.scalar_type());
  TORCH_CHECK(!bias || (bias->scalar_type() == at::kFloat && bias->is_contiguous() && bias->numel() == columns),
              "int8_linear: the bias must be ", columns, " contiguous float32");
}

// x [.., depth] @ weight.T + bias, weight as pack_int8 made it; returns [.., columns] of x's type.
Tensor int8_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t columns,
                   int64_t width) {
  check_int8(x, weight, bias, columns);
  int64_t groups = weight.size(1), panels = weight.size(0), size = x.size(-1);
  Tensor dense = x.stride(-1) == 1 ? x : x.contiguous();
  Tensor from = dense.dim() == 2 ? dense : dense.reshape({-1, size});
  int64_t rows = from.size(0), tiles = (rows + kInt8Rows - 1) / kInt8Rows;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = columns;
  Tensor out = at::empty(sizes, x.options());
  std::vector<Int8Rows> quantized(tiles * groups);
  const Int8Kernels& kernels = int8_kernels_for(width);
  int type = type_of(x);
  auto rows_of = [&](int64_t tile) { return int(std::min<int64_t>(kInt8Rows, rows - tile * kInt8Rows)); };
  at::parallel_for(0, tiles, 8, [&](int64_t first, int64_t last) {
    for (int64_t tile = first; tile < last; ++tile) {
      const char* at = static_cast<const char*>(from.const_data_ptr()) +
                       tile * kInt8Rows * from.stride(0) * from.element_size();
      kernels.quantize[type](at, from.stride(0), rows_of(tile), int(size), int(groups), &quantized[tile * groups]);
    }
  });
  Int8Linear linear{quantized.data(), static_cast<const Int8Weights*>(weight.const_data_ptr()),
                    bias ? bias->const_data_ptr<float>() : nullptr, out.data_ptr(), int(groups), columns};
  int64_t step = std::max<int64_t>(1, kRowBytes / int64_t(groups * sizeof(Int8Rows))), parts = (tiles + step - 1) / step;
  for_each(panels * parts, [&](int64_t i) {
    int64_t first = i % parts * step;
    for (int64_t tile = first; tile < std::min(first + step, tiles); ++tile) {
      kernels.multiply[type](linear, tile * kInt8Rows, rows_of(tile), i / parts);
    }
  });
  return out;
}

}  // namespace
}  // namespace openai_kv
