// A map with cells of KV and X on three tiers: blocks of 16 tokens, two layer groups. A slab has room for a
// cell of KV or two of X.
#pragma once

#include <gtest/gtest.h>

#include <array>
#include <numeric>
#include <utility>
#include <vector>

#include "cache/sequences/kv_cache.h"

namespace kvasir::test {

class FormsTest : public testing::Test {
 protected:
  static constexpr SeqId kA{1}, kB{2}, kC{3};
  static constexpr Place kHostKv = {Form::kKv, Tier::kHost};
  static constexpr Place kDiskKv = {Form::kKv, Tier::kDisk};
  static constexpr Place kDeviceX = {Form::kX, Tier::kDevice};
  static constexpr Place kHostX = {Form::kX, Tier::kHost};
  static constexpr Place kDiskX = {Form::kX, Tier::kDisk};

  FormsTest() : cache_(options()) {}
  ~FormsTest() override { check(); }

  static CacheOptions options() {
    CacheOptions o;
    o.geometry = {16, 4, 2, 8, 8};
    o.device_bytes = o.geometry.kv_block_bytes() * 12;
    o.host_bytes = o.geometry.kv_block_bytes() * 8;
    o.disk_bytes = o.geometry.cell_stride(Form::kKv, Tier::kDisk) * 2 * 8;
    return o;
  }
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
  static LayerSet all() { return LayerSet::all(2); }
  static Status unavailable() { return error(ErrorCode::kUnavailable, "the link failed"); }
  static Status corrupt() { return error(ErrorCode::kCorrupt, "the disk holds something else"); }

  void check() { EXPECT_EQ(cache_.check_integrity().message(), ""); }

  void submit(uint64_t step, SeqId seq, uint32_t end, const Writes& writes) {
    StepSlice slice;
    slice.seq = seq;
    slice.tokens = {cache_.summary(seq).ready_tokens, end};
    cache_.extend(seq, end, writes, StepId{step});
    cache_.step_submitted(StepId{step}, {&slice, 1});
    check();
  }
  void end(uint64_t step, bool ok = true, std::vector<SeqId> deferred = {}) {
    cache_.step_ended(StepId{step}, ok, deferred);
    check();
  }
  // Rows up to `n`, computed by a step of the past.
  void go_on(SeqId seq, uint32_t n, const Writes& writes) {
    for (auto known = static_cast<Token>(cache_.tokens(seq).size()); known < static_cast<Token>(n); ++known)
      cache_.append_token(seq, known);
    submit(++step_, seq, n, writes);
    end(step_);
  }
  void computed(SeqId seq, uint32_t n, const Writes& writes, Token first = 0) {
    cache_.add_sequence(seq, tokens(n, first), "");
    go_on(seq, n, writes);
  }

  std::vector<Transfer> add(SeqId seq, Interval range, Place to, const LayerSet& layers, bool tail = false) {
    std::vector<Transfer> transfers =
        cache_.add_copies({Verb::kAdd, seq, range, layers, to.form, to.tier, Trigger::kNow}, tail).transfers;
    check();
    return transfers;
  }
  void finish(const std::vector<Transfer>& transfers, const Status& status = Status()) {
    for (const Transfer& t : transfers) {
      cache_.transfer_ended(t.id, status);
      check();
    }
  }
  void copy(SeqId seq, Interval range, Place to, const LayerSet& layers) {
    finish(add(seq, range, to, layers));
  }
  void leave(SeqId seq, Interval range, Place from, const LayerSet& layers = all()) {
    cache_.release({Verb::kDrop, seq, range, layers, from.form, from.tier, Trigger::kWhenReady});
    check();
  }
  void drop(SeqId seq, Interval range, Place from, const LayerSet& layers = all()) {
    cache_.drop({Verb::kDrop, seq, range, layers, from.form, from.tier, Trigger::kNow});
    check();
  }
  std::vector<Transfer> save_idle() {
    KvCache::BytesByTier ahead;
    ahead.fill(UINT64_MAX);
    return cache_.save_idle(ahead);
  }
  // What is idle on the device has to go.
  void push_out() {
    const SeqId other{99};
    const auto room = static_cast<uint32_t>(available(kDeviceKv));
    cache_.add_sequence(other, tokens(room / 2 * 16 + 16, 9000), "");
    submit(++step_, other, room / 2 * 16, {all(), {}});
    end(step_);
    if (room % 2 != 0) {
      submit(++step_, other, room / 2 * 16 + 16, {group(0), {}});
      end(step_);
    }
    cache_.remove_sequence(other);
    check();
  }

  uint32_t cells(SeqId seq, Place place) const { return cache_.summary(seq).held(place.form, place.tier); }
  int64_t available(Place place) const { return cache_.budget(place.tier).available_cells(place.form); }
  PrefixIndex::Match cached(SeqId seq) const { return cache_.cached(seq); }
  uint32_t cached(SeqId seq, Place place) const { return cached(seq).what.cells[index_of(place)]; }
  uint32_t cached_idle(SeqId seq, Place place) const { return cached(seq).what.idle[index_of(place)]; }

  KvCache cache_;
  uint64_t step_ = 100;
};

}  // namespace kvasir::test
