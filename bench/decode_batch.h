// Sequences that decode, where part of each history is dropped and part is on the host, as plans of a step.
#pragma once

#include <chrono>
#include <cmath>
#include <cstdint>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "cache/commit/committer.h"

namespace kvasir::bench {

// Sequences of one length that decode: the first blocks of each are dropped, those behind them on the host.
class DecodeBatch {
 public:
  struct Shape {
    uint32_t sequences = 16;
    uint32_t history = 512;  // tokens of each
    double dropped = 0.25;   // of each history
    double host = 0.25;
    uint32_t steps = 0;  // that there is to be room for
  };
  DecodeBatch(const Shape& shape, const CacheGeometry& geometry)
      : sequences_(shape.sequences),
        history_(shape.history),
        room_(shape.history + shape.steps + 1),
        dropped_(tokens_of(shape.dropped, geometry)),
        away_(dropped_ + tokens_of(shape.host, geometry)),
        options_(sized(geometry)) {}

  const CacheOptions& options() const { return options_; }
  KvCache& cache() { return *cache_; }
  Committer& committer() { return *committer_; }
  uint32_t sequences() const { return sequences_; }
  // Pieces (a block in one layer) that a step finds a place for beside the frames.
  uint32_t pieces() const {
    return sequences_ * away_ / options_.geometry.block_tokens * options_.geometry.layers;
  }

  // run(step) runs a step and all that it fires, and ends it.
  template <typename Run>
  void prefill(Link& link, const Run& run) {
    cache_.emplace(options_);
    committer_.emplace(*cache_, &link);
    for (uint32_t s = 1; s <= sequences_; ++s) {
      std::vector<Token> tokens(room_ + 1);
      for (uint32_t p = 0; p < tokens.size(); ++p)
        tokens[p] = static_cast<Token>(3 + (p * 31 + s * 57) % 250);
      cache_->add_sequence(SeqId{s}, std::move(tokens), "");
      StepPlan plan;
      plan.rows = {rows(s, {0, history_}, RowKind::kPrefill)};
      run(apply(plan));
    }
    StepPlan out;
    for (uint32_t s = 1; s <= sequences_; ++s) {
      change(out, Verb::kAdd, s, {dropped_, away_}, Tier::kHost, Trigger::kNow);
      change(out, Verb::kDrop, s, {dropped_, away_}, Tier::kDevice, Trigger::kWhenReady);
      change(out, Verb::kDrop, s, {0, dropped_}, Tier::kDevice, Trigger::kNow);
    }
    apply(out);
    while (cache_->transfers_in_flight() > 0) {
      committer_->drain_transfers();
      std::this_thread::sleep_for(std::chrono::microseconds(50));
    }
  }

  // A token of each sequence.
  StepPlan decode() const {
    StepPlan plan;
    for (uint32_t s = 1; s <= sequences_; ++s) {
      change(plan, Verb::kStage, s, {dropped_, away_}, Tier::kDevice, Trigger::kBeforeLayer);
      if (dropped_ > 0) {
        plan.rows.push_back(rows(s, {0, dropped_}, RowKind::kRestore));
        plan.rows.back().writes = {};
      }
      const uint32_t end = cache_->ready_tokens(SeqId{s});
      plan.rows.push_back(rows(s, {end, end + 1}, RowKind::kDecode));
      plan.rows.back().samples = true;
    }
    return plan;
  }
  Step apply(const StepPlan& plan) { return committer_->apply(plan, StepId{++steps_}); }

 private:
  uint32_t tokens_of(double share, const CacheGeometry& g) const {
    return static_cast<uint32_t>(std::lround(share * history_ / g.block_tokens)) * g.block_tokens;
  }
  CacheOptions sized(const CacheGeometry& g) const {
    CacheOptions c;
    c.geometry = g;
    c.device_bytes = g.kv_block_bytes() * sequences_ * g.blocks_for(room_);
    c.host_bytes = g.kv_block_bytes() * (sequences_ * (away_ - dropped_) / g.block_tokens + 1);
    c.stage_bytes = 2 * g.piece_bytes(Form::kKv) * (sequences_ * away_ / g.block_tokens + 1);
    c.prefix_caching = false;
    return c;
  }
  LayerSet all() const { return LayerSet::all(options_.geometry.groups()); }
  Rows rows(uint32_t s, Interval tokens, RowKind kind) const {
    Rows r;
    r.seq = SeqId{s};
    r.tokens = tokens;
    r.layers = r.writes.kv = all();
    r.kind = kind;
    return r;
  }
  void change(StepPlan& plan, Verb verb, uint32_t s, Interval tokens, Tier tier, Trigger trigger) const {
    if (!tokens.empty()) plan.copies.push_back({verb, SeqId{s}, tokens, all(), Form::kKv, tier, trigger});
  }

  const uint32_t sequences_, history_, room_, dropped_, away_;
  const CacheOptions options_;
  std::optional<KvCache> cache_;
  std::optional<Committer> committer_;
  uint64_t steps_ = 0;
};

}  // namespace kvasir::bench
