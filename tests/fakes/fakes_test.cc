// The fakes themselves: each does what the seam promises, and fails when it is told to.
#include <gtest/gtest.h>

#include <memory>

#include "fakes/fake_link.h"
#include "fakes/fake_network.h"
#include "fakes/scripted_executor.h"
#include "fakes/shadow_executor.h"

namespace kvasir::test {
namespace {

Transfer transfer(uint64_t id, TransferPriority priority = TransferPriority::kPrefetch) {
  Transfer t;
  t.id = TransferId{id};
  t.priority = priority;
  return t;
}

TEST(FakeLink, EndsTheMostUrgentFirstAndStampsTimes) {
  VirtualClock clock;
  FakeLink link(clock);
  ASSERT_TRUE(link.start(transfer(1, TransferPriority::kOffload)).ok());
  clock.advance(5);
  ASSERT_TRUE(link.start(transfer(2)).ok());
  ASSERT_TRUE(link.start(transfer(3, TransferPriority::kNeededNow)).ok());
  ASSERT_TRUE(link.start(transfer(4)).ok());
  EXPECT_TRUE(link.completed().empty());
  clock.advance(10);
  EXPECT_EQ(link.complete_all(), 4u);
  const auto done = link.completed();
  ASSERT_EQ(done.size(), 4u);
  EXPECT_EQ(done[0].id, TransferId{3});
  EXPECT_EQ(done[1].id, TransferId{2});
  EXPECT_EQ(done[2].id, TransferId{4});
  EXPECT_EQ(done[3].id, TransferId{1});
  EXPECT_EQ(done[3].started, 0);
  EXPECT_EQ(done[0].started, 5);
  EXPECT_EQ(done[0].ended, 15);
  EXPECT_TRUE(link.completed().empty());
}

TEST(FakeLink, FailsStallsAndRefuses) {
  VirtualClock clock;
  FakeLink link(clock, 2);
  ASSERT_TRUE(link.start(transfer(1)).ok());
  ASSERT_TRUE(link.start(transfer(2)).ok());
  EXPECT_EQ(link.start(transfer(3)).code(), ErrorCode::kExhausted);
  link.stall(true);
  EXPECT_FALSE(link.complete_next());
  link.stall(false);
  EXPECT_TRUE(link.complete_next(error(ErrorCode::kIo, "lost")));
  EXPECT_EQ(link.completed()[0].status.message(), "lost");
  link.refuse(true);
  EXPECT_EQ(link.start(transfer(4)).code(), ErrorCode::kExhausted);
  EXPECT_EQ(link.queued(), 1u);
}

std::vector<std::byte> bytes(int value) {
  return {static_cast<std::byte>(value)};
}

TEST(FakeNetwork, DeliversInOrderAlsoWhenLate) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 1});
  network.delay("a", "b", 100);
  ASSERT_TRUE(a->send({"b", 1}, bytes(1)).ok());
  network.delay("a", "b", 0);
  ASSERT_TRUE(a->send({"b", 1}, bytes(2)).ok());
  EXPECT_TRUE(b->receive().empty());
  clock.advance(100);
  const auto got = b->receive();
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].bytes, bytes(1));
  EXPECT_EQ(got[1].bytes, bytes(2));
  EXPECT_EQ(got[0].from, (PeerId{"a", 1}));
}

TEST(FakeNetwork, DropsWhatItIsToldTo) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 1});
  network.drop("a", "b", 1);
  EXPECT_TRUE(a->send({"b", 1}, bytes(1)).ok());
  EXPECT_TRUE(a->send({"b", 1}, bytes(2)).ok());
  const auto got = b->receive();
  ASSERT_EQ(got.size(), 1u);
  EXPECT_EQ(got[0].bytes, bytes(2));
}

TEST(FakeNetwork, ToldOnceOfADeathAndRefusedAfterIt) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto b = network.join({"b", 1});
  network.kill("b");
  EXPECT_EQ(a->lost(), (std::vector<PeerId>{{"b", 1}}));
  EXPECT_TRUE(a->lost().empty());
  EXPECT_EQ(a->send({"b", 1}, bytes(1)).code(), ErrorCode::kUnavailable);
  EXPECT_EQ(b->send({"a", 1}, bytes(1)).code(), ErrorCode::kUnavailable);
}

