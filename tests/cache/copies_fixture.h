// A map of eight blocks on the device and eight on the host, for tests of copies on the move. Blocks have 16
// tokens, and cells in two layer groups.
#pragma once

#include <gtest/gtest.h>

#include <numeric>
#include <vector>

#include "cache/sequences/kv_cache.h"

namespace kvasir::test {

class CopiesTest : public testing::Test {
 protected:
  static constexpr SeqId kA{1}, kB{2}, kC{3};
  static constexpr size_t kDevice = index_of(Tier::kDevice);  // also the index of KV there
  static constexpr size_t kHost = index_of(Tier::kHost);
  static constexpr Place kHostKv = {Form::kKv, Tier::kHost};

  static std::vector<Token> tokens(uint32_t n, Token first = 0) {
    std::vector<Token> out(n);
    std::iota(out.begin(), out.end(), first);
    return out;
  }
  static LayerSet group(uint32_t g) {
    LayerSet set;
    set.add(g);
    return set;
  }

  CopiesTest() : cache_(options()) {}
  ~CopiesTest() override { check(); }

  static CacheOptions options() {
    CacheOptions o;
    o.geometry = {16, 4, 2, 8};
    o.device_bytes = o.geometry.kv_block_bytes() * 8;
    o.host_bytes = o.geometry.kv_block_bytes() * 8;
    o.stage_bytes = o.geometry.layer_plane_bytes() * 2 * 8;
    return o;
  }
  static Status status(bool ok) { return ok ? Status() : error(ErrorCode::kUnavailable, "the link failed"); }
  void check() { EXPECT_EQ(cache_.check_integrity().message(), ""); }

  void submit(uint64_t step, SeqId seq, uint32_t end, const LayerSet& keep = LayerSet::all(2)) {
    StepSlice slice;
    slice.seq = seq;
    slice.tokens = {cache_.summary(seq).ready_tokens, end};
    cache_.extend(seq, end, {keep, {}}, StepId{step});
    cache_.step_submitted(StepId{step}, {&slice, 1});
  }
  KvCache::StepOutcome end(uint64_t step, std::vector<SeqId> deferred = {}) {
    KvCache::StepOutcome outcome = cache_.step_ended(StepId{step}, true, deferred);
    check();
    return outcome;
  }
  // A sequence of so many tokens, all computed by a step of the past.
  void computed(SeqId seq, uint32_t n, Token first = 0) {
    cache_.add_sequence(seq, tokens(n, first), "");
    submit(++step_, seq, n);
    end(step_);
  }

  std::vector<Transfer> add(SeqId seq, Interval range, Tier tier, bool tail = false,
                            const LayerSet& layers = LayerSet::all(2), Trigger trigger = Trigger::kNow) {
    std::vector<Transfer> transfers =
        cache_.add_copies({Verb::kAdd, seq, range, layers, Form::kKv, tier, trigger}, tail).transfers;
    check();
    return transfers;
  }
  void leave(SeqId seq, Interval range, Tier tier, const LayerSet& layers = LayerSet::all(2)) {
    cache_.release({Verb::kDrop, seq, range, layers, Form::kKv, tier, Trigger::kWhenReady});
    check();
  }
  void finish(const Transfer& transfer, bool ok = true) {
    cache_.transfer_ended(transfer.id, status(ok));
    check();
  }
  void finish(const std::vector<Transfer>& transfers, bool ok = true) {
    for (const Transfer& t : transfers) finish(t, ok);
  }
  // All of it is on the host, and nothing on the device.
  void offload(SeqId seq) {
    const Interval all = {0, cache_.summary(seq).ready_tokens};
    finish(add(seq, all, Tier::kHost, /*tail=*/true));
    leave(seq, all, Tier::kDevice);
  }

  // What is idle on the device has to go.
  void push_out() {
    const SeqId other{99};
    const auto room = static_cast<uint32_t>(available(Tier::kDevice));
    computed(other, room / 2 * 16, 9000);
    if (room % 2 != 0) {
      for (Token t = 0; t < 16; ++t) cache_.append_token(other, 8000 + t);
      submit(++step_, other, room / 2 * 16 + 16, group(0));
      end(step_);
    }
    cache_.remove_sequence(other);
  }

  uint32_t cached(SeqId seq) const { return cache_.summary(seq).cached_tokens; }
  uint32_t cells(SeqId seq, size_t tier) const { return cache_.summary(seq).cells[0][tier]; }
  int64_t available(Tier tier) const { return cache_.budget(tier).available_cells(); }
  int64_t coming() const { return cache_.budget(Tier::kDevice).coming[0]; }

  KvCache cache_;
  uint64_t step_ = 100;
};

}  // namespace kvasir::test
