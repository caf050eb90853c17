// x @ weight.T + bias for packed weights, sums in float32. An output is the sum over the depth in one order, whatever
// else is computed with it: a row's result does not depend on the other rows of a call.
#pragma once

#include <utility>

#include "kernels.h"
#include "vector.h"

namespace openai_kv {
namespace {

// Sums of kTileRows x kTileVectors vectors fill the registers but for two steps' weights and one element of x. Of 16
// registers 6 rows take too many: with bfloat16 two sums go to memory and back at each step, and 28 rows take 1.4 times as long.
constexpr int kTileRows = W == 16 ? 12 : 4;
constexpr int kTileVectors = 2;
constexpr int kTileColumns = kTileVectors * W;
static_assert(kPanel % kTileColumns == 0);

// Weights of an even and the following odd step of the depth, for W columns.
inline void load_steps(const float* pair, int column, vec& even, vec& odd) {
  even = load(pair + column);
  odd = load(pair + kPanel + column);
}

inline void load_steps(const bf16* pair, int column, vec& even, vec& odd) {
  uvec both = read<uvec>(pair + 2 * column);  // the two steps of a column lie side by side
  even = as<vec>(both << 16);
  odd = as<vec>(both & 0xffff0000u);
}

// `ahead`: what is fetched meanwhile, `stride` further on in each step.
template <class T, int Rows>
void tile(const Linear& linear, const float* x, int64_t row, const T* weights, int64_t column, const char* ahead,
          int stride) {
  vec sums[Rows][kTileVectors] = {};
  for (int k = 0; k < linear.depth; k += 2, x += 2 * Rows, weights += 2 * kPanel, ahead += stride) {
    vec even[kTileVectors], odd[kTileVectors];
    fetch<2 * kPanel * sizeof(T)>(ahead);
    for (int c = 0; c < kTileVectors; ++c) load_steps(weights, c * W, even[c], odd[c]);
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      for (int c = 0; c < kTileVectors; ++c) sums[r][c] += even[c] * x[r];
    }
#pragma GCC unroll 12
    for (int r = 0; r < Rows; ++r) {
      for (int c = 0; c < kTileVectors; ++c) sums[r][c] += odd[c] * x[Rows + r];
    }
  }
  int count = linear.columns - column < kTileColumns ? int(linear.columns - column) : kTileColumns;
  for (int r = 0; r < Rows; ++r) {
    T* out = static_cast<T*>(linear.out) + (row + r) * linear.columns + column;
    for (int c = 0; c < kTileVectors && c * W < count; ++c) {
      vec sum = sums[r][c];
      if (linear.bias) sum += load_some(linear.bias + column + c * W, count - c * W);
      store_some(out + c * W, sum, count - c * W);
    }
  }
}

template <class T, int... Less>
void some_rows(int rows, const Linear& linear, const float* x, int64_t row, const T* weights, int64_t column,
               const char* ahead, int stride, std::integer_sequence<int, Less...>) {
  static_cast<void>(
      ((rows == Less + 1 && (tile<T, Less + 1>(linear, x, row, weights, column, ahead, stride), true)) || ...));
}

// A panel that goes by once is fetched shortly before it is needed. One that goes by for several tiles of rows lies in the
// cache from the second on: each of them fetches its share of the next panel, so that memory is never idle. Measured with
// weights that lie in memory: 1/1.2 of the time at 16 and 32 rows.
template <class T>
void multiply(const Linear& linear, int64_t first, int64_t last, int64_t panel) {
  int64_t size = int64_t(kPanel) * linear.depth, tiles = (last - first + linear.tile_rows - 1) / linear.tile_rows;
  const T* weights = static_cast<const T*>(linear.weights) + panel * size;
  int share = int(2 * kPanel * sizeof(T) / tiles);
  const char* ahead = reinterpret_cast<const char*>(weights) + (tiles > 1 ? size * sizeof(T) : kAhead);
  for (int64_t row = first; row < last; row += linear.tile_rows, ahead += share * (linear.depth / 2)) {
    int rows = last - row < linear.tile_rows ? int(last - row) : linear.tile_rows;
    for (int c = 0; c < kPanel && panel * kPanel + c < linear.columns; c += kTileColumns) {
      some_rows<T>(rows, linear, linear.x + row * linear.depth, row, weights + (sizeof(T) == 2 ? 2 * c : c),
                   panel * kPanel + c, ahead, share, std::make_integer_sequence<int, kTileRows>{});
    }
  }
}

// Rows [first, last) of x as `multiply` reads them: tile_rows at a time, or as many as are left, step by step of the
// depth. What lies behind `size` is 0.
template <class T>
void arrange(const void* x, int64_t stride, int size, int depth, int tile_rows, int64_t first, int64_t last, float* to) {
  for (int64_t row = first; row < last; row += tile_rows) {
    int rows = last - row < tile_rows ? int(last - row) : tile_rows;
    for (int r = 0; r < rows; ++r) {
      const T* from = static_cast<const T*>(x) + (row + r) * stride;
      float* at = to + row * depth + r;
      for (int k = 0; k < size; ++k) at[int64_t(k) * rows] = load_one(from + k);
      for (int k = size; k < depth; ++k) at[int64_t(k) * rows] = 0;
    }
  }
}

}  // namespace
}  // namespace openai_kv
