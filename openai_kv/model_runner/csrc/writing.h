// Writes a step's rows to the pool.
#pragma once

#include <cstring>
#include <optional>

#include "step.h"

namespace openai_kv {

inline Tensor dense_rows(const Tensor& rows) { return rows.stride(-1) == 1 ? rows : rows.contiguous(); }

// Of the type they are written from: the pool's, or float32 for codes.
inline Tensor rows_for(const Tensor& pool, const Tensor& rows) {
  return dense_rows(rows.to(at::isFloatingType(pool.scalar_type()) ? pool.scalar_type() : at::kFloat));
}

// Calls write(from, to) for each row and head: its first element in a tensor of rows, and the row's number in the pool.
template <class F>
void for_each_row(const Step& step, const Tensor& from, const Tensor& slot_mapping, const F& write) {
  int64_t block_size = step.layer.block_size, heads = step.layer.kv_heads;
  const int64_t* slots = slot_mapping.const_data_ptr<int64_t>();
  at::parallel_for(0, step.rows, 64, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      int64_t block = slots[row] / block_size, slot = slots[row] % block_size;
      for (int64_t head = 0; head < heads; ++head) {
        write(row * from.stride(0) + head * from.stride(1), (block * heads + head) * block_size + slot);
      }
    }
  });
}

inline void write_rows(const Step& step, const Tensor& from, const Tensor& pool, const Tensor& slot_mapping) {
  int64_t size = pool.element_size(), bytes = step.layer.head_dim * size;
  const char* source = static_cast<const char*>(from.const_data_ptr());
  char* target = static_cast<char*>(pool.data_ptr());
  for_each_row(step, from, slot_mapping, [&](int64_t at, int64_t row) {
    std::memcpy(target + row * bytes, source + at * size, bytes);
  });
}

// `from`: float32.
inline void encode_rows(const Step& step, const Kernels& kernels, const Tensor& from, const Tensor& pool,
                        const Tensor& scales, const Tensor& slot_mapping) {
  int64_t bytes = pool.size(3), numbers = scales.size(3);
  const float* source = from.const_data_ptr<float>();
  char* codes = static_cast<char*>(pool.data_ptr());
  uint16_t* beside = static_cast<uint16_t*>(scales.data_ptr());
  auto encode = kernels.encode[code_of(pool)];
  for_each_row(step, from, slot_mapping, [&](int64_t at, int64_t row) {
    encode(source + at, step.layer.head_dim, codes + row * bytes, beside + row * numbers);
  });
}

inline void write(const Step& step, const Kernels& kernels, const Tensor& rows, const Tensor& pool,
                  const std::optional<Tensor>& scales, const Tensor& slot_mapping) {
  if (scales) {
    encode_rows(step, kernels, rows, pool, *scales, slot_mapping);
  } else {
    write_rows(step, rows, pool, slot_mapping);
  }
}

}  // namespace openai_kv
