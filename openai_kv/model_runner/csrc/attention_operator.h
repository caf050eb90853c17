// The operator of attention: checks, cuts a step into pieces of work, runs them on torch's threads.
#pragma once

#include <ATen/ops/empty.h>

#include <atomic>
#include <optional>
#include <vector>

#include "dispatch.h"
#include "shared.h"
#include "step.h"
#include "writing.h"

namespace openai_kv {
namespace {

constexpr int kSplit = 8 * kTile;  // a request with few rows is cut into this many positions, whatever the batch is
constexpr int kSplitLanes = 4 * kMaxLanes;
constexpr int kFewRows = 17;  // one, and the most drafts behind it (engine.max_draft_tokens)

// Some lanes, the part of the context they see, and where their partials lie: one per split, then one for each split of
// what is shared.
struct Job {
  Lanes lanes;
  int begin, end, split, splits;
  int shared = 0;
  int64_t memory = 0;

  int partials() const { return splits + shared; }
};

Job make_job(const Step& step, const Lanes& lanes, bool few_rows) {
  int begin = step.first_seen(lanes), end = step.end_seen(lanes);
  int split = few_rows ? kSplit : end;
  return {lanes, begin, end, split, (end - 1) / split - begin / split + 1};
}

// Whether a request's rows get the bits that each would get by itself. `by_row`: those of all requests do. With open keys
// prompts come cut into blocks: few rows are no drafts there, and reading the context once for each would take long.
bool is_by_row(const Step& step, int64_t request, bool by_row) {
  return by_row || (!step.own_slots && step.query_starts[request + 1] - step.query_starts[request] <= kFewRows);
}

// Of one job: whole rows. Codes are multiplied in another order where there are many lanes, so these stay few.
int most_lanes(const Step& step, int64_t request, bool by_row) {
  int group = step.layer.group;
  if (!is_by_row(step, request, by_row) || group > kMaxLanes) return kMaxLanes;
  return (step.pool >= kTypes && group <= kFewLanes ? kFewLanes : kMaxLanes) / group * group;
}

std::vector<Job> make_jobs(const Step& step, bool by_row) {
  std::vector<Job> jobs;
  for (int64_t r = 0; r < step.requests; ++r) {
    int all = step.lanes_of(r), most = most_lanes(step, r, by_row);
    bool alone = is_by_row(step, r, by_row);
    // Later rows of a prompt see more: they go first, so that no thread is left with a long one at the end.
    for (int lane = (all - 1) / most * most; lane >= 0; lane -= most) {
      for (int head = 0; head < step.layer.kv_heads; ++head) {
        Lanes lanes = step.lanes(r, head, lane, std::min(most, all - lane));
        lanes.alone = alone;
        jobs.push_back(make_job(step, lanes, alone || all <= kSplitLanes));
      }
    }
  }
  return jobs;
}

// Of a request, for each head.
size_t num_jobs(const Step& step, int64_t request) {
  int most = most_lanes(step, request, false);
  return (step.lanes_of(request) + most - 1) / most;
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

// The lanes of several requests on positions that all of them see: split number `split` of one head. `jobs` are theirs, in
// order, with `stride` of them to a request.
struct SharedPiece {
  Lanes lanes;
  int begin, end, split;
  size_t jobs, stride;
};

// Cuts what requests share off their jobs. Requests with one row have one job for each head.
std::vector<SharedPiece> share(const Step& step, std::vector<Job>& jobs) {
  std::vector<SharedPiece> pieces;
  size_t heads = step.layer.kv_heads, at = 0;
  int64_t request = 0;
  for (const Shared& run : find_shared(step)) {
    for (; request < run.request; ++request) at += heads * num_jobs(step, request);
    int splits = (run.end + kSplit - 1) / kSplit;
    for (size_t head = 0; head < heads; ++head) {
      for (int64_t r = 0; r < run.count; ++r) {
        Job& job = jobs[at + r * heads + head];
        job.begin = run.end;
        job.splits = (job.end - 1) / job.split - job.begin / job.split + 1;
        job.shared = splits;
      }
      Lanes lanes = step.lanes(run.request, int(head), 0, int(run.count) * step.layer.group);
      lanes.first_position = run.end;
      lanes.own_slot = -1;
      for (int split = 0; split < splits; ++split) {
        pieces.push_back({lanes, split * kSplit, std::min(run.end, (split + 1) * kSplit), split, at + head, heads});
      }
    }
  }
  return pieces;
}

// Copies the lanes of one request out of those of several.
void hand_out(const Partial& from, int first, const Partial& to, int lanes, int head_dim) {
  std::copy_n(from.output + int64_t(first) * head_dim, int64_t(lanes) * head_dim, to.output);
  std::copy_n(from.max + first, lanes, to.max);
  std::copy_n(from.sum + first, lanes, to.sum);
}

void attend(const Step& step, const Kernels& kernels, bool by_row, void* out, float* lse) {
  std::vector<Job> jobs = make_jobs(step, by_row);
  std::vector<SharedPiece> shared = by_row ? std::vector<SharedPiece>{} : share(step, jobs);
  std::vector<std::pair<int, int>> pieces;  // job, split
  int64_t floats = 0;
  int d = step.layer.head_dim;
  for (size_t j = 0; j < jobs.size(); ++j) {
    jobs[j].memory = floats;
    floats += jobs[j].partials() > 1 ? jobs[j].partials() * partial_floats(jobs[j].lanes.lanes, d) : 0;
    for (int split = 0; split < jobs[j].splits; ++split) pieces.emplace_back(j, split);
  }
  Tensor partials = at::empty({floats}, at::kFloat);
  std::vector<std::atomic<int>> done(jobs.size());
  int64_t kernel_floats = scratch_floats(d);
  Scratch scratch(kernel_floats + partial_floats(kMaxLanes, d));
  auto memory_of = [&](const Job& job, float* own) {
    return job.partials() > 1 ? partials.data_ptr<float>() + job.memory : own + kernel_floats;
  };
  auto end_part = [&](size_t j, float* memory) {
    if (++done[j] < jobs[j].partials()) return;
    kernels.finish[step.layer.query_type](step.layer, jobs[j].lanes, memory, jobs[j].partials(), out, lse);
  };
  auto run_shared = [&](const SharedPiece& piece, float* own) {
    Partial all = partial_at(own + kernel_floats, piece.lanes.lanes, d);
    kernels.attend[step.pool](step.layer, piece.lanes, piece.begin, piece.end, all, own);
    for (int first = 0; first < piece.lanes.lanes; first += step.layer.group) {
      size_t j = piece.jobs + first / step.layer.group * piece.stride;
      float* memory = memory_of(jobs[j], own);
      int64_t part = (jobs[j].splits + piece.split) * partial_floats(step.layer.group, d);
      hand_out(all, first, partial_at(memory + part, step.layer.group, d), step.layer.group, d);
      end_part(j, memory);
    }
  };
  auto run_own = [&](size_t j, int split, float* own) {
    const Job& job = jobs[j];
    float* memory = memory_of(job, own);
    float* part = memory + split * partial_floats(job.lanes.lanes, d);
    int first = (job.begin / job.split + split) * job.split;
    kernels.attend[step.pool](step.layer, job.lanes, std::max(job.begin, first), std::min(job.end, first + job.split),
                              partial_at(part, job.lanes.lanes, d), own);
    end_part(j, memory);
  };
  for_each(shared.size() + pieces.size(), [&](int64_t i) {
    float* own = scratch.of_this_thread();
    if (i < int64_t(shared.size())) return run_shared(shared[i], own);
    run_own(pieces[i - shared.size()].first, pieces[i - shared.size()].second, own);
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
        kernels.weigh[step.pool](step.layer, lanes, begin, end, lse, weights.data() + starts[r] + begin,
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

const float* floats_of(const std::optional<Tensor>& tensor, int64_t size, const char* name) {
  if (!tensor) return nullptr;
  TORCH_CHECK(tensor->scalar_type() == at::kFloat && tensor->is_contiguous() && tensor->numel() == size,
              "paged_attention: ", name, " must be ", size, " contiguous float32");
  return tensor->const_data_ptr<float>();
}

// AttentionBackend.forward; `window` and `softcap` 0: none. `open`: the layer's open_keys, which have this step's keys
// already. `by_row`: see make_jobs. `width`: at most so many floats per vector, 0: the best.
Tensor paged_attention(const Tensor& queries, const Tensor& keys, const Tensor& values, Tensor key_pool,
                       Tensor value_pool, const std::optional<Tensor>& key_scales,
                       const std::optional<Tensor>& value_scales, const std::optional<Tensor>& open,
                       const std::optional<Tensor>& own_slots, const Tensor& slot_mapping, const Tensor& block_tables,
                       const Tensor& query_starts, const Tensor& context_lens, double scale, int64_t window,
                       double softcap, const std::optional<Tensor>& sinks, const std::optional<Tensor>& mass,
                       bool by_row, int64_t width) {
  TORCH_CHECK(keys.scalar_type() == queries.scalar_type() && values.scalar_type() == queries.scalar_type(),
              "paged_attention: the rows differ in dtype");
  // Rounded before they are attended to as well: what a step sees is what a later one will.
  Tensor query = dense_rows(queries), key = open ? keys : rows_for(key_pool, keys);
  Tensor value = rows_for(value_pool, values);
  Step step = make_step(query, key, value, key_pool, value_pool, block_tables, query_starts, context_lens);
  int64_t heads = query.size(1);
  step.layer.key_scales = checked_scales(key_pool, key_scales, open.has_value());
  step.layer.value_scales = checked_scales(value_pool, value_scales, false);
  open_keys(step, open, own_slots, query, key_pool);
  step.layer.scale = float(scale);
  step.layer.softcap = float(softcap);
  step.layer.window = int(std::min<int64_t>(window, INT32_MAX));
  step.layer.sinks = floats_of(sinks, heads, "sinks");
  const float* mass_at = floats_of(mass, step.num_blocks, "mass");
  check_tables(step, slot_mapping);
  const Kernels& kernels = kernels_for(width);
  if (!open) write(step, kernels, key, key_pool, key_scales, slot_mapping);
  write(step, kernels, value, value_pool, value_scales, slot_mapping);
  Tensor out = at::empty({step.rows, heads, query.size(2)}, query.options());
  Tensor lse = at::empty({mass_at ? step.rows * heads : 0}, at::kFloat);
  attend(step, kernels, by_row, out.data_ptr(), mass_at ? lse.data_ptr<float>() : nullptr);
  if (mass_at) add_mass(step, kernels, lse.const_data_ptr<float>(), mass->data_ptr<float>());
  return out;
}

// [runs, 3] int64: first request, count, positions; see shared.h.
Tensor shared_prefixes(const Tensor& block_tables, const Tensor& query_starts, const Tensor& context_lens,
                       int64_t block_size, int64_t group) {
  Step step;
  step.layer.block_size = int(block_size);
  step.layer.group = int(group);
  step.requests = block_tables.size(0);
  step.max_blocks = block_tables.size(1);
  step.block_tables = block_tables.const_data_ptr<int32_t>();
  step.query_starts = query_starts.const_data_ptr<int32_t>();
  step.context_lens = context_lens.const_data_ptr<int32_t>();
  std::vector<Shared> found = find_shared(step);
  Tensor runs = at::empty({int64_t(found.size()), 3}, at::kLong);
  int64_t* to = runs.data_ptr<int64_t>();
  for (const Shared& run : found) {
    for (int64_t value : {run.request, run.count, int64_t(run.end)}) *to++ = value;
  }
  return runs;
}

}  // namespace
}  // namespace openai_kv
