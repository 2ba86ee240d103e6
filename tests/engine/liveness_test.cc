// Signs of life of the engine's loop, as a probe reads them from another thread.
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <latch>
#include <memory>
#include <thread>
#include <utility>

#include "engine/engine_fixture.h"

namespace kvasir::test {
namespace {

constexpr Nanos kSecond = kNanosPerSecond;

// Its step lasts until the test ends it, and comes on when the test says so.
class HeldExecutor final : public Executor {
 public:
  explicit HeldExecutor(Executor& executor) : executor_(executor) {}
  int depth() const override { return executor_.depth(); }
  void submit(Step step) override { executor_.submit(std::move(step)); }
  StepResult wait() override {
    begun.count_down();
    end.wait();
    return executor_.wait();
  }
  Nanos came_on_at() const override { return came_on; }

  std::latch begun{1};
  std::latch end{1};
  std::atomic<Nanos> came_on{0};

 private:
  Executor& executor_;
};

TEST(Liveness, ALoopThatRestsIsAliveAndOneThatHearsNothingIsNot) {
  Harness harness;
  harness.clock.advance(100 * kSecond);
  EXPECT_EQ(harness.engine.silent_for(), 0) << "it has nothing to do";
  harness.submit(request(5, 1));
  harness.clock.advance(7 * kSecond);
  EXPECT_EQ(harness.engine.silent_for(), 7 * kSecond) << "nothing runs the loop";
  harness.finish();
  harness.clock.advance(100 * kSecond);
  EXPECT_EQ(harness.engine.silent_for(), 0);
}

TEST(Liveness, ALongStepIsAliveAsLongAsItComesOn) {
  VirtualClock clock;
  clock.advance(kSecond);
  ScriptedExecutor scripted(clock, 1, 0);
  HeldExecutor executor(scripted);
  Engine engine(small_options(), make_policy("sarathi").value(), executor, clock);
  engine.start();
  const auto sink = std::make_shared<CollectingSink>();
  ASSERT_TRUE(engine.submit(request(5, 1), sink).ok());
  executor.begun.wait();
  clock.advance(50 * kSecond);
  EXPECT_EQ(engine.silent_for(), 50 * kSecond);
  executor.came_on = clock.now();
  EXPECT_EQ(engine.silent_for(), 0);
  clock.advance(20 * kSecond);
  ASSERT_TRUE(engine.submit(request(5, 1, 40), std::make_shared<CollectingSink>()).ok());
  clock.advance(20 * kSecond);
  EXPECT_EQ(engine.silent_for(), 40 * kSecond)
      << "what waits for the step's end counts no more than the step";
  executor.end.count_down();
  ASSERT_TRUE(engine.wait_idle(60 * kSecond));
  clock.advance(kSecond);  // in its last turn it is silent from now on, and then it rests
  while (engine.silent_for() > 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  clock.advance(100 * kSecond);
  EXPECT_EQ(engine.silent_for(), 0);
  engine.stop();
  EXPECT_EQ(sink->finish, FinishReason::kLength);
}

}  // namespace
}  // namespace kvasir::test
