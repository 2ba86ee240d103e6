// What other threads tell the loop: messages in order, and what ends a wait. The limits of the queue are
// tested through the engine (engine_test.cc, queue_pace_test.cc).
#include "engine/inbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <optional>
#include <thread>
#include <utility>

#include "engine/engine_fixture.h"

namespace kvasir::test {
namespace {

struct InboxTest : testing::Test {
  RequestId submit(uint32_t prompt = 5) { return inbox.submit(request(prompt, 1), nullptr).value(); }

  const EngineOptions options = small_options();
  VirtualClock clock;
  std::atomic<uint64_t> refused_late{0};
  Inbox inbox{options, clock, refused_late};
};

TEST_F(InboxTest, MessagesAreTakenOnceAndInOrder) {
  const RequestId first = submit(3), second = submit(4);
  inbox.cancel(first, FinishReason::kStop);
  const Inbox::Messages taken = inbox.take();
  ASSERT_EQ(taken.arrivals.size(), 2u);
  EXPECT_EQ(raw(taken.arrivals[0].seq), raw(first));
  EXPECT_EQ(raw(taken.arrivals[1].seq), raw(second));
  EXPECT_EQ(taken.arrivals[1].request.prompt.size(), 4u);
  ASSERT_EQ(taken.cancels.size(), 1u);
  EXPECT_EQ(taken.cancels[0], std::pair(SeqId{raw(first)}, FinishReason::kStop));
  EXPECT_TRUE(inbox.take().arrivals.empty());
}

TEST_F(InboxTest, AWakeIsNotLostAndEndsOneWait) {
  inbox.wake();
  EXPECT_TRUE(inbox.wait(std::nullopt)) << "it came before the wait";
  inbox.take();
  std::thread other([this] { inbox.wake(); });
  EXPECT_TRUE(inbox.wait(std::nullopt));
  other.join();
  inbox.take();
  EXPECT_TRUE(inbox.wait(kNanosPerMilli)) << "the timeout passes";
}

TEST_F(InboxTest, StopEndsWaitsAndRefusesRequests) {
  submit();
  inbox.stop();
  EXPECT_TRUE(inbox.stopped());
  EXPECT_FALSE(inbox.wait(std::nullopt));
  EXPECT_FALSE(inbox.wait(0));
  EXPECT_EQ(inbox.submit(request(5, 1), nullptr).status().code(), ErrorCode::kUnavailable);
}

TEST_F(InboxTest, IsIdleOnceAllThatWasAcceptedHasEnded) {
  EXPECT_TRUE(inbox.wait_idle(0));
  submit();
  submit();
  inbox.drain();
  inbox.ended();
  EXPECT_FALSE(inbox.wait_idle(0));
  inbox.ended();
  EXPECT_TRUE(inbox.wait_idle(0));
}

}  // namespace
}  // namespace kvasir::test
