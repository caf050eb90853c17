// How K and V lie in the pool, checked.
#pragma once

#include <optional>

#include "dispatch.h"

namespace openai_kv {

inline int code_of(const Tensor& pool) { return pool.scalar_type() == at::kChar ? 0 : 1; }

inline int pool_of(const Tensor& key_pool, const Tensor& value_pool) {
  at::ScalarType key = key_pool.scalar_type(), value = value_pool.scalar_type();
  bool coded = value == at::kChar || value == at::kByte;
  if (coded && key == at::kChar) return kTypes + code_of(value_pool);
  if (coded && key == at::kByte) return kTypes + 2 + code_of(value_pool);
  TORCH_CHECK(key == value, "paged_attention: the pool's tensors differ in dtype");
  return type_of(key_pool);
}

// The scales beside K or V, null beside floats.
inline const uint16_t* checked_scales(const Tensor& pool, const std::optional<Tensor>& scales, bool by_channel) {
  bool coded = !at::isFloatingType(pool.scalar_type());
  TORCH_CHECK(coded == scales.has_value(), "paged_attention: scales belong to int8 and int4");
  if (!coded) return nullptr;
  int64_t rows = by_channel ? 2 : pool.size(2), numbers = by_channel ? 2 * pool.size(3) : kScales[code_of(pool)];
  TORCH_CHECK(scales->scalar_type() == at::kBFloat16 && scales->is_contiguous() &&
                  scales->sizes() == at::IntArrayRef({pool.size(0), pool.size(1), rows, numbers}),
              "paged_attention: the scales of ", pool.scalar_type(), " are bfloat16, a block has ", rows, " x ", numbers);
  return static_cast<const uint16_t*>(scales->const_data_ptr());
}

}  // namespace openai_kv
