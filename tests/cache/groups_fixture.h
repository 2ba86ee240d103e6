// A cache of three layer groups, and steps that run and end in it; its integrity is checked after each.
#pragma once

#include <gtest/gtest.h>

#include <utility>
#include <vector>

#include "cache/sequences/kv_cache.h"

namespace kvasir {

class GroupsFixture : public testing::Test {
 protected:
  explicit GroupsFixture(const CacheOptions& options) : cache_(options) {}
  ~GroupsFixture() override { check(); }
  void check() { EXPECT_EQ(cache_.check_integrity().message(), ""); }

  // Rows from what is ready up to `end`, which write all groups.
  void submit(uint64_t step, SeqId seq, uint32_t end) {
    StepSlice slice;
    slice.seq = seq;
    slice.tokens = {cache_.summary(seq).ready_tokens, end};
    cache_.extend(seq, end, {LayerSet::all(3), {}}, StepId{step});
    cache_.step_submitted(StepId{step}, {&slice, 1});
    check();
  }
  void end(uint64_t step, std::vector<SeqId> deferred = {}) {
    cache_.step_ended(StepId{step}, true, std::move(deferred));
    check();
  }
  uint32_t held(SeqId seq) { return cache_.summary(seq).kv_cells(Tier::kDevice); }

  KvCache cache_;
};

}  // namespace kvasir
