// The torch operators and classes.

#include <torch/custom_class.h>
#include <torch/library.h>

#include "attention_operator.h"
#include "layer_operator.h"
#include "linear_operators.h"
#include "quantized_operators.h"
#include "row_operators.h"

TORCH_LIBRARY(openai_kv, library) {
  library.def(
      "paged_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) key_pool, Tensor(b!) value_pool, "
      "Tensor(d!)? key_scales, Tensor(e!)? value_scales, Tensor? open_keys, Tensor? own_slots, "
      "Tensor slot_mapping, Tensor block_tables, Tensor query_starts, Tensor context_lens, float scale, int window, "
      "float softcap, Tensor? sinks, Tensor(c!)? mass, bool by_row=False, int width=0) -> Tensor");
  library.def(
      "shared_prefixes(Tensor block_tables, Tensor query_starts, Tensor context_lens, int block_size, int group) -> Tensor");
  library.def("pack_linear(Tensor weight) -> Tensor");
  library.def("packed_linear(Tensor x, Tensor weight, Tensor? bias, int columns, int brgemm_rows=0, int width=0) -> Tensor");
  library.def("has_brgemm() -> bool", &openai_kv::has_brgemm);
  library.def("pack_quantized(Tensor weight, int bits) -> Tensor");
  library.def("quantized_linear(Tensor x, Tensor weight, Tensor? bias, int columns, int bits, int width=0) -> Tensor");
  library.def("rms_norm(Tensor x, Tensor weight, float epsilon, bool rounds, int width=0) -> Tensor");
  library.def("gated(Tensor gates_and_ups, int activation, int width=0) -> Tensor");
  library.def("rotate(Tensor(a!) x, Tensor cos, Tensor sin, int width=0) -> ()");
  openai_kv::define_layer(library);
}

TORCH_LIBRARY_IMPL(openai_kv, CPU, library) {
  library.impl("paged_attention", &openai_kv::paged_attention);
  library.impl("shared_prefixes", &openai_kv::shared_prefixes);
  library.impl("pack_linear", &openai_kv::pack_linear);
  library.impl("packed_linear", &openai_kv::packed_linear);
  library.impl("pack_quantized", &openai_kv::pack_quantized);
  library.impl("quantized_linear", &openai_kv::quantized_linear);
  library.impl("rms_norm", &openai_kv::rms_norm);
  library.impl("gated", &openai_kv::gated);
  library.impl("rotate", &openai_kv::rotate);
}
