// Binding, reservation and backfill of the one queue of a deployment, worked out by hand.
#include "apps/simulate/deployment_queue.h"

#include <gmock/gmock.h>

namespace kvasir::test {
namespace {

using testing::ElementsAre;
using testing::IsEmpty;

constexpr Nanos seconds(int64_t s) {
  return s * kNanosPerSecond;
}

// A prompt takes a block and a second for each 100 tokens; outputs take no time. Each instance holds ten
// blocks.
DeploymentQueue::Options tens(uint32_t instances, bool lends = true) {
  DeploymentQueue::Options out;
  out.instances = instances;
  out.blocks = 10;
  out.block_tokens = 100;
  out.lends = lends;
  out.costs.prefill_row_s = 0.01;
  return out;
}

// What was bound, as index and instance.
std::vector<std::pair<size_t, uint32_t>> bound(const std::vector<DeploymentQueue::Binding>& bindings) {
  std::vector<std::pair<size_t, uint32_t>> out;
  for (const DeploymentQueue::Binding& b : bindings) out.emplace_back(b.index, b.instance);
  return out;
}

using Pair = std::pair<size_t, uint32_t>;

TEST(DeploymentQueueTest, ARequestGoesWhereItIsBelievedToEndFirst) {
  DeploymentQueue queue(tens(2));
  queue.push({0, 400});  // ends at 4
  queue.push({1, 300});  // 7 beside it, 3 at the other
  queue.push({2, 200});  // 6 or 5
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}, Pair{1, 1}, Pair{2, 1}));
}

TEST(DeploymentQueueTest, ItWaitsWhereNoInstanceHasMemoryForIt) {
  DeploymentQueue queue(tens(2, false));
  queue.push({0, 600});
  queue.push({1, 700});
  queue.push({2, 500});
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}, Pair{1, 1}));
  EXPECT_EQ(queue.first_begins(), seconds(6));
  queue.ended(1, 1);
  EXPECT_THAT(bound(queue.bind(seconds(2))), ElementsAre(Pair{2, 1}));
}

// 15 blocks and the two that are being written: ten at the owner, seven at the other instance.
TEST(DeploymentQueueTest, MemoryAtSeveralInstancesIsReservedAtOnceOrNotAtAll) {
  DeploymentQueue queue(tens(2));
  queue.push({0, 400});
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}));
  queue.push({1, 1500});
  EXPECT_THAT(queue.bind(0), IsEmpty()) << "one is empty, and the other has six blocks of seven";
  EXPECT_EQ(queue.first_begins(), seconds(4));
  queue.ended(0, 1);
  const auto bindings = queue.bind(seconds(4));
  ASSERT_THAT(bound(bindings), ElementsAre(Pair{1, 0}));
  EXPECT_THAT(bindings[0].blocks, ElementsAre(10, 7));
}

TEST(DeploymentQueueTest, ItTakesMostFromThoseThatHaveMost) {
  DeploymentQueue queue(tens(3));
  queue.push({0, 400});
  queue.push({1, 600});
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}, Pair{1, 1}));
  queue.push({2, 1700});  // nine elsewhere: six of the first, three of the second
  const auto bindings = queue.bind(0);
  ASSERT_THAT(bound(bindings), ElementsAre(Pair{2, 2}));
  EXPECT_THAT(bindings[0].blocks, ElementsAre(6, 3, 10));
}

// Number 1 waits for second 4, when it is to have all of the first instance and seven blocks of the other.
TEST(DeploymentQueueTest, LaterOnesRunFirstIfTheyDoNotDelayIt) {
  DeploymentQueue queue(tens(2));
  queue.push({0, 400});
  queue.push({1, 1500});
  queue.push({2, 300});  // at the other instance it has ended by 3
  queue.push({3, 500});  // ends at 8 there, at 9 here, and the other's spare three are too few
  queue.push({4, 200});  // ends at 5 there, within those three
  queue.push({5, 200});  // ends at 7, and one is left
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}, Pair{2, 1}, Pair{4, 1}));
  EXPECT_EQ(queue.first_begins(), seconds(4));
  EXPECT_EQ(queue.waiting(), 3u);
  queue.ended(2, 1);
  EXPECT_THAT(queue.bind(seconds(3)), IsEmpty()) << "nothing ends between 3 and 4";
  queue.ended(0, 1);
  const auto bindings = queue.bind(seconds(4));
  ASSERT_THAT(bound(bindings), ElementsAre(Pair{1, 0}));
  EXPECT_THAT(bindings[0].blocks, ElementsAre(10, 7));
}

// The first should have ended at 4. While it has not, it may end at any time.
TEST(DeploymentQueueTest, NothingRunsBeforeTheFirstWhereItMayBeginAtAnyTime) {
  DeploymentQueue queue(tens(2));
  queue.push({0, 400});
  queue.push({1, 1500});
  queue.bind(0);
  queue.push({2, 400});
  queue.push({3, 300});
  EXPECT_THAT(bound(queue.bind(seconds(5))), ElementsAre(Pair{3, 1}))
      << "beside the place there is room for three";
  EXPECT_EQ(queue.first_begins(), seconds(5));
}

TEST(DeploymentQueueTest, WhatFitsNowhereGoesToTheFirstInstanceAtOnce) {
  for (const bool lends : {false, true}) {
    DeploymentQueue queue(tens(2, lends));
    queue.push({0, 1000});
    queue.push({1, lends ? 1900u : 1100u});  // 19 and two of 20
    EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}, Pair{1, 0})) << lends;
    queue.ended(1, 0);
    EXPECT_EQ(queue.waiting(), 0u);
  }
}

TEST(DeploymentQueueTest, TheNumberOfRequestsIsBoundedToo) {
  DeploymentQueue::Options options = tens(1);
  options.most_requests = 2;
  DeploymentQueue queue(options);
  for (size_t i = 0; i < 3; ++i) queue.push({i, 100});
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}, Pair{1, 0}));
  queue.ended(0, 1);
  EXPECT_THAT(bound(queue.bind(seconds(1))), ElementsAre(Pair{2, 0}));
}

// Of 200 blocks two stay free, as an engine leaves them beside others.
TEST(DeploymentQueueTest, AHundredthStaysFreeBesideOthers) {
  DeploymentQueue::Options options = tens(1);
  options.blocks = 200;
  DeploymentQueue queue(options);
  queue.push({0, 10'000});
  queue.push({1, 9'900});
  queue.push({2, 9'800});
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}, Pair{2, 0}));
  DeploymentQueue alone(options);
  alone.push({0, 20'000});
  EXPECT_THAT(bound(alone.bind(0)), ElementsAre(Pair{0, 0}));
}

// A step takes a tenth of a second: limits of 30 tokens take 3 seconds, until a request has ended with 10.
TEST(DeploymentQueueTest, OutputsAreBelievedToBeAsLongAsThoseBefore) {
  DeploymentQueue::Options options = tens(1);
  options.costs = {};
  options.costs.step_s = 0.1;
  DeploymentQueue queue(options);
  queue.push({0, 570, 30});  // six blocks
  queue.push({1, 470, 30});
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}));
  EXPECT_EQ(queue.first_begins(), from_seconds(3.1)) << "the prompt's step and 30 more";
  queue.ended(0, 10);
  EXPECT_THAT(bound(queue.bind(seconds(2))), ElementsAre(Pair{1, 0}));
  queue.push({2, 570, 30});
  queue.bind(seconds(2));
  EXPECT_EQ(queue.first_begins(), from_seconds(3.1)) << "from 2: one step, and ten";
}

}  // namespace
}  // namespace kvasir::test
