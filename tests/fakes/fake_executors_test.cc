// The executors without kernels: what they compute, what spoils it, and when they fail or defer.
#include <gtest/gtest.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "base/mutant.h"
#include "contract/forced_end.h"
#include "fakes/fake_link.h"
#include "fakes/scripted_executor.h"
#include "fakes/shadow_executor.h"

namespace kvasir::test {
namespace {

// One sequence in one slice of a step, its blocks in frames 0, 1, 2, ... from `first_frame` on.
Step one_slice(uint64_t id, const CacheGeometry& g, Interval tokens, const std::vector<Token>& all,
               uint64_t first_frame, bool samples) {
  Step step;
  step.id = StepId{id};
  step.groups = g.groups();
  StepSlice slice;
  slice.seq = SeqId{1};
  slice.tokens = tokens;
  slice.samples = samples;
  slice.blocks = g.blocks_for(tokens.end);
  slice.sampling.seed = 9;
  BlockTable table;
  uint64_t frame = first_frame;
  for (uint32_t i = 0; i < slice.blocks * step.groups; ++i, frame += 2) {
    table.push_back({frame / 2 * g.kv_cell_bytes(), frame / 2 * g.kv_cell_bytes() + g.layer_plane_bytes()});
  }
  slice.table = std::make_shared<BlockTable>(std::move(table));
  step.token_ids.assign(all.begin() + tokens.begin, all.begin() + tokens.end);
  step.slices.push_back(slice);
  return step;
}

// 24 tokens or fewer in blocks of 16, three layers, each a group; the device's memory and an executor over
// it.
struct Shadow {
  explicit Shadow(int depth = 1, uint32_t layers = 3, Link* link = nullptr, uint64_t ring_bytes = 0)
      : geometry{16, layers, 1, 8},
        frames_bytes(32 * geometry.kv_cell_bytes()),
        device(frames_bytes + ring_bytes),
        executor(geometry, device, depth, clock, link) {}

