// The link in virtual time: when transfers end, and in which order.
#include "exec/sim/sim_link.h"

#include <gtest/gtest.h>

#include <map>
#include <memory>
#include <utility>

#include "base/random.h"
#include "exec/sim/sim_executor.h"

namespace kvasir::test {
namespace {

// To the device 1 us a byte and 10 us a transfer, from it twice that; the disk 4 us a byte.
SimLink::Costs costs() {
  SimLink::Costs c{};
  c[index_of(Tier::kHost)][index_of(Tier::kDevice)] = {10e-6, 1e-6};
  c[index_of(Tier::kDevice)][index_of(Tier::kHost)] = {20e-6, 2e-6};
  c[index_of(Tier::kDevice)][index_of(Tier::kDisk)] = {0, 4e-6};
  c[index_of(Tier::kDisk)][index_of(Tier::kDevice)] = {0, 4e-6};
  return c;
}

Transfer transfer(uint64_t id, Tier from, Tier to, uint64_t bytes,
                  TransferPriority priority = TransferPriority::kPrefetch) {
  Transfer t;
  t.id = TransferId{id};
  t.priority = priority;
  t.segments.push_back({{0, from}, {0, to}, bytes});
  return t;
}
Transfer in(uint64_t id, uint64_t bytes, TransferPriority priority = TransferPriority::kPrefetch) {
  return transfer(id, Tier::kHost, Tier::kDevice, bytes, priority);
}

class SimLinkTest : public testing::Test {
 protected:
  // By transfer: when it began and ended, in microseconds.
  std::map<uint64_t, std::pair<Nanos, Nanos>> completed() {
    std::map<uint64_t, std::pair<Nanos, Nanos>> out;
    for (const TransferDone& d : link_.completed()) {
      if (d.status.ok()) out[raw(d.id)] = {d.started / kNanosPerMicro, d.ended / kNanosPerMicro};
    }
    return out;
  }
  using Times = std::map<uint64_t, std::pair<Nanos, Nanos>>;

