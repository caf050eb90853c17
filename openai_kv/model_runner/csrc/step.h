// What a call of the operator was given, checked.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>
#include <optional>

#include "dispatch.h"
#include "pool.h"

namespace openai_kv {

struct Step {
  Layer layer{};
  int pool = 0;  // which of kPools
  int64_t rows, requests, num_blocks;
  const int32_t *block_tables, *query_starts, *context_lens;
  const int32_t* own_slots = nullptr;
  int64_t max_blocks;

  Lanes lanes(int64_t request, int kv_head, int lane, int lanes) const {
    int rows = query_starts[request + 1] - query_starts[request];
    return {block_tables + request * max_blocks, query_starts[request], context_lens[request] - rows,
            own_slots ? own_slots[request] : -1, kv_head, lane, lanes};
  }
  int lanes_of(int64_t request) const { return (query_starts[request + 1] - query_starts[request]) * layer.group; }
  // The first tile and the end of the context that these lanes see.
  int first_seen(const Lanes& l) const {
    int position = l.first_position + l.row(0, layer.group);
    return layer.window ? std::max(0, position - layer.window + 1) / kTile * kTile : 0;
  }
  int end_seen(const Lanes& l) const { return l.first_position + l.row(l.lanes - 1, layer.group) + 1; }
};

inline void check_tables(const Step& step, const Tensor& slot_mapping) {
  int64_t row = 0;
  for (int64_t r = 0; r < step.requests; ++r) {
    int64_t context = step.context_lens[r], rows = step.query_starts[r + 1] - step.query_starts[r];
    TORCH_CHECK(step.query_starts[r] == row && rows > 0 && rows <= context, "paged_attention: bad rows of request ", r);
    row += rows;
    int64_t blocks = (context + step.layer.block_size - 1) / step.layer.block_size;
    TORCH_CHECK(blocks <= step.max_blocks, "paged_attention: block table too short for request ", r);
    for (int64_t i = 0; i < blocks; ++i) {
      int32_t block = step.block_tables[r * step.max_blocks + i];
      TORCH_CHECK(block >= 0 && block < step.num_blocks, "paged_attention: no block ", block);
    }
  }
  TORCH_CHECK(row == step.rows, "paged_attention: ", step.rows, " rows, but ", row, " in query_starts");
  TORCH_CHECK(slot_mapping.numel() == step.rows && slot_mapping.is_contiguous(), "paged_attention: one slot per row");
  const int64_t* slots = slot_mapping.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < step.rows; ++i) {
    bool is_there = slots[i] >= 0 && slots[i] < step.num_blocks * step.layer.block_size;
    TORCH_CHECK(is_there, "paged_attention: no slot ", slots[i]);
  }
}

// Keys that are not rounded yet: the slot of each request's last block, which all its rows are in.
inline void open_keys(Step& step, const std::optional<Tensor>& keys, const std::optional<Tensor>& own_slots,
                      const Tensor& query, const Tensor& key_pool) {
  TORCH_CHECK(keys.has_value() == (step.pool >= kTypes + 2) && keys.has_value() == own_slots.has_value(),
              "paged_attention: keys in int4 are opened, others are not");
  if (!keys) return;
  TORCH_CHECK(keys->is_contiguous() && keys->scalar_type() == query.scalar_type() && keys->dim() == 4 &&
                  keys->sizes().slice(1) ==
                      at::IntArrayRef({key_pool.size(1), key_pool.size(2), query.size(2)}) &&
                  own_slots->numel() == step.requests && own_slots->is_contiguous(),
              "paged_attention: bad open keys");
  step.layer.open_keys = keys->const_data_ptr();
  step.own_slots = own_slots->const_data_ptr<int32_t>();
  for (int64_t r = 0; r < step.requests; ++r) {
    int first = step.context_lens[r] - (step.query_starts[r + 1] - step.query_starts[r]);
    TORCH_CHECK(step.own_slots[r] >= 0 && step.own_slots[r] < keys->size(0) &&
                    first / step.layer.block_size == (step.context_lens[r] - 1) / step.layer.block_size,
                "paged_attention: rows of request ", r, " lie in several blocks, or in no slot");
  }
}

inline Step make_step(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& key_pool,
                      const Tensor& value_pool, const Tensor& block_tables, const Tensor& query_starts,
                      const Tensor& context_lens) {
  TORCH_CHECK(query.dim() == 3 && key.dim() == 3 && key_pool.dim() == 4, "paged_attention: wrong number of dimensions");
  auto dim_of = [](const Tensor& pool) { return pool.size(3) * (pool.scalar_type() == at::kByte ? 2 : 1); };
  TORCH_CHECK(key.sizes() == value.sizes() && key_pool.sizes().slice(0, 3) == value_pool.sizes().slice(0, 3) &&
                  dim_of(key_pool) == dim_of(value_pool),
              "paged_attention: keys and values differ in shape");
  int64_t rows = query.size(0), d = query.size(2), kv_heads = key_pool.size(1);
  TORCH_CHECK(key.size(0) == rows && key.size(1) == kv_heads && key.size(2) == d && dim_of(key_pool) == d &&
                  query.size(1) % kv_heads == 0,
              "paged_attention: query ", query.sizes(), ", key ", key.sizes(), " and pool ", key_pool.sizes(),
              " do not fit together");
  for (const Tensor* tensor : {&key_pool, &value_pool, &block_tables, &query_starts, &context_lens}) {
    TORCH_CHECK(tensor->is_contiguous(), "paged_attention: the pool and the tables must be contiguous");
  }
  TORCH_CHECK(query_starts.numel() == block_tables.size(0) + 1 && context_lens.numel() == block_tables.size(0),
              "paged_attention: as many contexts as block tables, and one query start more");
  Step step;
  step.layer = {query.const_data_ptr(), type_of(query), query.stride(0), query.stride(1), key_pool.const_data_ptr(),
                value_pool.const_data_ptr(), nullptr, nullptr, nullptr, int(kv_heads), int(key_pool.size(2)), int(d),
                int(query.size(1) / kv_heads), 0, 0, 0, nullptr};
  step.pool = pool_of(key_pool, value_pool);
  step.rows = rows;
  step.requests = block_tables.size(0);
  step.num_blocks = key_pool.size(0);
  step.max_blocks = block_tables.size(1);
  step.block_tables = block_tables.const_data_ptr<int32_t>();
  step.query_starts = query_starts.const_data_ptr<int32_t>();
  step.context_lens = context_lens.const_data_ptr<int32_t>();
  return step;
}

}  // namespace openai_kv