  VirtualClock clock;
  const CacheGeometry geometry;
  const uint64_t frames_bytes;
  std::vector<std::byte> device;
  ShadowExecutor executor;
};

const std::vector<Token> kPrompt = {5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};

TEST(ShadowExecutor, SamplesWhatTheModelSaysInAnyChunks) {
  const Token want = shadow_output(3, kPrompt, 9, 1, {}).at(0);
  for (uint32_t cut : {1u, 7u, 16u, 17u}) {
    Shadow s;
    s.executor.submit(one_slice(1, s.geometry, {0, cut}, kPrompt, 0, false));
    EXPECT_TRUE(s.executor.wait().sampled.empty());
    s.executor.submit(one_slice(2, s.geometry, {cut, 18}, kPrompt, 0, true));
    EXPECT_EQ(s.executor.wait().sampled.at(0).token, want) << cut;
    EXPECT_EQ(s.clock.now(), 18'000);
  }
}

TEST(ShadowModel, EveryTokenAndItsPlaceChangeTheSample) {
  const auto right = shadow_output(3, kPrompt, 9, 12, {});
  for (size_t i = 0; i < kPrompt.size(); ++i) {
    std::vector<Token> other = kPrompt;
    ++other[i];
    EXPECT_NE(shadow_output(3, other, 9, 12, {}), right) << i;
    other = kPrompt;
    std::swap(other[i], other[(i + 1) % other.size()]);
    EXPECT_NE(shadow_output(3, other, 9, 12, {}), right) << i;
  }
}

TEST(ShadowExecutor, AWrongFrameAndAFrameReusedEarlyChangeTheSample) {
  const std::vector<Token> prompt = {5, 4, 3, 2, 1};
  const Token want = shadow_output(3, prompt, 9, 1, {}).at(0);
  int same_wrong = 0, same_early = 0, same_swapped = 0;
  for (uint64_t other = 1; other <= 8; ++other) {
    Shadow s(2);
    const CacheGeometry& g = s.geometry;
    s.executor.submit(one_slice(1, g, {0, 4}, prompt, 0, false));
    s.executor.wait();
    s.executor.submit(one_slice(2, g, {4, 5}, prompt, other, true));
    if (s.executor.wait().sampled.at(0).token == want) ++same_wrong;
    s.executor.submit(one_slice(3, g, {4, 5}, prompt, 0, true));
    s.executor.submit(one_slice(4, g, {0, 4}, {9, 9, 9, 9}, other % 6, false));
    if (s.executor.wait().sampled.at(0).token == want) ++same_early;
    s.executor.wait();
    // K and V have changed places in one layer.
    s.executor.submit(one_slice(5, g, {0, 4}, prompt, 0, false));
    s.executor.wait();
    Step step = one_slice(6, g, {4, 5}, prompt, 0, true);
    step.slices[0].sampling.seed = other;
    BlockTable table = *step.slices[0].table;
    std::swap(table[other % 3].k, table[other % 3].v);
    step.slices[0].table = std::make_shared<BlockTable>(std::move(table));
    s.executor.submit(std::move(step));
    if (s.executor.wait().sampled.at(0).token == shadow_output(3, prompt, other, 1, {}).at(0)) ++same_swapped;
  }
  // A wrong history still gives the right one of 64 tokens now and then.
  EXPECT_LE(same_wrong, 2);
  EXPECT_LE(same_early, 2);
  EXPECT_LE(same_swapped, 2);
}

TEST(ShadowExecutor, FailsOnce) {
  Shadow s(1, 1);
  s.executor.fail_next();
  s.executor.submit(one_slice(1, s.geometry, {0, 1}, {1}, 0, true));
  EXPECT_FALSE(s.executor.wait().status.ok());
  s.executor.submit(one_slice(2, s.geometry, {0, 1}, {1}, 0, true));
  EXPECT_TRUE(s.executor.wait().status.ok());
}

// The first 16 tokens of kPrompt lie on the host, [layer][K, V], and pass through a ring of one or more
// layers' planes, while the frames of their block hold something else.
struct StagedShadow {
  explicit StagedShadow(int depth = 1, uint32_t layers_in_ring = 1)
      : ring_layers(layers_in_ring),
        host(plane * 2 * layers),
        device(frames_bytes + 2 * plane * ring_layers),
        link(clock, {std::span(device), std::span(host), {}}),
        executor(geometry, device, depth, clock, &link) {
    executor.submit(one_slice(1, geometry, {0, 16}, kPrompt, 0, false));
    executor.wait();
    std::copy_n(device.begin(), host.size(), host.begin());
    std::fill(device.begin(), device.end(), std::byte{0x55});
  }

  // A step for the tokens [16, end). Transfer id * 10 + l brings layer l.
  Step step(uint64_t id, uint32_t end) {
    Step out = one_slice(id, geometry, {16, end}, kPrompt, 0, end == 18);
    StepSlice& slice = out.slices[0];
    out.add_staged(slice, {0, 1}, layers);
    for (uint32_t layer = 0; layer < layers; ++layer) {
      const uint64_t ring = frames_bytes + layer % ring_layers * 2 * plane;
      out.staged_planes(slice, 0, layer) = {ring, ring + plane};
      Transfer t;
      t.id = TransferId{10 * id + layer};
      t.segments.push_back({{2 * layer * plane, Tier::kHost}, {ring, Tier::kDevice}, 2 * plane});
      out.waits.push_back({layer, 0, t.id});
      const bool first = layer < ring_layers;
      out.transfers.push_back({first ? kStepBegins : layer_attended(layer - ring_layers), std::move(t)});
    }
    out.index_by_layer();
    return out;
  }

  static constexpr uint32_t layers = 3;
  static constexpr uint64_t plane = 16 * 8;
  const CacheGeometry geometry{16, layers, 1, 8};
  const uint32_t ring_layers;
  const uint64_t frames_bytes = 64 * plane;
  VirtualClock clock;
  std::vector<std::byte> host, device;
  FakeLink link;
  ShadowExecutor executor;
};

TEST(ShadowExecutor, ReadsAHistoryThatIsStagedLayerByLayer) {
  for (uint32_t ring_layers : {1u, 2u, 3u}) {
    StagedShadow s(1, ring_layers);
    s.executor.submit(s.step(2, 18));
    EXPECT_EQ(s.link.queued(), ring_layers) << "what is due when the step begins";
    const StepResult result = s.executor.wait();
    EXPECT_EQ(result.sampled.at(0).token, shadow_output(3, kPrompt, 9, 1, {}).at(0));
    EXPECT_TRUE(result.deferred.empty());
    EXPECT_EQ(s.link.stats().transfers, 3u);
  }
}

TEST(ShadowExecutor, DefersWhatDoesNotComeInTimeAndFiresAllTheSame) {
  StagedShadow s;
  s.link.stall(true);
  Step step = s.step(2, 18);
  step.max_stall = 70;
  s.executor.submit(std::move(step));
  const StepResult result = s.executor.wait();
  EXPECT_TRUE(result.status.ok());
  EXPECT_TRUE(result.sampled.empty());
  EXPECT_EQ(result.deferred, std::vector<SeqId>{SeqId{1}});
  EXPECT_EQ(result.stalled, 70);
  EXPECT_EQ(s.link.queued(), 3u);
  s.link.stall(false);
  s.link.complete_all();
  s.executor.submit(s.step(3, 18));
  EXPECT_EQ(s.executor.wait().sampled.at(0).token, shadow_output(3, kPrompt, 9, 1, {}).at(0));
}

TEST(ShadowExecutor, FiresWhatAFailedStepDidNotComeTo) {
  StagedShadow s;
  s.executor.fail_next();
  s.executor.submit(s.step(2, 18));
  EXPECT_EQ(s.link.queued(), 1u);
  EXPECT_FALSE(s.executor.wait().status.ok());
  EXPECT_EQ(s.link.queued(), 3u);
}

TEST(ShadowExecutor, DefersInTheStepsThatItWasGivenTooEarlyToo) {
  StagedShadow s(2);
  s.link.fail(TransferId{21});
  s.executor.submit(s.step(2, 17));
  Step early = one_slice(3, s.geometry, {17, 18}, kPrompt, 0, true);
  Transfer offload;
  offload.id = TransferId{30};
  early.transfers.push_back({kStepBegins, offload});
  early.index_by_layer();
  s.executor.submit(early);
  EXPECT_EQ(s.link.queued(), 1u) << "the second step has not begun";
  EXPECT_EQ(s.executor.wait().deferred, std::vector<SeqId>{SeqId{1}});
  // Now the engine knows, and plans the rows again.
  s.executor.submit(s.step(4, 18));
  const StepResult second = s.executor.wait();
  EXPECT_EQ(second.deferred, std::vector<SeqId>{SeqId{1}});
  EXPECT_TRUE(second.sampled.empty());
  s.link.complete_all();
  EXPECT_EQ(s.link.wait(TransferId{30}, 0), TransferState::kDone);
  EXPECT_EQ(s.link.stats().transfers, 3u + 1u + 1u);
  const StepResult third = s.executor.wait();
  EXPECT_TRUE(third.deferred.empty());
  EXPECT_EQ(third.sampled.at(0).token, shadow_output(3, kPrompt, 9, 1, {}).at(0));
}

#if defined(KVASIR_MUTANTS)
TEST(ShadowExecutor, NoticesTheFaultsOfStaging) {
  for (Mutant fault : {Mutant::kSkippedTransferWait, Mutant::kRingReusedEarly, Mutant::kStagedWrongLayer}) {
    int same = 0;
    for (uint64_t seed = 0; seed < 8; ++seed) {
      const ScopedMutant active(fault);
      StagedShadow s(1, fault == Mutant::kStagedWrongLayer ? 2 : 1);
      Step step = s.step(2, 18);
      step.slices[0].sampling.seed = seed;
      s.executor.submit(std::move(step));
      if (s.executor.wait().sampled.at(0).token == shadow_output(3, kPrompt, seed, 1, {}).at(0)) ++same;
    }
    EXPECT_LE(same, 2) << static_cast<int>(fault);
  }
  StagedShadow s;
  s.link.fail(TransferId{22});
  const ScopedMutant active(Mutant::kDeferredSampled);
  s.executor.submit(s.step(2, 18));
  EXPECT_EQ(s.executor.wait().sampled.size(), 1u);
}
#endif

TEST(ScriptedExecutor, SamplesTheScriptAndFailsTheStepThatItIsTold) {
  const CacheGeometry g{16, 1, 1, 64};
  VirtualClock clock;
  ScriptedExecutor executor(clock, 2, 7);
  executor.fail_step(2, "a cable was pulled");
  executor.submit(one_slice(1, g, {0, 3}, {1, 2, 3}, 0, true));
  executor.submit(one_slice(2, g, {0, 3}, {1, 2, 3}, 0, true));
  EXPECT_EQ(executor.wait().sampled.at(0).token, 3);
  EXPECT_EQ(clock.now(), 7);
  const StepResult second = executor.wait();
  EXPECT_EQ(second.status.message(), "a cable was pulled");
  EXPECT_TRUE(second.sampled.empty());
  EXPECT_EQ(executor.steps().size(), 2u);
}

TEST(ForcedEnd, ComesAtItsPlaceAndNotBefore) {
  SamplingParams params;
  EXPECT_EQ(with_forced_end(params, 5, 9, 10), 9) << "nothing is forced";
  params.forced_end = 5;
  params.end_token = 9;
  EXPECT_EQ(with_forced_end(params, 5, 3, 10), 9);
  EXPECT_EQ(with_forced_end(params, 4, 3, 10), 3);
  EXPECT_EQ(with_forced_end(params, 4, 9, 10), 0);
  EXPECT_EQ(with_forced_end(params, 6, 9, 10), 9);
  // In the shadow's outputs, of which the test of the executor is that they are the same.
  for (uint32_t length = 1; length < 40; ++length) {
    SamplingParams sampling;
    sampling.forced_end = 2 + length;
    sampling.end_token = 17;
    const Token end = 17;
    const auto out = shadow_output(3, std::vector<Token>{1, 2, 3}, sampling, 100, {&end, 1});
    EXPECT_EQ(out.size(), length);
  }
}

}  // namespace
}  // namespace kvasir::test
