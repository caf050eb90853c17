// Which requests of a step begin with the same blocks: what they share is read once for all of them (as in Hydragen,
// Juravsky et al. 2024, and cascade attention).
#pragma once

#include <algorithm>
#include <vector>

#include "step.h"

namespace openai_kv {
namespace {

constexpr int kMinShared = 4 * kTile;  // positions; fewer are not worth another partial to merge

// Requests [request, request + count), of one row each, have the positions before `end` in the same blocks.
struct Shared {
  int64_t request, count;
  int end;
};

// Positions that two neighbours have in common, in whole tiles and before either's last.
inline int common_positions(const Step& step, int64_t request) {
  const int32_t *a = step.block_tables + request * step.max_blocks, *b = a + step.max_blocks;
  int most = std::min(step.context_lens[request], step.context_lens[request + 1]) - 1;
  int blocks = most / step.layer.block_size;
  int same = int(std::mismatch(a, a + blocks, b).first - a);
  return same * step.layer.block_size / kTile * kTile;
}

// Runs of neighbours, as long as their lanes fit one piece of work. None in a layer with a window.
inline std::vector<Shared> find_shared(const Step& step) {
  std::vector<Shared> found;
  int64_t most = kMaxLanes / step.layer.group;
  auto one_row = [&](int64_t r) { return step.query_starts[r + 1] - step.query_starts[r] == 1; };
  for (int64_t r = 0; r + 1 < step.requests && most > 1 && !step.layer.window; ++r) {
    Shared run{r, 1, 0};
    for (; r + 1 < step.requests && run.count < most && one_row(r) && one_row(r + 1); ++r, ++run.count) {
      int common = common_positions(step, r);
      if (common < kMinShared) break;
      run.end = run.end ? std::min(run.end, common) : common;
    }
    if (run.count == 1) continue;
    found.push_back(run);
  }
  return found;
}

}  // namespace
}  // namespace openai_kv
