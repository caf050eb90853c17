// The operators of packed linear layers, on tensors.
#pragma once

#include <ATen/native/CPUBlas.h>
#include <ATen/ops/constant_pad_nd.h>
#include <ATen/ops/empty.h>

#include <algorithm>
#include <optional>
#include <vector>

#include "dispatch.h"

namespace openai_kv {
namespace {

constexpr int64_t kRowBytes = 1 << 19;  // of activations that stay in the cache while a panel goes by

// weight [columns, depth] -> [panels, depth / 2, kPanel, 2] (bfloat16) or [panels, depth / 2, 2, kPanel] (float32).
Tensor pack_linear(const Tensor& weight) {
  TORCH_CHECK(weight.dim() == 2 && type_of(weight) < 2, "pack_linear: a float32 or bfloat16 matrix, not ",
              weight.scalar_type(), " ", weight.sizes());
  int64_t columns = weight.size(0), depth = weight.size(1), panels = (columns + kPanel - 1) / kPanel;
  bool whole = depth % 2 == 0 && columns % kPanel == 0;
  Tensor padded = whole ? weight : at::constant_pad_nd(weight, {0, depth % 2, 0, panels * kPanel - columns});
  Tensor pairs = padded.reshape({panels, kPanel, -1, 2});
  return (weight.scalar_type() == at::kFloat ? pairs.permute({0, 2, 3, 1}) : pairs.permute({0, 2, 1, 3})).contiguous();
}

void check_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t columns) {
  TORCH_CHECK(weight.dim() == 4 && weight.is_contiguous() && (x.size(-1) + 1) / 2 == weight.size(1) &&
                  (columns + kPanel - 1) / kPanel == weight.size(0),
              "packed_linear: x ", x.sizes(), " does not fit ", columns, " columns in ", weight.sizes());
  TORCH_CHECK(x.scalar_type() == weight.scalar_type(), "packed_linear: x and weight differ in dtype");
  TORCH_CHECK(!bias || (bias->scalar_type() == at::kFloat && bias->is_contiguous() && bias->numel() == columns),
              "packed_linear: the bias must be ", columns, " contiguous float32");
}

// Even tiles: 8 and 8 rows rather than 12 and 4.
int64_t rows_of_tile(int64_t rows, int64_t most) {
  int64_t tiles = std::max<int64_t>((rows + most - 1) / most, 1);
  return std::max<int64_t>((rows + tiles - 1) / tiles, 1);
}

int64_t rows_at_a_time(int64_t depth, int64_t tile) { return std::max<int64_t>(kRowBytes / (4 * depth * tile), 1) * tile; }

// Whether torch has a kernel of its own for our panels: with AMX, many rows are several times faster.
bool has_brgemm() { return at::native::cpublas::could_pack(at::kBFloat16); }

constexpr int64_t kBrgemmRows = 64;

// rows [n, depth] bfloat16
void multiply_by_brgemm(const Tensor& rows, const Tensor& weight, const float* bias, int64_t columns, Tensor& out) {
  int64_t n = rows.size(0), depth = rows.size(1), parts = (n + kBrgemmRows - 1) / kBrgemmRows;
  auto* to = out.data_ptr<at::BFloat16>();
  auto run = [&](int64_t i) {
    float sums[kBrgemmRows * kPanel];
    int64_t first = i % parts * kBrgemmRows, count = std::min(kBrgemmRows, n - first), column = i / parts * kPanel;
    at::native::cpublas::brgemm(count, kPanel, depth, rows.stride(0), kPanel, kPanel, false,
                                rows.const_data_ptr<at::BFloat16>() + first * rows.stride(0),
                                weight.const_data_ptr<at::BFloat16>() + column * depth, sums);
    for (int64_t r = 0; r < count; ++r) {
      for (int64_t c = 0; c < std::min<int64_t>(kPanel, columns - column); ++c) {
        to[(first + r) * columns + column + c] = sums[r * kPanel + c] + (bias ? bias[column + c] : 0.f);
      }
    }
  };
  for_each(weight.size(0) * parts, run, [] { at::native::cpublas::brgemm_release(); });
}

// x [.., depth] @ weight.T + bias, weight as pack_linear made it; returns [.., columns]. Of bfloat16, brgemm_rows rows or
// more are left to torch; 0: none.
Tensor packed_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t columns,
                     int64_t brgemm_rows, int64_t width) {
  check_linear(x, weight, bias, columns);
  int64_t depth = 2 * weight.size(1), panels = weight.size(0), size = x.size(-1);
  Tensor dense = x.stride(-1) == 1 ? x : x.contiguous();
  Tensor from = dense.dim() == 2 ? dense : dense.reshape({-1, size});
  const Kernels& kernels = kernels_for(width);
  int64_t rows = from.size(0), tile = rows_of_tile(rows, kernels.tile_rows);
  int64_t step = rows_at_a_time(depth, tile), groups = (rows + step - 1) / step;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = columns;
  Tensor out = at::empty(sizes, x.options());
  const float* bias_at = bias ? bias->const_data_ptr<float>() : nullptr;
  if (brgemm_rows > 0 && rows >= brgemm_rows && size == depth && x.scalar_type() == at::kBFloat16) {
    multiply_by_brgemm(from, weight, bias_at, columns, out);
    return out;
  }
  Tensor floats = at::empty({rows * depth}, x.options().dtype(at::kFloat));
  int type = type_of(x);
  at::parallel_for(0, (rows + tile - 1) / tile, 4, [&](int64_t first, int64_t last) {
    kernels.arrange[type](from.const_data_ptr(), from.stride(0), int(size), int(depth), int(tile), first * tile,
                          std::min(last * tile, rows), floats.data_ptr<float>());
  });
  Linear linear{floats.const_data_ptr<float>(), weight.const_data_ptr(), bias_at, out.data_ptr(), int(depth), columns,
                int(tile)};
  for_each(panels * groups, [&](int64_t i) {
    int64_t first = i % groups * step;
    kernels.multiply[type](linear, first, std::min(first + step, rows), i / groups);
  });
  return out;
}

}  // namespace
}  // namespace openai_kv
