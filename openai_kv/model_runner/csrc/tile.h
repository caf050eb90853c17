// What both ways of attending share: where the rows of a tile lie, and what a lane may see.
#pragma once

#include "kernels.h"
#include "vector.h"

namespace openai_kv {
namespace {

constexpr float kLowest = -1e30f;          // running maximum before anything was seen; exp(kLowest - x) is 0
constexpr float kMasked = -__builtin_inff();
constexpr int kColumns = W == 16 ? 4 : 2;  // vectors per register tile, by the number of registers
constexpr int kRows = 4;

inline int round_up(int x, int to) { return (x + to - 1) / to * to; }
inline int min(int a, int b) { return a < b ? a : b; }
inline int max(int a, int b) { return a > b ? a : b; }

// Up to kTile positions from `begin` and where their rows lie in the pool.
template <class T>
struct Tile {
  int begin, count;
  int64_t rows[kTile];
  const T *keys, *values;

  Tile(const Layer& layer, const Lanes& lanes, int begin, int end)
      : begin(begin), count(min(end - begin, kTile)), keys(static_cast<const T*>(layer.keys)),
        values(static_cast<const T*>(layer.values)) {
    int block = begin / layer.block_size, slot = begin % layer.block_size;
    for (int n = 0; n < count; ++block, slot = 0) {
      int64_t head = int64_t(lanes.block_table[block]) * layer.kv_heads + lanes.kv_head;
      int64_t row = (head * layer.block_size + slot) * layer.head_dim;
      int stop = min(count, n + layer.block_size - slot);
      for (; n < stop; ++n, row += layer.head_dim) rows[n] = row;
    }
  }
  const T* key(int n) const { return keys + rows[n]; }
  const T* value(int n) const { return values + rows[n]; }
};

// The positions a lane may see: first .. last.
struct Span {
  int first, last;

  Span(const Layer& layer, const Lanes& lanes, int i) {
    last = lanes.first_position + lanes.row(i, layer.group);
    first = layer.window ? max(0, last - layer.window + 1) : 0;
  }
};

// Calls f with lane i's query vector.
template <class F>
void with_query(const Layer& layer, const Lanes& lanes, int i, F f) {
  int64_t row = lanes.first_row + lanes.row(i, layer.group);
  int64_t at = row * layer.query_row + lanes.head(i, layer.group) * layer.query_head;
  switch (layer.query_type) {
    case 0: return f(static_cast<const float*>(layer.query) + at);
    case 1: return f(static_cast<const bf16*>(layer.query) + at);
    default: return f(static_cast<const f16*>(layer.query) + at);
  }
}

}  // namespace
}  // namespace openai_kv