  VirtualClock clock_;
  SimLink link_{costs(), clock_};
};

TEST_F(SimLinkTest, DirectionsRunBesideEachOtherAndTransfersOfOneInTurn) {
  link_.start(in(1, 90));
  link_.start(in(2, 40));
  link_.start(transfer(3, Tier::kDevice, Tier::kHost, 40));
  link_.start(transfer(4, Tier::kDevice, Tier::kDisk, 100));
  link_.start(transfer(5, Tier::kDisk, Tier::kDevice, 10));  // the disk has one lane for both ways
  EXPECT_EQ(link_.stats().queued_bytes, 280u);
  EXPECT_EQ(link_.next_end(), 100 * kNanosPerMicro);
  clock_.advance(120 * kNanosPerMicro);
  EXPECT_EQ(completed(), (Times{{1, {0, 100}}, {3, {0, 100}}}));
  clock_.advance(1000 * kNanosPerMicro);
  EXPECT_EQ(completed(), (Times{{2, {100, 150}}, {4, {0, 400}}, {5, {400, 440}}}));
  EXPECT_EQ(link_.next_end(), std::nullopt);
  const LinkStats stats = link_.stats();
  EXPECT_EQ(stats.queued_bytes, 0u);
  EXPECT_EQ(stats.transfers, 5u);
  EXPECT_EQ(stats.bytes[index_of(Tier::kHost)][index_of(Tier::kDevice)], 130u);
  EXPECT_DOUBLE_EQ(stats.busy_s, 250e-6);
  EXPECT_DOUBLE_EQ(stats.disk_busy_s, 440e-6);
}

TEST_F(SimLinkTest, AnUrgentOneGoesFirstAndNothingThatWasMovedIsLost) {
  link_.start(in(1, 90, TransferPriority::kOffload));
  link_.start(in(2, 20, TransferPriority::kPrefetch));
  clock_.advance(5 * kNanosPerMicro);
  EXPECT_EQ(completed(), Times{});
  link_.start(in(3, 10, TransferPriority::kNeededNow));
  clock_.advance(1000 * kNanosPerMicro);
  // 2 took the lane at once; 3 took it at 5 us, for 20 us; 2 had 25 us left; then 1 its whole 100 us.
  EXPECT_EQ(completed(), (Times{{3, {5, 25}}, {2, {0, 50}}, {1, {0, 150}}}));
}

// 1 takes 100 us. For 80 us it has half of the link, and an exchange of 40 us the other: 60 us are left.
TEST_F(SimLinkTest, ACollectiveAndATransferHaveHalfOfTheLinkEach) {
  link_.start(in(1, 90));
  EXPECT_EQ(link_.collective(40 * kNanosPerMicro, /*yields=*/false), 80 * kNanosPerMicro);
  EXPECT_EQ(clock_.now(), 80 * kNanosPerMicro);
  EXPECT_EQ(link_.next_end(), 140 * kNanosPerMicro);
  clock_.advance(1000 * kNanosPerMicro);
  EXPECT_EQ(completed(), (Times{{1, {0, 140}}}));
  // One of 20 us ends after 40, of an exchange of 40 half is left, which has the link alone. The disk has
  // wires of its own.
  const Nanos now = clock_.now() / kNanosPerMicro;
  link_.start(in(2, 10));
  link_.start(transfer(3, Tier::kDevice, Tier::kDisk, 10));
  EXPECT_EQ(link_.collective(40 * kNanosPerMicro, /*yields=*/false), 60 * kNanosPerMicro);
  EXPECT_EQ(completed(), (Times{{2, {now, now + 40}}, {3, {now, now + 40}}}));
  EXPECT_EQ(link_.collective(40 * kNanosPerMicro, /*yields=*/true), 40 * kNanosPerMicro) << "alone";
}

// A unit takes 262.144 us, and 1 MiB 1,048.576. Half a unit goes on beside an exchange of 1 ms, at half of
// the link, 262.144 us. The rest of the exchange has the link alone: 1,000 - 131.072 = 868.928 us. An eighth
// of 1 ms later the link is found free.
TEST(SimLinkYields, ATransferEndsItsUnitAndWaitsForTheCollective) {
  SimLink::Costs costs{};
  costs[index_of(Tier::kHost)][index_of(Tier::kDevice)] = {0, 1e-9};
  VirtualClock clock;
  SimLink link(costs, clock);
  link.start(in(1, 1 << 20));
  EXPECT_EQ(link.collective(1'000'000, /*yields=*/true), 262'144 + 868'928);
  EXPECT_EQ(link.next_end(), 1'131'072 + 125'000 + 1'048'576 - 131'072);
  // One that is short ends within its unit: half of the link for 200 us, and 900 us alone.
  clock.advance(10'000'000);
  link.start(in(2, 100'000));
  EXPECT_EQ(link.collective(1'000'000, /*yields=*/true), 200'000 + 900'000);
  EXPECT_EQ(link.next_end(), std::nullopt);
  // An exchange that ends within the unit stops nothing: 100 us of the transfer in 200, and the rest at once.
  clock.advance(10'000'000);
  const Nanos now = clock.now();
  link.start(in(3, 1 << 20));
  EXPECT_EQ(link.collective(100'000, /*yields=*/true), 200'000);
  EXPECT_EQ(link.next_end(), now + 200'000 + 1'048'576 - 100'000);
}

// Steps of 400 us over four layers, of which 80 are exchanges: 20 after the attention of each layer, at 80 us
// for the first time. A transfer of 100 us then has 20 left, and both take 40.
TEST_F(SimLinkTest, AStepTakesLongerWhereItsCollectivesMeetATransfer) {
  struct Exchanging final : StepTimes {
    double seconds(const StepLoad&) const override { return 400e-6; }
    double collective_seconds(const StepLoad&) const override { return 80e-6; }
  };
  for (const bool shared : {false, true}) {
    SimExecutor::Options o;
    o.times = std::make_shared<Exchanging>();
    o.layers = 4;
    o.collectives = shared ? &link_ : nullptr;
    SimExecutor executor(o, clock_, &link_);
    Step step;
    step.id = StepId{1};
    step.slices.emplace_back();
    step.slices.back().seq = SeqId{1};
    step.slices.back().tokens = {4, 5};
    step.index_by_layer();
    const Nanos began = clock_.now();
    link_.start(in(shared ? 2 : 1, 90));
    executor.submit(std::move(step));
    EXPECT_EQ(executor.wait().ended - began, (shared ? 420 : 400) * kNanosPerMicro);
    clock_.advance(1000 * kNanosPerMicro);
  }
}

TEST_F(SimLinkTest, OneComesAfterAnotherAndFailsWithWhatItNeeds) {
  Transfer second = in(2, 10);
  second.after = {TransferId{1}};
  Transfer third = in(3, 10);
  third.needs = {TransferId{4}};
  link_.start(transfer(1, Tier::kDevice, Tier::kHost, 40));  // until 100 us
  link_.start(transfer(4, Tier::kDevice, Tier::kHost, 40));
  link_.start(second);
  link_.start(third);
  clock_.advance(50 * kNanosPerMicro);
  link_.cancel(TransferId{4});
  link_.cancel(TransferId{1});  // moves already
  EXPECT_EQ(link_.wait(TransferId{3}, 0), TransferState::kFailed);
  EXPECT_EQ(link_.wait(TransferId{4}, 0), TransferState::kFailed);
  EXPECT_EQ(link_.wait(TransferId{2}, 60 * kNanosPerMicro), TransferState::kPending);
  EXPECT_EQ(clock_.now(), 110 * kNanosPerMicro) << "the whole timeout";
  EXPECT_EQ(link_.wait(TransferId{2}, 60 * kNanosPerMicro), TransferState::kDone);
  EXPECT_EQ(clock_.now(), 120 * kNanosPerMicro) << "no longer than needed";
  EXPECT_EQ(completed(), (Times{{1, {0, 100}}, {2, {100, 120}}}));
  Transfer late = in(5, 10);
  late.needs = {TransferId{4}};
  link_.start(late);
  EXPECT_EQ(link_.wait(TransferId{5}, 0), TransferState::kFailed);
  EXPECT_EQ(link_.stats().failed, 0u);
  EXPECT_EQ(link_.stats().cancelled, 3u);
}

TEST_F(SimLinkTest, ACancelledOneEndsWhenThoseBeforeItHave) {
  Transfer second = in(2, 10);
  second.after = {TransferId{1}};
  link_.start(in(1, 90));
  link_.start(second);
  link_.cancel(TransferId{2});
  EXPECT_EQ(link_.wait(TransferId{2}, 99 * kNanosPerMicro), TransferState::kPending);
  EXPECT_EQ(link_.wait(TransferId{2}, 1 * kNanosPerMicro), TransferState::kFailed);
}

TEST_F(SimLinkTest, WhateverIsAskedOfItEveryTransferEndsOnceAndLanesNeverMoveTwoAtOnce) {
  for (uint64_t seed = 0; seed < 30; ++seed) {
    VirtualClock clock;
    SimLink link(costs(), clock);
    Random random(seed);
    std::map<uint64_t, int> ends;
    double needed_s = 0;  // of the lane to the device
    uint64_t count = 0;
    const auto take = [&] {
      for (const TransferDone& d : link.completed()) {
        ++ends[raw(d.id)];
        EXPECT_LE(d.started, d.ended);
        EXPECT_LE(d.ended, clock.now());
      }
    };
    for (int i = 0; i < 300; ++i) {
      Transfer t = in(++count, random.below(200), static_cast<TransferPriority>(random.below(3)));
      needed_s += 10e-6 + static_cast<double>(t.bytes()) * 1e-6;
      if (count > 4 && random.below(3) == 0) t.after = {TransferId{count - 1 - random.below(4)}};
      link.start(std::move(t));
      if (random.below(2) == 0) clock.advance(static_cast<Nanos>(random.below(150)) * kNanosPerMicro);
      if (random.below(5) == 0) (void)link.wait(TransferId{1 + random.below(count)}, 40 * kNanosPerMicro);
      if (random.below(3) == 0) take();
    }
    while (link.next_end()) clock.advance(std::max<Nanos>(0, *link.next_end() - clock.now())), take();
    EXPECT_EQ(ends.size(), count);
    for (const auto& [id, times] : ends) EXPECT_EQ(times, 1) << id;
    EXPECT_EQ(link.stats().queued_bytes, 0u);
    EXPECT_NEAR(link.stats().busy_s, needed_s, 1e-9);
    EXPECT_GE(to_seconds(clock.now()), needed_s - 1e-9) << "more than the lane can do";
  }
}

}  // namespace
}  // namespace kvasir::test
