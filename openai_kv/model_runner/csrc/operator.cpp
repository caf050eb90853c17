// The torch operator: checks, cuts a step into pieces of work, runs them on torch's threads, picks the instruction set.

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <atomic>
#include <cstring>
#include <optional>
#include <vector>

#include "kernels.h"

namespace openai_kv {
namespace {

using at::Tensor;

constexpr int kSplit = 8 * kTile;  // a request with few rows is cut into this many positions, whatever the batch is
constexpr int kSplitLanes = 4 * kMaxLanes;

const Kernels& best_kernels() {
#if defined(__x86_64__)
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return kernels_avx512;
  }
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") && __builtin_cpu_supports("f16c")) return kernels_avx2;
#endif
  return kernels_generic;
}

const Kernels& kernels_for(int64_t width) {
  const Kernels& best = best_kernels();
#if defined(__x86_64__)
  if (width == 8 && &best == &kernels_avx512) return kernels_avx2;
#endif
  return width == 4 ? kernels_generic : best;
}

int type_of(const Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kFloat: return 0;
    case at::kBFloat16: return 1;
    case at::kHalf: return 2;
    default: TORCH_CHECK(false, "paged_attention: float32, bfloat16 or float16, not ", tensor.scalar_type());
  }
}

// Runs f(i) for i < n; whoever is free takes the next, as pieces differ in size.
template <class F>
void for_each(int64_t n, const F& f) {
  std::atomic<int64_t> next{0};
  at::parallel_for(0, std::min<int64_t>(n, at::get_num_threads()), 1, [&](int64_t, int64_t) {
    for (int64_t i = next++; i < n; i = next++) f(i);
  });
}

// What a call was given, checked.
struct Step {
  Layer layer{};
  int type;
  int64_t rows, requests, num_blocks;
  const int32_t *block_tables, *query_starts, *context_lens;
  int64_t max_blocks;

  Lanes lanes(int64_t request, int kv_head, int lane, int lanes) const {
    int rows = query_starts[request + 1] - query_starts[request];
    return {block_tables + request * max_blocks, query_starts[request], context_lens[request] - rows, kv_head, lane,
            lanes};
  }
  int lanes_of(int64_t request) const { return (query_starts[request + 1] - query_starts[request]) * layer.group; }
  // The first tile and the end of the context that these lanes see.
  int first_seen(const Lanes& l) const {
    int position = l.first_position + l.row(0, layer.group);
    return layer.window ? std::max(0, position - layer.window + 1) / kTile * kTile : 0;
  }
  int end_seen(const Lanes& l) const { return l.first_position + l.row(l.lanes - 1, layer.group) + 1; }
};

void check_tables(const Step& step, const Tensor& slot_mapping) {
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
  const int64_t* slots = slot_mapping.const_data_ptr<int64_t>();
  for (int64_t i = 0; i < step.rows; ++i) {
    TORCH_CHECK(slots[i] >= 0 && slots[i] < step.num_blocks * step.layer.block_size, "paged_attention: no slot ", slots[i]);
  }
}

void write_rows(const Step& step, const Tensor& from, const Tensor& pool, const Tensor& slot_mapping) {
  int64_t size = pool.element_size(), block_size = step.layer.block_size, heads = step.layer.kv_heads;
  int64_t bytes = step.layer.head_dim * size;
  const char* source = static_cast<const char*>(from.const_data_ptr());
  char* target = static_cast<char*>(pool.data_ptr());
  const int64_t* slots = slot_mapping.const_data_ptr<int64_t>();
  at::parallel_for(0, step.rows, 64, [&](int64_t first, int64_t last) {
    for (int64_t row = first; row < last; ++row) {
      int64_t block = slots[row] / block_size, slot = slots[row] % block_size;
      for (int64_t head = 0; head < heads; ++head) {
        std::memcpy(target + ((block * heads + head) * block_size + slot) * bytes,
                    source + (row * from.stride(0) + head * from.stride(1)) * size, bytes);
      }
    }
  });
}

// Some lanes, the part of the context they see, and where their partials lie, one per split.
struct Job {
  Lanes lanes;
  int begin, end, split, splits;
  int64_t memory;
};

Job make_job(const Step& step, const Lanes& lanes, bool few_rows) {
  int begin = step.first_seen(lanes), end = step.end_seen(lanes);
  int split = few_rows ? kSplit : end;
  return {lanes, begin, end, split, (end - 1) / split - begin / split + 1, 0};
}

