// Binding, reservation and backfill of the one queue of a deployment, worked out by hand.
#include "apps/simulate/deployment_queue.h"

#include <gmock/gmock.h>

#include <random>

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
  queue.bind(0);
  queue.push({1, 1500});
  queue.push({2, 100});  // at the other instance it has ended by 3
  queue.push({3, 300});  // ends at 6 there, and number 2 with it: the other's spare three are too few
  queue.push({4, 200});  // ends at 5 there, and number 2 with it: three
  queue.push({5, 100});  // none is left
  EXPECT_THAT(bound(queue.bind(seconds(2))), ElementsAre(Pair{2, 1}, Pair{4, 1}));
  EXPECT_EQ(queue.first_begins(), seconds(4));
  EXPECT_EQ(queue.waiting(), 3u);
  EXPECT_THAT(queue.bind(seconds(3)), IsEmpty());
  EXPECT_EQ(queue.first_begins(), seconds(4));
  queue.ended(0, 1);
  const auto bindings = queue.bind(seconds(4));
  ASSERT_THAT(bound(bindings), ElementsAre(Pair{1, 0}));
  EXPECT_THAT(bindings[0].blocks, ElementsAre(10, 7));
}

// Number 0 decodes from second 1 to 11. A prompt of five seconds beside it would stall it, and number 1,
// which waits for its memory, with it.
TEST(DeploymentQueueTest, APromptIsBelievedToStallThoseThatDecodeBesideIt) {
  DeploymentQueue::Options options = tens(1);
  options.costs.prefill_row_s = 0.01;
  options.costs.decode_row_s = 0.1;
  DeploymentQueue queue(options);
  queue.push({0, 100, 100});
  queue.push({1, 900});
  queue.push({2, 500, 1});  // would have ended by 6.2
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}));
  EXPECT_EQ(queue.first_begins(), seconds(11));
}

// Two that decode for ten seconds each: together each step takes twice as long.
TEST(DeploymentQueueTest, ThoseThatDecodeTogetherAreBelievedToSlowEachOther) {
  DeploymentQueue::Options options = tens(1);
  options.costs = {};
  options.costs.decode_row_s = 0.1;
  DeploymentQueue queue(options);
  queue.push({0, 100, 100});
  queue.push({1, 100, 100});
  queue.push({2, 800});  // the end of either is enough
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}, Pair{1, 0}));
  EXPECT_EQ(queue.first_begins(), seconds(20));
}

// Number 2 waits for number 0. When that ends, it needs 108 blocks and the two that stay free: all that
// number 1 leaves.
TEST(DeploymentQueueTest, WhatStaysFreeIsNoRoomForLaterOnes) {
  DeploymentQueue::Options options = tens(1);
  options.blocks = 200;
  options.costs = {};
  options.costs.step_s = 0.1;
  DeploymentQueue queue(options);
  queue.push({0, 9'990, 10});
  queue.push({1, 8'000, 1'000});
  EXPECT_THAT(bound(queue.bind(0)), ElementsAre(Pair{0, 0}, Pair{1, 0}));
  queue.push({2, 10'790, 10});
  queue.push({3, 100, 100});
  EXPECT_THAT(queue.bind(0), IsEmpty());
  EXPECT_EQ(queue.first_begins(), from_seconds(1.2)) << "two prompts and ten steps";
}

// What passes the first one leaves it where it was believed to begin, at every length, with and without a
// hundredth of the blocks that stays free.
TEST(DeploymentQueueTest, WhatPassesDoesNotDelayTheFirst) {
  std::mt19937_64 random(7);
  const auto below = [&](uint32_t n) { return static_cast<uint32_t>(random() % n); };
  size_t passed = 0;
  for (int run = 0; run < 500; ++run) {
    DeploymentQueue::Options options = tens(1 + below(3));
    options.blocks = run % 2 == 0 ? 200 : 10;
    options.costs.step_s = 0.01;
    options.costs.decode_row_s = run % 3 == 0 ? 0 : 0.01;
    DeploymentQueue queue(options);
    size_t index = 0;
    const auto push = [&](uint32_t blocks) {
      queue.push({index++, 1 + below(100 * blocks), 1 + below(100)});
    };
    while (queue.waiting() == 0) {
      push(options.blocks - 1);
      queue.bind(seconds(1));
    }
    const Nanos begins = queue.first_begins().value();
    for (int i = 0; i < 10; ++i) {
      push(1 + below(options.blocks / 2));
      for (const auto& binding : queue.bind(seconds(1))) passed += binding.index != 0;
      ASSERT_LE(queue.first_begins().value(), begins) << run << ", " << i;
    }
  }
  EXPECT_GT(passed, 100u);
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
  for (const uint32_t blocks : {98u, 99u, 200u}) {
    DeploymentQueue::Options options = tens(1);
    options.blocks = 200;
    DeploymentQueue queue(options);
    if (blocks < 200) queue.push({0, 10'000});
    queue.bind(0);
    queue.push({1, 100 * blocks});
    EXPECT_EQ(queue.bind(0).size(), blocks == 99 ? 0u : 1u) << blocks;
  }
}

// Each lends three of its ten blocks. 12 and the two that are written are ten and four; of 11 three are
// missing then, and two are lent. At the most three lend nine.
TEST(DeploymentQueueTest, NoInstanceLendsMoreThanItsShare) {
  DeploymentQueue::Options options = tens(4);
  options.lent_blocks = 3;
  DeploymentQueue queue(options);
  queue.push({0, 1200});
  queue.push({1, 1100});
  const auto bindings = queue.bind(0);
  ASSERT_THAT(bound(bindings), ElementsAre(Pair{0, 0}));
  EXPECT_THAT(bindings[0].blocks, ElementsAre(10, 3, 1, 0));
  EXPECT_EQ(queue.first_begins(), seconds(12));
  DeploymentQueue longest(options);
  longest.push({0, 1700});
  EXPECT_THAT(longest.bind(0)[0].blocks, ElementsAre(10, 3, 3, 3));
  DeploymentQueue longer(options);
  longer.push({0, 1800});
  EXPECT_THAT(longer.bind(0)[0].blocks, ElementsAre(0, 0, 0, 0)) << "it fits nowhere";
}

// Of 15 blocks seven go, or in whole leaves of four, eight. Where seven are all that is lent, seven go.
TEST(DeploymentQueueTest, WholeLeavesGoWhereThatMuchIsLent) {
  for (const uint32_t lent : {8u, 7u}) {
    DeploymentQueue::Options options = tens(2);
    options.leaf_blocks = 4;
    options.lent_blocks = lent;
    DeploymentQueue queue(options);
    queue.push({0, 1500});
    EXPECT_THAT(queue.bind(0)[0].blocks, ElementsAre(10, lent));
  }
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
  queue.ended(1, std::nullopt);
  EXPECT_THAT(bound(queue.bind(seconds(2))), ElementsAre(Pair{2, 0}));
  queue.push({3, 570, 30});
  queue.bind(seconds(2));
  EXPECT_EQ(queue.first_begins(), from_seconds(3.2)) << "one that failed says nothing of outputs";
}

}  // namespace
}  // namespace kvasir::test
