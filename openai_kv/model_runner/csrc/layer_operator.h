// A decoder layer in one call: what its modules do one after the other, with the same results to the bit.
#pragma once

#include <ATen/ops/zeros.h>
#include <torch/custom_class.h>
#include <torch/library.h>

#include <optional>
#include <vector>

#include "attention_operator.h"
#include "linear_operators.h"
#include "quantized_operators.h"
#include "row_operators.h"

namespace openai_kv {
namespace {

// A linear layer as PackedLinear (bits 16 or 32) or QuantizedLinear has it.
struct Matrix : torch::CustomClassHolder {
  Tensor weight;
  std::optional<Tensor> bias;
  int64_t columns, bits, brgemm_rows;

  Matrix(Tensor weight, std::optional<Tensor> bias, int64_t columns, int64_t bits, int64_t brgemm_rows)
      : weight(std::move(weight)), bias(std::move(bias)), columns(columns), bits(bits), brgemm_rows(brgemm_rows) {}

  Tensor operator()(const Tensor& x) const {
    return bits > 8 ? packed_linear(x, weight, bias, columns, brgemm_rows, 0)
                    : quantized_linear(x, weight, bias, columns, bits, 0);
  }
};

// RMSNorm, see rows.h.
struct RowNorm : torch::CustomClassHolder {
  Tensor weight;
  double epsilon;
  bool rounds;

  RowNorm(Tensor weight, double epsilon, bool rounds) : weight(std::move(weight)), epsilon(epsilon), rounds(rounds) {}

  Tensor operator()(const Tensor& x) const { return rms_norm(x, weight, epsilon, rounds, 0); }
};

// How heads attend; window and softcap 0: none.
struct Heads : torch::CustomClassHolder {
  int64_t queries, keys, window;
  double scale, softcap;
  std::optional<Tensor> sinks;

  Heads(int64_t queries, int64_t keys, double scale, int64_t window, double softcap, std::optional<Tensor> sinks)
      : queries(queries), keys(keys), window(window), scale(scale), softcap(softcap), sinks(std::move(sinks)) {}
};

// Where a step's rows lie in the pool, as paged_attention takes it. Keys are not open.
struct Pages {
  const Tensor &key_pool, &value_pool;
  const std::optional<Tensor>&key_scales, &value_scales;
  const Tensor &slot_mapping, &block_tables, &query_starts, &context_lens;
  const std::optional<Tensor>& mass;
  bool by_row;
};

template <class T>
using Held = c10::intrusive_ptr<T>;

struct DecoderLayer : torch::CustomClassHolder {
  // Before attention and before the MLP; or before and after each, what is after belonging to what is added (Gemma).
  std::vector<Held<RowNorm>> norms;
  std::vector<Held<RowNorm>> head_norms;  // of query and of key, or none
  Held<Matrix> qkv, output, gate_up, down;
  Held<Heads> heads;
  int64_t activation;

  DecoderLayer(std::vector<Held<RowNorm>> norms, std::vector<Held<RowNorm>> head_norms, Held<Matrix> qkv,
               Held<Matrix> output, Held<Matrix> gate_up, Held<Matrix> down, Held<Heads> heads, int64_t activation)
      : norms(std::move(norms)), head_norms(std::move(head_norms)), qkv(std::move(qkv)), output(std::move(output)),
        gate_up(std::move(gate_up)), down(std::move(down)), heads(std::move(heads)), activation(activation) {}

  // states [1, T, hidden], cos and sin as in rotate; see paged_attention for the rest. Where there are `wanted` rows [n]
  // only these are computed behind attention, all others are 0.
  Tensor forward(const Tensor& states, const Tensor& cos, const Tensor& sin, const Tensor& key_pool,
                 const Tensor& value_pool, const std::optional<Tensor>& key_scales,
                 const std::optional<Tensor>& value_scales, const Tensor& slot_mapping, const Tensor& block_tables,
                 const Tensor& query_starts, const Tensor& context_lens, const std::optional<Tensor>& mass,
                 bool by_row, const std::optional<Tensor>& wanted) const {
    Pages pages{key_pool,     value_pool,   key_scales,   value_scales, slot_mapping,
                block_tables, query_starts, context_lens, mass,         by_row};
    Tensor attended = attend((*norms[0])(states), cos, sin, pages).view({1, states.size(1), -1});
    if (!wanted) return finish(states, attended);
    Tensor all = at::zeros(states.sizes(), states.options());
    if (wanted->numel() == 0) return all;
    return all.index_copy_(1, *wanted, finish(states.index_select(1, *wanted), attended.index_select(1, *wanted)));
  }

 private:
  // What follows attention, row by row.
  Tensor finish(const Tensor& states, const Tensor& heads_output) const {
    bool around = norms.size() == 4;
    Tensor added = (*output)(heads_output);
    if (around) added = (*norms[1])(added);
    Tensor between = sum(states, added);
    added = (*norms[around ? 2 : 1])(between);  // one at a time: each is freed as soon as the next one is there
    added = (*gate_up)(added);
    added = gated(added, activation, 0);
    added = (*down)(added);
    return sum(between, around ? (*norms[3])(added) : added);
  }

  Tensor attend(const Tensor& normed, const Tensor& cos, const Tensor& sin, const Pages& pages) const {
    int64_t queries = heads->queries, keys = heads->keys, rotated = queries + keys;
    Tensor all = (*qkv)(normed);
    Tensor rows = all.view({all.size(1), rotated + keys, all.size(2) / (rotated + keys)});
    Tensor query = rows.narrow(1, 0, queries), key = rows.narrow(1, queries, keys), value = rows.narrow(1, rotated, keys);
    if (!head_norms.empty()) query = (*head_norms[0])(query), key = (*head_norms[1])(key);
    rotate(query, cos, sin, 0);
    rotate(key, cos, sin, 0);
    return paged_attention(query, key, value, pages.key_pool, pages.value_pool, pages.key_scales, pages.value_scales, {},
                           {}, pages.slot_mapping, pages.block_tables, pages.query_starts, pages.context_lens,
                           heads->scale, heads->window, heads->softcap, heads->sinks, pages.mass, pages.by_row, 0);
  }
};

void define_layer(torch::Library& library) {
  library.class_<Matrix>("Matrix").def(torch::init<Tensor, std::optional<Tensor>, int64_t, int64_t, int64_t>());
  library.class_<RowNorm>("RowNorm").def(torch::init<Tensor, double, bool>());
  library.class_<Heads>("Heads").def(
      torch::init<int64_t, int64_t, double, int64_t, double, std::optional<Tensor>>());
  library.class_<DecoderLayer>("DecoderLayer")
      .def(torch::init<std::vector<Held<RowNorm>>, std::vector<Held<RowNorm>>, Held<Matrix>, Held<Matrix>, Held<Matrix>,
                       Held<Matrix>, Held<Heads>, int64_t>())
      .def("forward", &DecoderLayer::forward);
}

}  // namespace
}  // namespace openai_kv
