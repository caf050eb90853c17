// One instruction set's functions.
//
// Attention over a block table with an online softmax, in tiles of kTile positions; sums in float32 (FlashAttention-2,
// Dao 2023; splits merged as in Flash-Decoding). A lane's result depends on its request and on how the request's rows
// are cut, never on the rest of the batch.

#include "few_lanes.h"
#include "linear.h"
#include "many_lanes.h"
#include "rows.h"

namespace openai_kv {
namespace {

template <class K, class V>
bool are_few(const Layer& layer, const Lanes& lanes) {
  return lanes.lanes <= kFewLanes && layer.head_dim % (max(kPacked<K>, kPacked<V>) * W) == 0;
}

template <class K, class V = K>
void attend(const Layer& layer, const Lanes& lanes, int begin, int end, Partial out, float* scratch) {
  if (are_few<K, V>(layer, lanes)) {
    Few<K, V>(layer, lanes, scratch).attend(begin, end, out);
  } else {
    many<K, V>(layer, lanes, begin, end, out, nullptr, nullptr, scratch);
  }
}

template <class K, class V = K>
void weigh(const Layer& layer, const Lanes& lanes, int begin, int end, const float* lse, float* weights,
           float* scratch) {
  if (are_few<K, V>(layer, lanes)) {
    Few<K, V>(layer, lanes, scratch).weigh(begin, end, lse, weights);
  } else {
    many<K, V>(layer, lanes, begin, end, {}, lse, weights, scratch);
  }
}

template <class T>
void finish(const Layer& layer, const Lanes& lanes, float* partials, int count, void* out, float* lse) {
  int d = layer.head_dim, heads = layer.kv_heads * layer.group;
  int64_t step = partial_floats(lanes.lanes, d);
  for (int l = 0; l < lanes.lanes; ++l) {
    int head = lanes.head(l, layer.group);
    int64_t to = (lanes.first_row + lanes.row(l, layer.group)) * heads + head;
    float max = layer.sinks ? layer.sinks[head] : kLowest;
    for (int i = 0; i < count; ++i) {
      float m = partial_at(partials + i * step, lanes.lanes, d).max[l];
      max = m > max ? m : max;
    }
    float sum = layer.sinks ? exp(splat(layer.sinks[head] - max))[0] : 0;
    float* merged = partials + int64_t(l) * d;
    for (int i = 0; i < count; ++i) {
      Partial part = partial_at(partials + i * step, lanes.lanes, d);
      float share = exp(splat(part.max[l] - max))[0];
      const float* from = part.output + int64_t(l) * d;
      sum += part.sum[l] * share;
      for (int k = 0; k < d; ++k) merged[k] = from[k] * share + (i ? merged[k] : 0.f);
    }
    T* row = static_cast<T*>(out) + to * d;
    for (int k = 0; k < d; ++k) store_one(row + k, merged[k] / sum);
    if (lse) lse[to] = max + __builtin_logf(sum);
  }
}

}  // namespace

extern const Kernels KERNELS;
const Kernels KERNELS = {
    {attend<float>, attend<bf16>, attend<f16>, attend<int8_t>, attend<int8_t, int4>, attend<channel_int4, int8_t>,
     attend<channel_int4, int4>},
    {finish<float>, finish<bf16>, finish<f16>},
    {weigh<float>, weigh<bf16>, weigh<f16>, weigh<int8_t>, weigh<int8_t, int4>, weigh<channel_int4, int8_t>,
     weigh<channel_int4, int4>},
    {encode_int8, encode_int4},
    kTileRows,
    {arrange<float>, arrange<bf16>, nullptr},
    {multiply<float>, multiply<bf16>, nullptr},
    {norm<float>, norm<bf16>, norm<f16>},
    {add<float>, add<bf16>, add<f16>},
    {gate<float>, gate<bf16>, gate<f16>},
    {rotate<float>, rotate<bf16>, rotate<f16>},
};

}  // namespace openai_kv
