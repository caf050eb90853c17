// What both ways of attending share: where the rows of a tile lie, and what a lane may see.
#pragma once

#include "codes.h"

namespace openai_kv {
namespace {

constexpr float kLowest = -1e30f;          // running maximum before anything was seen; exp(kLowest - x) is 0
constexpr float kMasked = -__builtin_inff();
constexpr int kColumns = W == 16 ? 4 : 2;  // vectors per register tile, by the number of registers
constexpr int kRows = 4;

inline int round_up(int x, int to) { return (x + to - 1) / to * to; }
constexpr int min(int a, int b) { return a < b ? a : b; }
constexpr int max(int a, int b) { return a > b ? a : b; }

// Calls f with an element of an array of one of kTypes.
template <class F>
void with_type(int type, const void* array, int64_t at, F f) {
  switch (type) {
    case 0: return f(static_cast<const float*>(array) + at);
    case 1: return f(static_cast<const bf16*>(array) + at);
    default: return f(static_cast<const f16*>(array) + at);
  }
}

// The key at a position of the lanes' own block, as floats.
inline void open_key(const Layer& layer, const Lanes& lanes, int position, float* to) {
  int64_t head = int64_t(lanes.own_slot) * layer.kv_heads + lanes.kv_head;
  int64_t at = (head * layer.block_size + position % layer.block_size) * layer.head_dim;
  with_type(layer.query_type, layer.open_keys, at, [&](const auto* from) {
    for (int k = 0; k < layer.head_dim; ++k) to[k] = load_one(from + k);
  });
}

// Up to kTile positions from `begin`, where their rows lie in the pool, and what keys K and values V have beside them.
template <class K, class V>
struct Tile {
  int begin, count;
  int64_t rows[kTile];
  const K* keys;
  const V* values;
  [[no_unique_address]] Scales<K> key_scales;
  [[no_unique_address]] Scales<V> value_scales;

  Tile(const Layer& layer, const Lanes& lanes, int begin, int end)
      : begin(begin), count(min(end - begin, kTile)), keys(static_cast<const K*>(layer.keys)),
        values(static_cast<const V*>(layer.values)) {
    int block = begin / layer.block_size, slot = begin % layer.block_size;
    for (int n = 0; n < count; ++block, slot = 0) {
      int64_t head = int64_t(lanes.block_table[block]) * layer.kv_heads + lanes.kv_head;
      int64_t token = head * layer.block_size + slot, row = token * layer.head_dim;
      int stop = min(count, n + layer.block_size - slot);
      bool is_open = kByChannel<K> && lanes.own_slot >= 0 && block == lanes.first_position / layer.block_size;
      key_scales.read(layer, is_open ? nullptr : layer.key_scales, token, n, stop);
      value_scales.read(layer, layer.value_scales, token, n, stop);
      for (; n < stop; ++n, row += layer.head_dim) rows[n] = row;
    }
  }
  const K* key(int n) const { return keys + rows[n] / kPacked<K>; }
  const V* value(int n) const { return values + rows[n] / kPacked<V>; }
};

template <class T>
inline void prefetch(const T* row, int d) {
  for (int k = 0; k < d / kPacked<T>; k += 64 / int(sizeof(T))) __builtin_prefetch(row + k);
}

// The tile's keys as floats [count][d], for those with scales by channel.
template <class V>
void restore_keys(const Tile<channel_int4, V>& tile, const Layer& layer, const Lanes& lanes, int stride, float* to) {
  int d = layer.head_dim;
  bool whole = d / 2 % W == 0;
  for (int n = 0; n < tile.count; ++n, to += stride) {
    const uint16_t* steps = tile.key_scales.beside[n];
    if (!steps) {
      open_key(layer, lanes, tile.begin + n, to);
      continue;
    }
    const uint8_t* row = &tile.key(n)->bits;
    const bf16* step = reinterpret_cast<const bf16*>(steps);
    int k = 0;
    for (; whole && k < d; k += W) store(to + k, load_codes(row, k, d) * load(step + k) + load(step + d + k));
    for (; k < d; ++k) to[k] = one_code(row, k, d) * load_one(step + k) + load_one(step + d + k);
  }
}

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
  with_type(layer.query_type, layer.query, at, f);
}

}  // namespace
}  // namespace openai_kv
