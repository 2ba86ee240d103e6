// The executor's thread goes along with steps while the engine's thread does something else.
#include <gtest/gtest.h>

#include <chrono>
#include <functional>
#include <thread>

#include "base/mutant.h"
#include "exec/gpu_steps.h"
#include "fakes/fake_link.h"

namespace kvasir::test {
namespace {

// Whether it comes, within a time that is long.
bool comes(const std::function<bool()>& it) {
  for (int i = 0; i < 10'000 && !it(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  return it();
}

// Steps that wait for transfers before their layers.
class GpuPilotTest : public testing::Test {
 protected:
  explicit GpuPilotTest(FakeGpuPace pace = FakeGpuPace::kLate, GpuPilot pilot = GpuPilot::kThread)
      : steps_(pace, pilot, &link_) {}

  // Its only slice waits for this transfer before layer 1; it starts when layer 0 has attended.
  Step waiting_step(Interval tokens, TransferId id) {
    Step step = steps_.step(tokens);
    add_transfer(step, layer_attended(0), id);
    step.waits.push_back({1, 0, id});
    step.index_by_layer();
    return step;
  }
  // This transfer starts when the step has ended.
  static void add_at_end(Step& step, TransferId id) {
    add_transfer(step, layer_attended(1000), id);
    step.index_by_layer();
  }
  bool starts(TransferId id) {
    return comes([&] { return link_.wait(id, 0) == TransferState::kPending; });
  }
  static Step referring(Step step) {
    step.token_ids.back() = -1;
    step.slices[0].last_token_by_reference = true;
    return step;
  }

  VirtualClock link_clock_;
  FakeLink link_{link_clock_};
  GpuSteps steps_;

 private:
  static void add_transfer(Step& step, StepPoint at, TransferId id) {
    StepTransfer transfer;
    transfer.start_at = at;
    transfer.transfer.id = id;
    step.transfers.push_back(std::move(transfer));
  }
};

TEST_F(GpuPilotTest, GatesOpenBeforeTheResultIsWaitedFor) {
  Step step = waiting_step({0, 40}, TransferId{1});
  add_at_end(step, TransferId{2});
  steps_.executor_->submit(std::move(step));
  EXPECT_TRUE(starts(TransferId{2})) << "the step has not ended";
  EXPECT_EQ(steps_.gpu_.gates(), 1U);
  EXPECT_GE(steps_.gpu_.opened(), 1U);
  const StepResult result = steps_.executor_->wait();
  EXPECT_TRUE(result.status.ok()) << result.status.message();
  EXPECT_EQ(result.sampled.size(), 1U);
  EXPECT_TRUE(result.deferred.empty());
}

// While the device works on the first.
TEST_F(GpuPilotTest, AStepThatComesMeanwhileIsQueued) {
  ASSERT_TRUE(steps_.run(steps_.step({0, 40})).status.ok());
  ASSERT_TRUE(steps_.run(steps_.step({40, 41})).status.ok());  // there is memory for either step's image
  ASSERT_TRUE(steps_.run(steps_.step({41, 42})).status.ok());
  const uint64_t marks = steps_.gpu_.marks();
  steps_.gpu_.stand_still(true);
  steps_.executor_->submit(steps_.step({42, 43}));
  EXPECT_TRUE(comes([&] { return steps_.gpu_.marks() == marks + 1; }));
  steps_.executor_->submit(referring(steps_.step({43, 44})));
  EXPECT_TRUE(comes([&] { return steps_.gpu_.marks() == marks + 2; })) << "it is not queued";
  steps_.gpu_.stand_still(false);
  for (int i = 0; i < 2; ++i) EXPECT_TRUE(steps_.executor_->wait().status.ok());
  EXPECT_EQ(steps_.executor_->queued_early(), 1U);
}

// The first step has ended, and the engine does not know that yet.
TEST_F(GpuPilotTest, AStepThatComesAfterTheEndReadsTheToken) {
  const auto tokens_of = [&](GpuSteps& steps, bool early) {
    std::vector<Token> got = {steps.run(steps.step({0, 40})).sampled.at(0).token};
    for (uint32_t p = 40; p < 46; p += 2) {
      Step first = steps.step({p, p + 1});
      first.token_ids[0] = got.back();
      Step second = referring(steps.step({p + 1, p + 2}));
      const TransferId end{100 + p};
      if (early) add_at_end(first, end);
      steps.executor_->submit(std::move(first));
      if (early) {
        EXPECT_TRUE(starts(end));
      } else {
        got.push_back(steps.executor_->wait().sampled.at(0).token);
        second.slices[0].last_token_by_reference = false;
        second.token_ids[0] = got.back();
      }
      steps.executor_->submit(std::move(second));
      if (early) got.push_back(steps.executor_->wait().sampled.at(0).token);
      got.push_back(steps.executor_->wait().sampled.at(0).token);
    }
    return got;
  };
  GpuSteps plain;
  EXPECT_EQ(tokens_of(steps_, true), tokens_of(plain, false));
}

class GpuPilotHazards : public GpuPilotTest {
 protected:
  // The transfer of the first step fails, so that its only slice leaves it; the second was submitted before
  // the engine knew that.
  std::vector<SeqId> deferred_by_the_second() {
    link_.fail(TransferId{1});
    Step first = waiting_step({0, 40}, TransferId{1});
    add_at_end(first, TransferId{2});
    steps_.executor_->submit(std::move(first));
    EXPECT_TRUE(starts(TransferId{2}));
    steps_.executor_->submit(referring(steps_.step({40, 41})));
    EXPECT_EQ(steps_.executor_->wait().deferred, std::vector{SeqId{1}});
    const StepResult second = steps_.executor_->wait();
    EXPECT_TRUE(second.status.ok()) << second.status.message();
    return second.deferred;
  }
  // The second step waits for a transfer that is started when the first has ended, and fails.
  std::vector<SeqId> deferred_for_want_of_what_follows_the_first() {
    steps_.executor_->submit(steps_.step({0, 40}));
    Step second = referring(steps_.step({40, 41}));
    second.waits.push_back({1, 0, TransferId{1}});
    second.index_by_layer();
    steps_.executor_->submit(std::move(second));
    EXPECT_TRUE(steps_.executor_->wait().deferred.empty());
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // the device comes to the gate
    link_.fail(TransferId{1});
    Transfer transfer;
    transfer.id = TransferId{1};
    link_.start(std::move(transfer));
    steps_.executor_->step_settled();
    return steps_.executor_->wait().deferred;
  }
  // Of a table that is named by a step which has failed, and by the test.
  long holders_before_the_result_is_taken() {
    steps_.gpu_.allow_allocations(0);
    Step step = steps_.step({0, 40});
    add_at_end(step, TransferId{1});
    steps_.executor_->submit(std::move(step));
    EXPECT_TRUE(starts(TransferId{1}));
    std::this_thread::sleep_for(std::chrono::milliseconds(20));  // its answer follows
    const long holders = steps_.table_.use_count();
    EXPECT_EQ(steps_.executor_->wait().status.code(), ErrorCode::kExhausted);
    return holders;
  }
};

TEST_F(GpuPilotHazards, WhatTheStepBeforeDefersIsDeferred) {
  EXPECT_EQ(deferred_by_the_second(), std::vector{SeqId{1}});
}
TEST_F(GpuPilotHazards, AStepWaitsForTransfersThatFollowTheStepBefore) {
  EXPECT_EQ(deferred_for_want_of_what_follows_the_first(), std::vector{SeqId{1}});
}
// The cache changes a table in place if no one else holds it, and its thread does not see what the pilot's
// has read before it let go.
TEST_F(GpuPilotHazards, TheThreadThatWaitsLetsGoOfTheStep) {
  EXPECT_EQ(holders_before_the_result_is_taken(), 2);
  EXPECT_EQ(steps_.table_.use_count(), 1);
}

#if defined(KVASIR_MUTANTS)
using GpuPilotMutants = GpuPilotHazards;
TEST_F(GpuPilotMutants, AnEarlyStepThatIsNotKnownAsSuch) {
  const ScopedMutant active(Mutant::kEarlyStepUnknown);
  EXPECT_TRUE(deferred_by_the_second().empty()) << "the fault was not noticed";
}
TEST_F(GpuPilotMutants, AStepThatIsNotSettled) {
  const ScopedMutant active(Mutant::kStepUnsettled);
  EXPECT_TRUE(deferred_for_want_of_what_follows_the_first().empty()) << "the fault was not noticed";
}
TEST_F(GpuPilotMutants, ATableThatThePilotLetsGo) {
  const ScopedMutant active(Mutant::kStepLetGo);
  EXPECT_EQ(holders_before_the_result_is_taken(), 1) << "the fault was not noticed";
}
#endif

// ---------------------------------------------------------------- ends

TEST_F(GpuPilotTest, AStepOnADeviceThatIsLostEndsWithItsError) {
  ASSERT_TRUE(steps_.run(steps_.step({0, 40})).status.ok());
  steps_.gpu_.stand_still(true);
  steps_.executor_->submit(waiting_step({40, 41}, TransferId{1}));
  steps_.executor_->submit(referring(steps_.step({41, 42})));
  steps_.gpu_.lose();
  for (int i = 0; i < 2; ++i) {
    const StepResult result = steps_.executor_->wait();
    EXPECT_EQ(result.status.code(), ErrorCode::kIo);
    EXPECT_EQ(result.status.message(), steps_.executor_->failure());
  }
  EXPECT_NE(link_.queued(), 0U) << "each transfer has been started";
  EXPECT_EQ(steps_.run(steps_.step({40, 41})).status.code(), ErrorCode::kIo);
}

// Whatever is under way: no step, one or two, whose transfers do not move, on a device that works, stands
// still for a while, or is lost.
TEST(GpuPilotEnds, TheExecutorEndsWithStepsThatNoOneWaitsFor) {
  VirtualClock clock;
  for (const GpuPilot pilot : {GpuPilot::kThread, GpuPilot::kWait}) {
    for (const FakeGpuPace pace : {FakeGpuPace::kEarly, FakeGpuPace::kLate}) {
      for (int count = 0; count <= 2; ++count) {
        for (const bool is_lost : {false, true}) {
          FakeLink link(clock);
          link.stall(true);
          GpuSteps steps(pace, pilot, &link);
          for (int i = 0; i < count; ++i) {
            Step step = steps.step({static_cast<uint32_t>(i), static_cast<uint32_t>(i) + 1});
            StepTransfer& transfer = step.transfers.emplace_back();
            transfer.transfer.id = TransferId{1U + static_cast<uint64_t>(i)};
            step.waits.push_back({1, 0, transfer.transfer.id});
            step.max_stall = 100 * kNanosPerMilli;
            step.index_by_layer();
            steps.executor_->submit(std::move(step));
          }
          if (is_lost) steps.gpu_.lose();
          steps.executor_.reset();
        }
      }
    }
  }
}

}  // namespace
}  // namespace kvasir::test
