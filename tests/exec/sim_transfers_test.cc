// Transfers of simulated steps: fired and waited for in virtual time.
#include <gtest/gtest.h>

#include <map>
#include <utility>

#include "exec/sim/sim_executor.h"
#include "fakes/fake_link.h"

namespace kvasir::test {
namespace {

// Steps of 400 us over four layers.
class SimTransfersTest : public testing::Test {
 protected:
  static SimExecutor::Options options(int depth) {
    SimExecutor::Options o;
    o.times = std::make_shared<LinearTimes>(400, 0, 0, 0, 0);
    o.depth = depth;
    o.layers = 4;
    return o;
  }

  static Step step_of(uint64_t id, std::initializer_list<uint64_t> seqs) {
    Step step;
    step.id = StepId{id};
    for (uint64_t s : seqs) {
      StepSlice slice;
      slice.seq = SeqId{s};
      slice.tokens = {4, 5};
      slice.samples = true;
      step.slices.push_back(slice);
    }
    return step;
  }

  static void start(Step& step, StepPoint point, uint64_t id) {
    StepTransfer f;
    f.start_at = point;
    f.transfer.id = TransferId{id};
    step.transfers.push_back(std::move(f));
    step.index_by_layer();
  }

  // When each transfer was started, in microseconds.
  std::map<uint64_t, Nanos> started() {
    link_.stall(false);
    link_.complete_all();
    std::map<uint64_t, Nanos> out;
    for (const TransferDone& d : link_.completed()) out[raw(d.id)] = d.started / kNanosPerMicro;
    return out;
  }

  VirtualClock clock_;
  FakeLink link_{clock_};
};

TEST_F(SimTransfersTest, PointsAreSpreadOverTheStep) {
  SimExecutor executor(options(1), clock_, &link_);
  Step step = step_of(1, {1});
  start(step, kStepBegins, 1);
  start(step, layer_written(0), 2);
  start(step, layer_attended(0), 3);
  start(step, layer_written(3), 4);
  start(step, layer_attended(3), 5);
  step.waits = {{1, 0, TransferId{1}}};
  step.index_by_layer();
  executor.submit(std::move(step));
  const StepResult result = executor.wait();
  EXPECT_EQ(result.ended, 400 * kNanosPerMicro);
  EXPECT_EQ(result.sampled.size(), 1u);
  EXPECT_EQ(started(), (std::map<uint64_t, Nanos>{{1, 0}, {2, 50}, {3, 100}, {4, 350}, {5, 400}}));
}

TEST_F(SimTransfersTest, AWaitMakesTheStepLongerAndDefersWhatDidNotCome) {
  SimExecutor executor(options(1), clock_, &link_);
  Step step = step_of(1, {1, 2});
  start(step, kStepBegins, 1);
  start(step, layer_attended(3), 2);
  step.waits = {{2, 1, TransferId{1}}};
  step.index_by_layer();
  step.max_stall = 30 * kNanosPerMicro;
  link_.stall(true);
  executor.submit(std::move(step));
  const StepResult result = executor.wait();
  EXPECT_EQ(result.stalled, 30 * kNanosPerMicro);
  EXPECT_EQ(result.ended, 430 * kNanosPerMicro);
  EXPECT_EQ(clock_.now(), 430 * kNanosPerMicro);
  EXPECT_EQ(result.deferred, std::vector<SeqId>{SeqId{2}});
  ASSERT_EQ(result.sampled.size(), 1u);
  EXPECT_EQ(result.sampled[0].seq, SeqId{1});
  EXPECT_EQ(started().at(2), 430);
}

TEST_F(SimTransfersTest, AStepThatAllHaveLeftEndsAtOnce) {
  SimExecutor executor(options(1), clock_, &link_);
  Step step = step_of(1, {1});
  start(step, kStepBegins, 1);
  start(step, layer_attended(3), 2);
  step.waits = {{2, 0, TransferId{1}}};
  step.index_by_layer();
  step.max_stall = 30 * kNanosPerMicro;
  link_.stall(true);
  executor.submit(std::move(step));
  const StepResult result = executor.wait();
  EXPECT_EQ(result.ended, 230 * kNanosPerMicro);
  EXPECT_TRUE(result.sampled.empty());
  EXPECT_EQ(started().at(2), 230);
}

TEST_F(SimTransfersTest, TheSecondOfTwoStepsBeginsWhenTheFirstHasEnded) {
  SimExecutor executor(options(2), clock_, &link_);
  Step first = step_of(1, {1, 2});
  start(first, kStepBegins, 1);
  first.waits = {{0, 0, TransferId{1}}};
  first.index_by_layer();
  link_.fail(TransferId{1});
  Step second = step_of(2, {1, 2});
  start(second, kStepBegins, 2);
  executor.submit(std::move(first));
  executor.submit(std::move(second));
  EXPECT_EQ(executor.wait().deferred, std::vector<SeqId>{SeqId{1}});
  executor.submit(step_of(3, {1, 2}));
  const StepResult result = executor.wait();
  EXPECT_EQ(result.started, 400 * kNanosPerMicro);
  EXPECT_EQ(result.ended, 800 * kNanosPerMicro);
  EXPECT_EQ(result.deferred, std::vector<SeqId>{SeqId{1}});
  EXPECT_EQ(result.sampled.size(), 1u);
  EXPECT_EQ(started().at(2), 400);
  const StepResult last = executor.wait();
  EXPECT_TRUE(last.deferred.empty());
  EXPECT_EQ(last.ended, 1200 * kNanosPerMicro);
}

}  // namespace
}  // namespace kvasir::test
