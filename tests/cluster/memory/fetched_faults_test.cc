// Faults while K and V are fetched and attended to here, and cells that are given back meanwhile.
#include <gtest/gtest.h>

#include <cstring>

#include "cluster/memory/memory_rig.h"

namespace kvasir::test {
namespace {

constexpr Nanos kPatience = 100 * kNanosPerMilli;
constexpr LeafRun kSixLeaves{0, 6};

bool bits_equal(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

// Leaves 0 to 2 at creditor 0, 3 at both, 4 and 5 at creditor 1; room for two windows of a leaf.
struct FetchedWorld {
  explicit FetchedWorld(uint64_t seed) : world(kShape, 2, 6, seed, options()) {
    world.place_blocks([](uint32_t cell) { return cell >= 14; });
  }
  static BorrowedMemoryOptions options() {
    return {.deadline = kPatience,
            .max_in_flight_bytes = 3 * kShape.piece_bytes(),
            .fetch = Fetch::kAlways,
            .max_fetch_bytes = 2 * kShape.leaf_bytes()};
  }
  void attend() { world.attend(kSixLeaves, 1, q, 2, partials, outcome); }
  // One of the things that happen. False: nothing is left to happen.
  bool step() {
    if (world.network.deliver_one(world.random)) return true;
    return world.borrowed->attend_one();
  }
  void expect_failed() {
    EXPECT_EQ(outcome.calls, 1);
    EXPECT_EQ(outcome.status.code(), ErrorCode::kUnavailable) << outcome.status.message();
    world.run();
    world.clock.advance(2 * kPatience);
    EXPECT_EQ(world.borrowed->tick(), INT64_MAX);
    EXPECT_EQ(outcome.calls, 1);
    EXPECT_EQ(partials, world.room(kSixLeaves, 2));
    EXPECT_FALSE(world.borrowed->attend_one());
    const auto stats = world.borrowed->stats();
    EXPECT_EQ(stats.in_flight_bytes + stats.queued, 0u);
    EXPECT_EQ(stats.failed, 1u);
  }
  // Leaves at one creditor are attended to: there is room again.
  void expect_served(LeafRun run) {
    auto room = world.room(run, 2);
    Outcome again;
    world.attend(run, 1, q, 2, room, again);
    world.run();
    EXPECT_EQ(again.calls, 1);
    EXPECT_TRUE(again.status.ok()) << again.status.message();
    EXPECT_TRUE(bits_equal(room, world.expected(run, 1, q, 2)));
  }
  const PeerId& id(size_t c) const { return world.creditors[c].id; }

  inline static const MemoryShape kShape = memory_shape(ops::KvType::kBf16, 2, 2);
  MemoryWorld world;
  std::vector<float> q = world.random_query(2);
  std::vector<float> partials = world.room(kSixLeaves, 2);
  Outcome outcome;
};

enum class Fault { kLost, kContractEnds, kSomeGivenBack, kUnreachable, kTakenBack, kSilence, kCount };

// Each fault at each point of the way.
TEST(FetchedFaults, EndItOnceAtAnyPoint) {
  int faults = 0, too_late = 0;
  for (int at = 0; at < 80; at += 3) {
    for (int f = 0; f < static_cast<int>(Fault::kCount); ++f) {
      SCOPED_TRACE(testing::Message() << "fault " << f << " after " << at);
      FetchedWorld fetched(static_cast<uint64_t>(at));
      MemoryWorld& world = fetched.world;
      fetched.attend();
      for (int i = 0; i < at; ++i) fetched.step();
      const PeerId& peer = fetched.id(0);
      switch (static_cast<Fault>(f)) {
        case Fault::kLost:
          world.borrowed->lost(peer);
          break;
        case Fault::kContractEnds:
          for (uint64_t k : {1u, 2u}) world.borrowed->unmap(peer, k);
          break;
        case Fault::kSomeGivenBack:
          for (uint64_t k : {1u, 2u}) world.borrowed->unmap(peer, k, 0, 100);
          break;
        case Fault::kUnreachable:
          world.network.refuse(peer);
          break;
        case Fault::kTakenBack:
          for (uint64_t k : {1u, 2u}) world.creditors[0].cells->end(world.self, k);
          break;
        default:
          world.clock.advance(kPatience);
          world.borrowed->tick();
      }
      world.run();
      if (fetched.outcome.status.ok()) {
        // All that was needed of the peer was here.
        ++too_late;
        EXPECT_EQ(fetched.outcome.calls, 1);
        EXPECT_TRUE(bits_equal(fetched.partials, world.expected(kSixLeaves, 1, fetched.q, 2)));
        continue;
      }
      ++faults;
      fetched.expect_failed();
      fetched.expect_served({4, 6});
    }
  }
  EXPECT_GT(faults, 60);
  EXPECT_GT(too_late, 10);
}

TEST(FetchedFaults, TheDeadlineHoldsWhateverItWaitsFor) {
  for (const bool fetched_first : {false, true}) {
    FetchedWorld fetched(1);
    MemoryWorld& world = fetched.world;
    fetched.attend();
    // What was fetched is not attended to, or nothing is fetched.
    while (fetched_first && world.network.deliver_one(world.random)) {
    }
    world.clock.advance(kPatience - 1);
    EXPECT_EQ(world.borrowed->tick(), world.clock.now() + 1);
    EXPECT_EQ(fetched.outcome.calls, 0);
    world.clock.advance(1);
    world.borrowed->tick();
    EXPECT_EQ(world.borrowed->stats().deadlines, 1u);
    fetched.expect_failed();
    fetched.expect_served({0, 2});
  }
}

TEST(FetchedFlow, RoomAndBytesOnTheirWayAreBounded) {
  FetchedWorld fetched(2);
  MemoryWorld& world = fetched.world;
  const uint64_t leaf = FetchedWorld::kShape.leaf_bytes();
  std::deque<Outcome> outcomes;
  std::deque<std::vector<float>> rooms;
  for (int i = 0; i < 5; ++i) {
    auto& room = rooms.emplace_back(world.room(kSixLeaves, 2));
    world.attend(kSixLeaves, 1, fetched.q, 2, room, outcomes.emplace_back());
  }
  do {
    const auto stats = world.borrowed->stats();
    EXPECT_LE(stats.in_flight_bytes, 2 * 3 * FetchedWorld::kShape.piece_bytes());
    EXPECT_LE(stats.queued * FetchedWorld::kShape.piece_bytes(), 2 * leaf);
    EXPECT_LE(stats.scratch_bytes, 2 * leaf);
  } while (fetched.step());
  for (size_t i = 0; i < 5; ++i) {
    EXPECT_TRUE(outcomes[i].calls == 1 && outcomes[i].status.ok());
    EXPECT_TRUE(bits_equal(rooms[i], world.expected(kSixLeaves, 1, fetched.q, 2)));
  }
  EXPECT_EQ(world.borrowed->stats().scratch_bytes, 2 * leaf);
  EXPECT_EQ(world.borrowed->stats().fetched_bytes, 5 * 6 * leaf);
}

// A creditor that has no room for a copy is asked again, after a while, until the deadline.
TEST(FetchedFlow, WhereThereIsNoRoomItIsAskedAgain) {
  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2);
  MemoryWorld world(shape, 1, 1, 3, {.deadline = kPatience}, {.threads = 0, .max_queued = 2});
  world.place([](uint32_t) { return 0; });
  const auto q = world.random_query(1);
  auto partials = world.room({0, 1}, 1);
  std::vector<std::byte> in(64, std::byte{7}), out(64);
  for (const bool in_time : {true, false}) {
    const auto before = world.borrowed->stats();
    Outcome attended, written, read;
    world.attend({0, 1}, 0, q, 1, partials, attended);
    world.borrowed->write(0, in, written.done());
    world.borrowed->read(0, out, read.done());  // behind the write, and one too many
    while (world.network.deliver_one(world.random)) {
    }
    EXPECT_EQ(world.borrowed->stats().busy, before.busy + 1);
    const Nanos again = world.borrowed->tick();
    ASSERT_LT(again, world.clock.now() + kPatience);
    world.clock.advance(again - world.clock.now() - 1);
    world.borrowed->tick();
    EXPECT_EQ(world.network.waiting(), 0u);
    world.clock.advance(1);
    world.borrowed->tick();
    EXPECT_EQ(world.network.waiting(), 1u);
    while (world.network.deliver_one(world.random)) {
    }
    EXPECT_EQ(world.borrowed->stats().busy, before.busy + 2);
    EXPECT_EQ(read.calls, 0);
    if (!in_time) world.clock.advance(kPatience);
    world.borrowed->tick();
    world.run();  // the answer to the query says that there is room
    EXPECT_EQ(attended.calls + written.calls + read.calls, 3);
    EXPECT_EQ(read.status.ok(), in_time);
    if (in_time) {
      EXPECT_EQ(in, out);
    } else {
      EXPECT_EQ(read.status.code(), ErrorCode::kUnavailable);
    }
  }
}

// Cells are given back, and their numbers are used again at once, for other cells of the tier.
TEST(FetchedCells, GivenBackTheyMayBeMappedAnew) {
  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2);
  const uint64_t cell = shape.geometry.kv_cell_bytes();
  MemoryWorld world(shape, 1, 2, 4, {.deadline = kPatience});
  const PeerId& id = world.creditors[0].id;
  world.creditors[0].cells->lend(world.self, 1, 8);
  world.borrowed->map(id, 1, 0, 0, 6);
  std::vector<std::byte> old_bytes(cell, std::byte{1}), new_bytes(cell, std::byte{2}), kept(cell),
      moved(cell);
  Outcome first, second, under_way, spared, third, fourth, gone;
  for (uint64_t at : {1u, 2u}) world.borrowed->write(at * cell, old_bytes, first.done());
  world.run();
  EXPECT_EQ(first.calls, 2);
  world.borrowed->read(2 * cell, moved, under_way.done());
  world.borrowed->read(1 * cell, kept, spared.done());
  world.borrowed->unmap(id, 1, 2, 2);
  EXPECT_EQ(under_way.calls, 1);
  EXPECT_EQ(under_way.status.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(spared.calls, 0);
  // Slot 2 is now cell 7's, and cell 2 is slot 7.
  world.borrowed->map(id, 1, 2, 7, 1);
  world.borrowed->map(id, 1, 7, 2, 1);
  world.borrowed->write(7 * cell, new_bytes, second.done());
  world.run();
  EXPECT_TRUE(spared.calls == 1 && spared.status.ok());
  EXPECT_EQ(kept, old_bytes);
  EXPECT_EQ(moved, std::vector<std::byte>(cell));  // not by what came late, either
  world.borrowed->read(7 * cell, moved, third.done());
  world.borrowed->read(3 * cell, kept, gone.done());
  EXPECT_EQ(gone.status.code(), ErrorCode::kUnavailable);
  world.run();
  EXPECT_EQ(moved, new_bytes);
  // The rest of the contract ends as one.
  world.borrowed->unmap(id, 1, 9, 4);  // which it does not have
  world.borrowed->read(5 * cell, kept, fourth.done());
  world.borrowed->unmap(id, 1);
  EXPECT_EQ(fourth.status.code(), ErrorCode::kUnavailable);
  world.borrowed->map(id, 2, 0, 0, 8);  // all eight are nowhere
}

// Whatever is given back of what a query needs still, it never takes what is written there later.
TEST(FetchedCells, AQueryNeverSeesWhatIsWrittenLater) {
  int well = 0, failed = 0;
  for (uint64_t seed = 0; seed < 100; ++seed) {
    const MemoryShape shape = FetchedWorld::kShape;
    auto options = FetchedWorld::options();
    options.fetch = static_cast<Fetch>(seed % 3);
    MemoryWorld world(shape, 2, 6, seed, options);
    Random& random = world.random;
    world.place_anywhere(3);
    for (auto& creditor : world.creditors) creditor.memory->set_share(random.below(2) == 0 ? 0 : 1);
    const auto q = world.random_query(2);
    auto partials = world.room(kSixLeaves, 2);
    Outcome outcome, overwritten;
    world.attend(kSixLeaves, 1, q, 2, partials, outcome);
    for (uint64_t i = random.below(60); i > 0; --i) {
      world.network.deliver_one(random);
      world.creditors[random.below(2)].memory->serve_one();
      if (random.below(3) == 0) world.borrowed->attend_one();
    }
    // All cells of one contract, anew where another one's may be.
    const PeerId& id = world.creditors[random.below(2)].id;
    world.borrowed->unmap(id, 1, 0, 100);
    const std::vector<std::byte> junk(shape.geometry.kv_cell_bytes(), std::byte{0x41});
    uint32_t index = 0;
    std::deque<Outcome> probes;
    std::vector<std::byte> byte(24);
    for (uint32_t cell = 0; cell < 24; ++cell) {
      Outcome& probe = probes.emplace_back();
      world.borrowed->read(cell * junk.size(), {&byte[cell], 1}, probe.done());
      if (probe.calls == 0) continue;  // it is somewhere
      world.borrowed->map(id, 1, index++, cell, 1);
      world.borrowed->write(cell * junk.size(), junk, overwritten.done());
    }
    world.run();
    ASSERT_EQ(outcome.calls, 1);
    if (outcome.status.ok()) {
      ++well;
      ASSERT_TRUE(bits_equal(partials, world.expected(kSixLeaves, 1, q, 2))) << seed;
    } else {
      ++failed;
      ASSERT_EQ(partials, world.room(kSixLeaves, 2)) << seed;
    }
  }
  EXPECT_GT(well, 10);
  EXPECT_GT(failed, 10);
}

}  // namespace
}  // namespace kvasir::test
