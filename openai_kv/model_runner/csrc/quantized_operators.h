// The operators of linear layers with int8 and int4 weights, on tensors.
#pragma once

#include <ATen/ops/empty.h>

#include <algorithm>
#include <cmath>
#include <optional>
#include <vector>

#include "dispatch.h"
#include "linear_operators.h"
#include "quantized.h"

namespace openai_kv {
namespace {

const QuantizedKernels& quantized_kernels(int64_t width) {
#if defined(__x86_64__)
  const Kernels& kernels = kernels_for(width);
  if (&kernels == &kernels_avx512 && __builtin_cpu_supports("avx512vnni")) return quantized_avx512;
  if (&kernels != &kernels_generic) return quantized_avx2;
#endif
  return quantized_generic;
}

auto multiply_of(const QuantizedKernels& kernels, int type, const Int8Weights*) { return kernels.multiply_int8[type]; }
auto multiply_of(const QuantizedKernels& kernels, int type, const Int4Weights*) { return kernels.multiply_int4[type]; }

int64_t groups_of(int64_t depth) { return (depth + kGroup - 1) / kGroup; }

// `count` weights of one column, at most a group.
void pack_column(const float* values, int count, int column, Int8Weights& to) {
  float most = 0;
  for (int k = 0; k < count; ++k) most = std::max(most, std::fabs(values[k]));
  at::Half scale(most / 127.f);
  float inverse = float(scale) > 0 ? 1.f / float(scale) : 0.f;
  to.scales[column] = scale.x;
  for (int k = 0; k < kGroup; ++k) {
    float scaled = k < count ? std::clamp(values[k] * inverse, -127.f, 127.f) : 0.f;
    to.values[k / 4][column][k % 4] = uint8_t(Int8Weights::kZero + std::lrintf(scaled));
  }
}

// The integers by smallest and largest, scale and minimum by least squares for them: numbers that were on such a grid
// before they were rounded get the same integers and nearly the same grid.
void pack_column(const float* values, int count, int column, Int4Weights& to) {
  constexpr int kHalf = kGroup / 2;
  float low = count ? *std::min_element(values, values + count) : 0.f;
  float high = count ? *std::max_element(values, values + count) : 0.f;
  float inverse = high > low ? 15.f / (high - low) : 0.f;
  int integers[kGroup] = {};
  double n = count, sum = 0, squares = 0, total = 0, products = 0;
  for (int k = 0; k < count; ++k) {
    int integer = integers[k] = std::min(15, int(std::lrintf((values[k] - low) * inverse)));
    sum += integer;
    squares += integer * integer;
    total += values[k];
    products += double(integer) * values[k];
  }
  double spread = n * squares - sum * sum;
  at::Half scale(spread > 0 ? float((n * products - sum * total) / spread) : 0.f);
  at::Half minimum(count ? float((total - float(scale) * sum) / n) : 0.f);
  to.scales[column] = scale.x;
  to.minimums[column] = minimum.x;
  for (int k = 0; k < kHalf; ++k) {
    to.values[k / 4][column][k % 4] = uint8_t(integers[k] | integers[k + kHalf] << 4);
  }
}

// weight [columns, depth] float32 -> [panels, groups, bytes of Weights] uint8.
template <class Weights>
Tensor pack_weights(const Tensor& weight) {
  int64_t columns = weight.size(0), depth = weight.size(1), groups = groups_of(depth);
  int64_t panels = (columns + kQuantizedPanel - 1) / kQuantizedPanel;
  Tensor packed = at::empty({panels, groups, int64_t(sizeof(Weights))}, weight.options().dtype(at::kByte));
  auto* to = static_cast<Weights*>(packed.data_ptr());
  const float* from = weight.const_data_ptr<float>();
  at::parallel_for(0, panels * groups, 1, [&](int64_t first, int64_t last) {
    for (int64_t i = first; i < last; ++i) {
      int64_t start = i % groups * kGroup, count = std::min<int64_t>(kGroup, depth - start);
      for (int c = 0; c < kQuantizedPanel; ++c) {
        int64_t column = i / groups * kQuantizedPanel + c;
        pack_column(from + column * weight.stride(0) + start, column < columns ? int(count) : 0, c, to[i]);
      }
    }
  });
  return packed;
}

Tensor pack_quantized(const Tensor& weight, int64_t bits) {
  TORCH_CHECK(weight.dim() == 2 && weight.scalar_type() == at::kFloat && weight.stride(1) == 1,
              "pack_quantized: a float32 matrix, dense in its rows");
  TORCH_CHECK(bits == 4 || bits == 8, "pack_quantized: 4 or 8 bits, not ", bits);
  return bits == 4 ? pack_weights<Int4Weights>(weight) : pack_weights<Int8Weights>(weight);
}

template <class Weights>
void check_quantized(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t columns) {
  TORCH_CHECK(weight.dim() == 3 && weight.is_contiguous() && weight.size(2) == sizeof(Weights) &&
                  groups_of(x.size(-1)) == weight.size(1) &&
                  (columns + kQuantizedPanel - 1) / kQuantizedPanel == weight.size(0),
              "quantized_linear: x ", x.sizes(), " does not fit ", columns, " columns in ", weight.sizes());
  TORCH_CHECK(type_of(x) < kQuantizedTypes, "quantized_linear: x must be float32 or bfloat16, not ", x.scalar_type());
  TORCH_CHECK(!bias || (bias->scalar_type() == at::kFloat && bias->is_contiguous() && bias->numel() == columns),
              "quantized_linear: the bias must be ", columns, " contiguous float32");
}

template <class Weights>
Tensor multiply_quantized(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t columns,
                          int64_t width) {
  check_quantized<Weights>(x, weight, bias, columns);
  int64_t groups = weight.size(1), panels = weight.size(0), size = x.size(-1);
  Tensor dense = x.stride(-1) == 1 ? x : x.contiguous();
  Tensor from = dense.dim() == 2 ? dense : dense.reshape({-1, size});
  int64_t rows = from.size(0), tiles = (rows + kQuantizedRows - 1) / kQuantizedRows;
  std::vector<int64_t> sizes = x.sizes().vec();
  sizes.back() = columns;
  Tensor out = at::empty(sizes, x.options());
  std::vector<Activations> quantized(tiles * groups);
  const QuantizedKernels& kernels = quantized_kernels(width);
  int type = type_of(x);
  auto rows_of = [&](int64_t tile) { return int(std::min<int64_t>(kQuantizedRows, rows - tile * kQuantizedRows)); };
  at::parallel_for(0, tiles, 8, [&](int64_t first, int64_t last) {
    for (int64_t tile = first; tile < last; ++tile) {
      const char* at = static_cast<const char*>(from.const_data_ptr()) +
                       tile * kQuantizedRows * from.stride(0) * from.element_size();
      kernels.quantize[type](at, from.stride(0), rows_of(tile), int(size), int(groups), &quantized[tile * groups]);
    }
  });
  auto* weights = static_cast<const Weights*>(weight.const_data_ptr());
  QuantizedLinear<Weights> linear{quantized.data(), weights,        bias ? bias->const_data_ptr<float>() : nullptr,
                                  out.data_ptr(),   int(groups), columns};
  auto multiply = multiply_of(kernels, type, weights);
  int64_t step = std::max<int64_t>(1, kRowBytes / int64_t(groups * sizeof(Activations)));
  int64_t parts = (tiles + step - 1) / step;
  for_each(panels * parts, [&](int64_t i) {
    int64_t first = i % parts * step;
    for (int64_t tile = first; tile < std::min(first + step, tiles); ++tile) {
      multiply(linear, tile * kQuantizedRows, rows_of(tile), i / parts);
    }
  });
  return out;
}

// x [.., depth] @ weight.T + bias, weight as pack_quantized made it; returns [.., columns] of x's type.
Tensor quantized_linear(const Tensor& x, const Tensor& weight, const std::optional<Tensor>& bias, int64_t columns,
                        int64_t bits, int64_t width) {
  TORCH_CHECK(bits == 4 || bits == 8, "quantized_linear: 4 or 8 bits, not ", bits);
  return bits == 4 ? multiply_quantized<Int4Weights>(x, weight, bias, columns, width)
                   : multiply_quantized<Int8Weights>(x, weight, bias, columns, width);
}

}  // namespace
}  // namespace openai_kv