TEST(FakeNetwork, ARestartHasANewEpochAndTheOldOneCanBeToldApart) {
  VirtualClock clock;
  FakeNetwork network(clock);
  auto a = network.join({"a", 1});
  auto old_b = network.join({"b", 1});
  auto new_b = network.join({"b", 2});
  EXPECT_EQ(a->lost(), (std::vector<PeerId>{{"b", 1}}));
  EXPECT_EQ(a->send({"b", 1}, bytes(1)).code(), ErrorCode::kUnavailable);
  EXPECT_TRUE(a->send({"b", 2}, bytes(2)).ok());
  EXPECT_EQ(new_b->receive().size(), 1u);
  ASSERT_TRUE(old_b->send({"a", 1}, bytes(3)).ok());
  EXPECT_EQ(a->receive().at(0).from.epoch, 1u);
}

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
  uint64_t frame = first_frame;
  for (uint32_t i = 0; i < slice.blocks * step.groups; ++i) {
    KvFrames frames;
    frames.k.offset = frame++ * g.frame_bytes(FrameClass::kKvPlane);
    frames.v.offset = frame++ * g.frame_bytes(FrameClass::kKvPlane);
    step.kv_frames.push_back(frames);
  }
  step.token_ids.assign(all.begin() + tokens.begin, all.begin() + tokens.end);
  step.slices.push_back(slice);
  return step;
}

TEST(ShadowExecutor, SamplesWhatTheModelSaysInAnyChunks) {
  const CacheGeometry g{16, 3, 1, 64};
  const std::vector<Token> prompt = {5, 4, 3, 2, 1, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  const Token want = shadow_output(3, prompt, 9, 1, {}).at(0);
  for (uint32_t cut : {1u, 7u, 16u, 17u}) {
    VirtualClock clock;
    ShadowExecutor executor(g, 64 * g.frame_bytes(FrameClass::kKvPlane), 1, clock);
    executor.submit(one_slice(1, g, {0, cut}, prompt, 0, false));
    EXPECT_TRUE(executor.wait().sampled.empty());
    executor.submit(one_slice(2, g, {cut, 18}, prompt, 0, true));
    EXPECT_EQ(executor.wait().sampled.at(0).token, want) << cut;
    EXPECT_EQ(clock.now(), 18'000);
  }
}

TEST(ShadowExecutor, AWrongFrameAndAFrameReusedEarlyChangeTheSample) {
  const CacheGeometry g{16, 3, 1, 64};
  const std::vector<Token> prompt = {5, 4, 3, 2, 1};
  const Token want = shadow_output(3, prompt, 9, 1, {}).at(0);
  VirtualClock clock;
  int same_wrong = 0, same_early = 0;
  for (uint64_t other = 1; other <= 8; ++other) {
    ShadowExecutor executor(g, 64 * g.frame_bytes(FrameClass::kKvPlane), 2, clock);
    executor.submit(one_slice(1, g, {0, 4}, prompt, 0, false));
    executor.wait();
    executor.submit(one_slice(2, g, {4, 5}, prompt, other, true));
    if (executor.wait().sampled.at(0).token == want) ++same_wrong;
    executor.submit(one_slice(3, g, {4, 5}, prompt, 0, true));
    executor.submit(one_slice(4, g, {0, 4}, {9, 9, 9, 9}, other % 6, false));
    if (executor.wait().sampled.at(0).token == want) ++same_early;
    executor.wait();
  }
  // A wrong history still gives the right one of 64 tokens now and then.
  EXPECT_LE(same_wrong, 2);
  EXPECT_LE(same_early, 2);
}

TEST(ShadowExecutor, FailsOnce) {
  const CacheGeometry g{16, 1, 1, 64};
  VirtualClock clock;
  ShadowExecutor executor(g, 64 * g.frame_bytes(FrameClass::kKvPlane), 1, clock);
  executor.fail_next();
  executor.submit(one_slice(1, g, {0, 1}, {1}, 0, true));
  EXPECT_FALSE(executor.wait().status.ok());
  executor.submit(one_slice(2, g, {0, 1}, {1}, 0, true));
  EXPECT_TRUE(executor.wait().status.ok());
}

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

}  // namespace
}  // namespace kvasir::test
