// The map of copies by itself: what naming, copying, staging and giving up cells costs the engine's thread.
//
// The link moves nothing: transfers end at once. Counters are per cell, a block of one layer group.
#include <benchmark/benchmark.h>

#include <utility>
#include <vector>

#include "cache/commit/committer.h"
#include "instant_link.h"

namespace kvasir::bench {
namespace {

constexpr uint32_t kLayers = 32;
constexpr uint32_t kBlock = 64;
constexpr uint32_t kTokens = 4096;
constexpr SeqId kSeq{1};

struct World {
  explicit World(uint32_t layers_per_group) : cache(options(layers_per_group)), committer(cache, &link) {
    cache.add_sequence(kSeq, std::vector<Token>(kTokens + 2 * kBlock, 1), "");
  }
  static CacheOptions options(uint32_t layers_per_group) {
    CacheOptions o;
    o.geometry = {kBlock, kLayers, layers_per_group, 1024};
    o.device_bytes = o.geometry.kv_block_bytes() * 2 * kTokens / kBlock;
    o.host_bytes = o.device_bytes;
    o.stage_bytes = 4 * o.geometry.layer_plane_bytes() * (kTokens / kBlock + 1);
    o.prefix_caching = false;
    return o;
  }
  LayerSet all() const { return LayerSet::all(cache.geometry().groups()); }
  double cells() const { return kTokens / kBlock * cache.geometry().groups(); }

  // One step of rows up to `end`, all of which is over when this returns.
  void step(StepPlan plan, uint32_t end) {
    Rows rows;
    rows.seq = kSeq;
    rows.tokens = {cache.summary(kSeq).ready_tokens, end};
    rows.layers = all();
    rows.writes.kv = all();
    plan.rows = {rows};
    Step made = committer.apply(plan, StepId{++steps});
    for (StepTransfer& f : made.transfers) link.start(std::move(f.transfer));
    StepResult result;
    result.id = StepId{steps};
    committer.step_ended(result);
    committer.drain_transfers();
  }
  CopyChange change(Verb verb, Tier tier, Trigger trigger) const {
    return {verb, kSeq, {0, kTokens}, all(), Form::kKv, tier, trigger};
  }

  InstantLink link;
  KvCache cache;
  Committer committer;
  uint64_t steps = 0;
};

void per_cell(benchmark::State& state, double cells) {
  state.counters["time/cell"] =
      benchmark::Counter(cells, benchmark::Counter::kIsIterationInvariantRate | benchmark::Counter::kInvert);
}

// A prompt's blocks get frames, and are given up.
void BM_AllocateAndDrop(benchmark::State& state) {
  World world(static_cast<uint32_t>(state.range(0)));
  for (auto _ : state) {
    world.step({}, kTokens);
    world.cache.drop_all(kSeq);
  }
  per_cell(state, world.cells());
}

// Everything to the host and off the device, and back again.
void BM_SwapOutAndIn(benchmark::State& state) {
  World world(static_cast<uint32_t>(state.range(0)));
  world.step({}, kTokens);
  for (auto _ : state) {
    StepPlan out;
    out.copies = {world.change(Verb::kAdd, Tier::kHost, Trigger::kNow),
                  world.change(Verb::kDrop, Tier::kDevice, Trigger::kWhenReady)};
    world.committer.apply(out, StepId{world.steps + 1});
    world.committer.drain_transfers();
    StepPlan in;
    in.copies = {world.change(Verb::kAdd, Tier::kDevice, Trigger::kNow),
                 world.change(Verb::kDrop, Tier::kHost, Trigger::kWhenReady)};
    world.committer.apply(in, StepId{world.steps + 1});
    world.committer.drain_transfers();
    StepPlan free;
    free.copies = {world.change(Verb::kDrop, Tier::kHost, Trigger::kWhenReady)};
    world.committer.apply(free, StepId{world.steps + 1});
  }
  per_cell(state, 2 * world.cells());
}

// A step that stages a whole history, layer by layer.
void BM_StageHistory(benchmark::State& state) {
  World world(static_cast<uint32_t>(state.range(0)));
  world.step({}, kTokens);
  StepPlan out;
  out.copies = {world.change(Verb::kAdd, Tier::kHost, Trigger::kNow),
                world.change(Verb::kDrop, Tier::kDevice, Trigger::kWhenReady)};
  world.committer.apply(out, StepId{world.steps + 1});
  world.committer.drain_transfers();
  uint32_t end = kTokens;
  for (auto _ : state) {
    StepPlan plan;
    plan.copies = {world.change(Verb::kStage, Tier::kDevice, Trigger::kBeforeLayer)};
    // The same block's tokens again and again: what is staged is what counts here.
    world.step(std::move(plan), ++end);
    if (end == kTokens + kBlock) {
      state.SkipWithError("ran out of tokens: ask for fewer iterations");
      break;
    }
  }
  per_cell(state, kTokens / kBlock * double{kLayers});
}

BENCHMARK(BM_AllocateAndDrop)->ArgName("F")->Arg(1)->Arg(4)->Arg(32);
BENCHMARK(BM_SwapOutAndIn)->ArgName("F")->Arg(1)->Arg(4)->Arg(32);
BENCHMARK(BM_StageHistory)->ArgName("F")->Arg(1)->Arg(4)->Arg(32)->Iterations(50);

}  // namespace
}  // namespace kvasir::bench

BENCHMARK_MAIN();