std::vector<Job> make_jobs(const Step& step) {
  std::vector<Job> jobs;
  for (int64_t r = 0; r < step.requests; ++r) {
    int all = step.lanes_of(r);
    // Later rows of a prompt see more: they go first, so that no thread is left with a long one at the end.
    for (int lane = (all - 1) / kMaxLanes * kMaxLanes; lane >= 0; lane -= kMaxLanes) {
      for (int head = 0; head < step.layer.kv_heads; ++head) {
        Lanes lanes = step.lanes(r, head, lane, std::min(kMaxLanes, all - lane));
        jobs.push_back(make_job(step, lanes, all <= kSplitLanes));
      }
    }
  }
  return jobs;
}

// A float buffer of its own for each thread.
struct Scratch {
  Tensor memory;
  int64_t stride;

  explicit Scratch(int64_t floats) : stride((floats + 15) / 16 * 16) {
    memory = at::empty({at::get_num_threads() * stride}, at::kFloat);
  }
  float* of_this_thread() const { return memory.data_ptr<float>() + at::get_thread_num() * stride; }
};

void attend(const Step& step, const Kernels& kernels, void* out, float* lse) {
  std::vector<Job> jobs = make_jobs(step);
  std::vector<std::pair<int, int>> pieces;  // job, split
  int64_t floats = 0;
  for (size_t j = 0; j < jobs.size(); ++j) {
    jobs[j].memory = floats;
    floats += jobs[j].splits > 1 ? jobs[j].splits * partial_floats(jobs[j].lanes.lanes, step.layer.head_dim) : 0;
    for (int split = 0; split < jobs[j].splits; ++split) pieces.emplace_back(j, split);
  }
  Tensor partials = at::empty({floats}, at::kFloat);
  std::vector<std::atomic<int>> done(jobs.size());
  int64_t kernel_floats = scratch_floats(step.layer.head_dim);
  Scratch scratch(kernel_floats + partial_floats(kMaxLanes, step.layer.head_dim));
  for_each(pieces.size(), [&](int64_t i) {
    const auto [j, split] = pieces[i];
    const Job& job = jobs[j];
    float* own = scratch.of_this_thread();
    float* memory = job.splits > 1 ? partials.data_ptr<float>() + job.memory : own + kernel_floats;
    float* part = memory + split * partial_floats(job.lanes.lanes, step.layer.head_dim);
    int first = (job.begin / job.split + split) * job.split;
    kernels.attend[step.type](step.layer, job.lanes, std::max(job.begin, first), std::min(job.end, first + job.split),
                              partial_at(part, job.lanes.lanes, step.layer.head_dim), own);
    if (++done[j] == job.splits) kernels.finish[step.type](step.layer, job.lanes, memory, job.splits, out, lse);
  });
}

// A second pass over the keys with the final log-sum-exp. Each thread has positions of its own, so sums need no order.
void add_mass(const Step& step, const Kernels& kernels, const float* lse, float* mass) {
  std::vector<std::pair<int64_t, int>> pieces;  // request, first position
  std::vector<int64_t> starts{0};
  for (int64_t r = 0; r < step.requests; ++r) {
    for (int at = 0; at < step.context_lens[r]; at += kSplit) pieces.emplace_back(r, at);
    starts.push_back(starts.back() + step.context_lens[r]);
  }
  std::vector<float> weights(starts.back());
  Scratch scratch(scratch_floats(step.layer.head_dim));
  for_each(pieces.size(), [&](int64_t i) {
    const auto [r, first] = pieces[i];
    int last = std::min(first + kSplit, step.context_lens[r]), all = step.lanes_of(r);
    for (int head = 0; head < step.layer.kv_heads; ++head) {
      for (int lane = 0; lane < all; lane += kMaxLanes) {
        Lanes lanes = step.lanes(r, head, lane, std::min(kMaxLanes, all - lane));
        int begin = std::max(first, step.first_seen(lanes)), end = std::min(last, step.end_seen(lanes));
        if (begin >= end) continue;
        kernels.weigh[step.type](step.layer, lanes, begin, end, lse, weights.data() + starts[r] + begin,
                                 scratch.of_this_thread());
      }
    }
  });
  for (int64_t r = 0; r < step.requests; ++r) {
    float rows = step.query_starts[r + 1] - step.query_starts[r];
    for (int at = 0; at < step.context_lens[r]; ++at) {
      int32_t block = step.block_tables[r * step.max_blocks + at / step.layer.block_size];
      mass[block] += weights[starts[r] + at] / rows;
    }
  }
}

