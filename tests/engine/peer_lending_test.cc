// How long the first request waits for memory of peers.
#include "engine/peer_lending.h"

#include <gtest/gtest.h>

#include <functional>

#include "fakes/views.h"

namespace kvasir::test {
namespace {

// Peers that lend nothing now.
class Refusing final : public Lending {
 public:
  LendingEvents turn(const LendingRequest& request, LendableCells&) override {
    LendingEvents events;
    events.refused = request.borrow;
    events.lendable = lendable;
    return events;
  }
  void start_anew() override {}
  void set_wake(std::function<void()>) override {}

  uint32_t lendable = UINT32_MAX;
};

EngineOptions options_with_peers() {
  EngineOptions o;
  o.cache.geometry = {kViewBlock, 2 * kViewGroups, 2, 8};
  o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * 10;
  o.cache.borrowed_bytes = o.cache.geometry.kv_cell_bytes() * 100;
  return o;
}

// A device of 20 cells, and a request that waits for room for 30 blocks, which are 60: at its longest it
// keeps 16 here, less room for what it writes, and the others at peers.
class PeerLendingTest : public testing::Test {
 protected:
  PeerLendingTest() {
    clock_.advance(kNanosPerSecond);
    view_ = make_view(10, 10);
    view_.peers.most_borrowed = 100;
    set_ring(view_, 40);
    SeqView head;
    head.id = SeqId{1};
    head.prompt_tokens = head.known_tokens = 29 * kViewBlock;
    head.max_total_tokens = 30 * kViewBlock;
    view_.waiting = {head};
  }
  // Seconds until it gives up, in steps of one; 1,000: it does not.
  int seconds_waited(uint32_t lendable) {
    return seconds_waited([&](int) { return lendable; });
  }
  // `lendable` by the second.
  int seconds_waited(const std::function<uint32_t(int)>& lendable) {
    PeerLending lending(options_, peers_, clock_, cache_, view_, requests_, metrics_);
    for (int second = 0; second < 1000; ++second) {
      peers_.lendable = lendable(second);
      lending.turn();
      if (!lending.keeps_waiting()) return second;
      clock_.advance(kNanosPerSecond);
    }
    return 1000;
  }

  const EngineOptions options_ = options_with_peers();
  VirtualClock clock_;
  Refusing peers_;
  View view_;
  KvCache cache_{options_.cache};
  LiveRequests requests_{view_};
  EngineMetrics::Peers metrics_;
};

TEST_F(PeerLendingTest, ARequestWithinThePeersReachWaitsForTheTimeout) {
  EXPECT_EQ(seconds_waited(UINT32_MAX), 120);  // their reach is not known
  EXPECT_EQ(seconds_waited(60), 120);
}

TEST_F(PeerLendingTest, OneThatAllPeersTogetherCannotHoldWaitsForThePatienceAlone) {
  EXPECT_EQ(seconds_waited(20), 3);
  EXPECT_EQ(seconds_waited(0), 3);
}

// A peer that restarts is no member for a moment, and the request may have waited for long by then.
TEST_F(PeerLendingTest, ThePatienceBeginsWhenThePeersAreGoneAndEndsWhenTheyAreBack) {
  EXPECT_EQ(seconds_waited([](int second) { return second < 50 ? 60U : 0U; }), 53);
  EXPECT_EQ(seconds_waited([](int second) { return second == 50 || second == 51 ? 0U : 60U; }), 120);
}

TEST_F(PeerLendingTest, AShortOneNeedsNoPeer) {
  view_.waiting[0].known_tokens = 9 * kViewBlock;
  view_.waiting[0].max_total_tokens = 10 * kViewBlock;
  EXPECT_EQ(seconds_waited(0), 120);
}

}  // namespace
}  // namespace kvasir::test