Step make_step(const Tensor& query, const Tensor& key, const Tensor& value, const Tensor& key_pool,
               const Tensor& value_pool, const Tensor& block_tables, const Tensor& query_starts,
               const Tensor& context_lens) {
  TORCH_CHECK(query.dim() == 3 && key.dim() == 3 && key_pool.dim() == 4, "paged_attention: wrong number of dimensions");
  TORCH_CHECK(key.sizes() == value.sizes() && key_pool.sizes() == value_pool.sizes(),
              "paged_attention: keys and values differ in shape");
  int64_t rows = query.size(0), d = query.size(2), kv_heads = key_pool.size(1);
  TORCH_CHECK(key.size(0) == rows && key.size(1) == kv_heads && key.size(2) == d && key_pool.size(3) == d &&
                  query.size(1) % kv_heads == 0,
              "paged_attention: query ", query.sizes(), ", key ", key.sizes(), " and pool ", key_pool.sizes(),
              " do not fit together");
  for (const Tensor* tensor : {&key, &value, &key_pool, &value_pool}) {
    TORCH_CHECK(tensor->scalar_type() == query.scalar_type(), "paged_attention: the pool and the rows differ in dtype");
  }
  for (const Tensor* tensor : {&query, &key, &value}) {
    TORCH_CHECK(tensor->stride(2) == 1, "paged_attention: rows must be contiguous in head_dim");
  }
  TORCH_CHECK(key_pool.is_contiguous() && value_pool.is_contiguous() && block_tables.is_contiguous(),
              "paged_attention: the pool and the block tables must be contiguous");
  TORCH_CHECK(query_starts.numel() == block_tables.size(0) + 1 && context_lens.numel() == block_tables.size(0),
              "paged_attention: as many contexts as block tables, and one query start more");
  Step step;
  step.layer = {query.const_data_ptr(), query.stride(0), query.stride(1), key_pool.const_data_ptr(),
                value_pool.const_data_ptr(), int(kv_heads), int(key_pool.size(2)), int(d),
                int(query.size(1) / kv_heads), 0, 0, 0, nullptr};
  step.type = type_of(query);
  step.rows = rows;
  step.requests = block_tables.size(0);
  step.num_blocks = key_pool.size(0);
  step.max_blocks = block_tables.size(1);
  step.block_tables = block_tables.const_data_ptr<int32_t>();
  step.query_starts = query_starts.const_data_ptr<int32_t>();
  step.context_lens = context_lens.const_data_ptr<int32_t>();
  return step;
}

const float* floats_of(const std::optional<Tensor>& tensor, int64_t size, const char* name) {
  if (!tensor) return nullptr;
  TORCH_CHECK(tensor->scalar_type() == at::kFloat && tensor->is_contiguous() && tensor->numel() == size,
              "paged_attention: ", name, " must be ", size, " contiguous float32");
  return tensor->const_data_ptr<float>();
}

// AttentionBackend.forward; `window` and `softcap` 0: none. `width`: at most so many floats per vector, 0: the best.
Tensor paged_attention(const Tensor& query, const Tensor& key, const Tensor& value, Tensor key_pool, Tensor value_pool,
                       const Tensor& slot_mapping, const Tensor& block_tables, const Tensor& query_starts,
                       const Tensor& context_lens, double scale, int64_t window, double softcap,
                       const std::optional<Tensor>& sinks, const std::optional<Tensor>& mass, int64_t width) {
  Step step = make_step(query, key, value, key_pool, value_pool, block_tables, query_starts, context_lens);
  int64_t heads = query.size(1);
  step.layer.scale = float(scale);
  step.layer.softcap = float(softcap);
  step.layer.window = int(std::min<int64_t>(window, INT32_MAX));
  step.layer.sinks = floats_of(sinks, heads, "sinks");
  const float* mass_at = floats_of(mass, step.num_blocks, "mass");
  TORCH_CHECK(slot_mapping.numel() == step.rows, "paged_attention: one slot per row");
  check_tables(step, slot_mapping);
  write_rows(step, key, key_pool, slot_mapping);
  write_rows(step, value, value_pool, slot_mapping);
  Tensor out = at::empty({step.rows, heads, query.size(2)}, query.options());
  Tensor lse = at::empty({mass_at ? step.rows * heads : 0}, at::kFloat);
  const Kernels& kernels = kernels_for(width);
  attend(step, kernels, out.data_ptr(), mass_at ? lse.data_ptr<float>() : nullptr);
  if (mass_at) add_mass(step, kernels, lse.const_data_ptr<float>(), mass->data_ptr<float>());
  return out;
}

}  // namespace
}  // namespace openai_kv

TORCH_LIBRARY(openai_kv, library) {
  library.def(
      "paged_attention(Tensor query, Tensor key, Tensor value, Tensor(a!) key_pool, Tensor(b!) value_pool, "
      "Tensor slot_mapping, Tensor block_tables, Tensor query_starts, Tensor context_lens, float scale, int window, "
      "float softcap, Tensor? sinks, Tensor(c!)? mass, int width=0) -> Tensor");
}

TORCH_LIBRARY_IMPL(openai_kv, CPU, library) { library.impl("paged_attention", &openai_kv::paged_attention); }
