// Peers that die, take back, answer late, twice, or wrong: an operation ends once, and never with a wrong
// result.
#include "cluster/memory/borrowed_memory.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>

#include "base/mutant.h"
#include "cluster/memory/memory_rig.h"

namespace kvasir::test {
namespace {

bool equal_bits(std::span<const float> a, std::span<const float> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}

constexpr Nanos kDeadline = 100 * kNanosPerMilli;

// Six leaves in turn at two creditors, and one query over all of them.
class BorrowedFaults : public testing::Test {
 protected:
  BorrowedFaults() {
    world.place([](uint32_t leaf) { return static_cast<int>(leaf % 2); });
  }
  void attend() { world.attend(kRun, 0, q, 2, partials, outcome); }
  void expect_failed() {
    EXPECT_EQ(outcome.calls, 1);
    ASSERT_FALSE(outcome.status.ok());
    EXPECT_EQ(outcome.status.code(), ErrorCode::kUnavailable) << outcome.status.message();
    // Whatever comes later, nothing is said again and nothing written.
    world.run();
    world.clock.advance(2 * kDeadline);
    EXPECT_EQ(world.borrowed->tick(), INT64_MAX);
    EXPECT_EQ(outcome.calls, 1);
    EXPECT_EQ(partials, world.room(kRun, 2));
    EXPECT_EQ(world.borrowed->stats().in_flight_bytes, 0u);
    EXPECT_EQ(world.borrowed->stats().queued, 0u);
    EXPECT_EQ(world.borrowed->stats().failed, 1u);
  }
  // The reply that creditor c sends to the query, taken off the network.
  HeldNetwork::Packet answer_of(size_t c) {
    const auto query = world.network.take(world.self, id(c));
    EXPECT_TRUE(query);
    world.network.deliver(*query);
    EXPECT_TRUE(world.creditors[c].memory->serve_one());
    const auto reply = world.network.take(id(c), world.self);
    EXPECT_TRUE(reply);
    return *reply;
  }
  const PeerId& id(size_t c) const { return world.creditors[c].id; }

  static constexpr LeafRun kRun{0, 6};
  MemoryWorld world{memory_shape(ops::KvType::kBf16, 2, 2), 2, 6, 1, {.deadline = kDeadline}};
  std::vector<float> q = world.random_query(2);
  std::vector<float> partials = world.room(kRun, 2);
  Outcome outcome;
};

TEST_F(BorrowedFaults, ADeadPeerEndsIt) {
  attend();
  world.borrowed->lost(id(0));
  expect_failed();
  EXPECT_NE(outcome.status.message().find("creditor0"), std::string::npos);
  // What lay there is nowhere; what lies at the other is still there.
  Outcome again, other;
  auto one = world.room({0, 1}, 2);
  world.attend({0, 1}, 0, q, 2, one, again);
  EXPECT_EQ(again.status.code(), ErrorCode::kUnavailable);
  world.attend({1, 2}, 0, q, 2, one, other);
  world.run();
  EXPECT_TRUE(other.status.ok());
  EXPECT_TRUE(equal_bits(one, world.expected({1, 2}, 0, q, 2)));
}

TEST_F(BorrowedFaults, AContractThatEndsEndsIt) {
  attend();
  world.borrowed->unmap(id(1), 1);
  expect_failed();
  world.borrowed->unmap(id(1), 1);  // unknown by now
}

TEST_F(BorrowedFaults, MemoryThatWasTakenBackIsToldByTheCreditor) {
  attend();
  world.creditors[0].cells->end(world.self, 1);
  world.run();
  expect_failed();
  EXPECT_EQ(world.creditors[0].memory->stats().no_cell, 1u);
}

TEST_F(BorrowedFaults, SilenceEndsAtTheDeadline) {
  attend();
  EXPECT_EQ(world.borrowed->tick(), world.clock.now() + kDeadline);
  while (world.network.deliver_one(world.random)) {
  }
  world.clock.advance(kDeadline - 1);
  world.borrowed->tick();
  EXPECT_EQ(outcome.calls, 0);
  world.clock.advance(1);
  world.borrowed->tick();
  EXPECT_EQ(world.borrowed->stats().deadlines, 1u);
  EXPECT_NE(outcome.status.message().find("creditor"), std::string::npos) << outcome.status.message();
  expect_failed();
  // The creditors had it in their queues, and did no useless work.
  EXPECT_EQ(world.creditors[0].memory->stats().too_late, 1u);
  EXPECT_EQ(world.creditors[0].memory->stats().queries, 0u);
}

TEST_F(BorrowedFaults, APeerThatCannotBeReachedEndsIt) {
  world.network.refuse(id(1));
  attend();
  expect_failed();
}

TEST_F(BorrowedFaults, AnotherLifeOfTheCreditorEndsIt) {
  attend();
  const auto reply = answer_of(0);
  // The same instance is back, and lends again.
  const PeerId reborn{id(0).instance, 555};
  world.borrowed->unmap(id(1), 1);
  outcome = {};
  world.borrowed->unmap(id(1), 2);
  Outcome read;
  std::vector<std::byte> bytes(8);
  world.borrowed->read(0, bytes, read.done());
  world.borrowed->map(reborn, 1, 0, 4 * 1, 4);  // leaf 1 was the other one's
  EXPECT_EQ(read.calls, 1);
  EXPECT_EQ(read.status.code(), ErrorCode::kUnavailable);
  // What its former life sends counts for nothing, as does what pretends to be of the new one.
  world.network.deliver(reply);
  auto pretended = reply;
  pretended.from = reborn;
  world.network.deliver(pretended);
  EXPECT_EQ(world.borrowed->stats().late_replies, 1u);
  EXPECT_EQ(world.borrowed->stats().wrong_replies, 1u);
  EXPECT_EQ(outcome.calls, 0);
}

TEST_F(BorrowedFaults, LivesOfAPeerThatAreOverAreForgotten) {
  EXPECT_EQ(world.borrowed->stats().creditors, 2u);
  attend();
  world.borrowed->lost(id(0));
  world.run();
  for (uint64_t epoch = 1; epoch < 100; ++epoch) world.borrowed->map({"new", epoch}, 1, 0, 0, 1);
  EXPECT_LE(world.borrowed->stats().creditors, 3u);
}

TEST_F(BorrowedFaults, RepliesThatComeTwiceAreDropped) {
  attend();
  const auto first = answer_of(0);
  const auto second = answer_of(1);
  for (int i = 0; i < 3; ++i) world.network.deliver(second);
  EXPECT_EQ(outcome.calls, 0);
  for (int i = 0; i < 3; ++i) world.network.deliver(first);
  EXPECT_EQ(outcome.calls, 1);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_TRUE(equal_bits(partials, world.expected(kRun, 0, q, 2)));
  EXPECT_EQ(world.borrowed->stats().late_replies, 4u);
}

TEST_F(BorrowedFaults, ARepliesSenderAndItsLifeAreChecked) {
  attend();
  const auto first = answer_of(0);
  auto other = first;
  other.from = id(1);  // of another peer
  world.network.deliver(other);
  other = first;
  other.bytes[16] = std::byte{99};  // for another life of us
  world.network.deliver(other);
  other = first;
  other.bytes[24] = std::byte{99};  // of another life of it
  world.network.deliver(other);
  other = first;
  other.bytes[0] = std::byte{99};  // no message of ours
  world.network.deliver(other);
  EXPECT_EQ(world.borrowed->stats().wrong_replies, 4u);
  EXPECT_EQ(outcome.calls, 0);
  world.network.deliver(first);
  world.run();
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_TRUE(equal_bits(partials, world.expected(kRun, 0, q, 2)));
}

TEST_F(BorrowedFaults, AReplyOfAnotherSizeEndsIt) {
  attend();
  auto first = answer_of(0);
  first.bytes.pop_back();
  world.network.deliver(first);
  EXPECT_EQ(world.borrowed->stats().wrong_replies, 1u);
  expect_failed();
}

TEST_F(BorrowedFaults, TheEndEndsWhatIsOpen) {
  attend();
  world.borrowed.reset();
  EXPECT_EQ(outcome.calls, 1);
  EXPECT_EQ(outcome.status.code(), ErrorCode::kUnavailable);
}

// A late answer to one query, while another one of the same size waits.
void late_answer(MemoryWorld& world, std::span<float> partials, std::span<const float> q, Outcome& second) {
  Outcome first;
  const auto other = world.random_query(2);
  world.attend({0, 1}, 0, other, 2, partials, first);
  const auto query = world.network.take(world.self, world.creditors[0].id);
  ASSERT_TRUE(query);
  world.network.deliver(*query);
  ASSERT_TRUE(world.creditors[0].memory->serve_one());
  const auto late = world.network.take(world.creditors[0].id, world.self);
  world.clock.advance(kDeadline);
  world.borrowed->tick();
  EXPECT_EQ(first.calls, 1);
  world.attend({0, 1}, 0, q, 2, partials, second);
  world.network.deliver(*late);
  world.run();
  EXPECT_EQ(first.calls, 1);
  EXPECT_EQ(second.calls, 1);
}

TEST_F(BorrowedFaults, ALateAnswerIsNotAnothersAnswer) {
  auto one = world.room({0, 1}, 2);
  late_answer(world, one, q, outcome);
  EXPECT_TRUE(outcome.status.ok());
  EXPECT_TRUE(equal_bits(one, world.expected({0, 1}, 0, q, 2)));
  EXPECT_EQ(world.borrowed->stats().late_replies, 1u);
}

#if defined(KVASIR_MUTANTS)
TEST_F(BorrowedFaults, ALateAnswerThatIsMergedIsSeen) {
  ScopedMutant active(Mutant::kStaleReplyMerged);
  auto one = world.room({0, 1}, 2);
  late_answer(world, one, q, outcome);
  EXPECT_FALSE(equal_bits(one, world.expected({0, 1}, 0, q, 2)));
}
#endif

TEST(BorrowedFlow, BytesInFlightAreBounded) {
  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2);
  const uint64_t cell = shape.geometry.kv_cell_bytes();
  MemoryWorld world(shape, 1, 4, 2, {.deadline = kDeadline, .max_in_flight_bytes = 3 * cell});
  world.place([](uint32_t) { return 0; });
  std::vector<std::byte> bytes(16 * cell);
  std::deque<Outcome> outcomes;
  for (uint64_t i = 0; i < 16; ++i) {
    world.borrowed->read(i * cell, {bytes.data() + i * cell, cell}, outcomes.emplace_back().done());
  }
  EXPECT_EQ(world.network.waiting(), 2u);
  EXPECT_EQ(world.borrowed->stats().queued, 14u);
  while (world.network.deliver_one(world.random)) {
    EXPECT_LE(world.borrowed->stats().in_flight_bytes, 3 * cell);
  }
  for (const Outcome& outcome : outcomes) EXPECT_TRUE(outcome.calls == 1 && outcome.status.ok());
  // One that waits in the queue has its deadline, too, and is then never sent.
  for (uint64_t i = 0; i < 4; ++i) {
    world.borrowed->read(i * cell, {bytes.data(), cell}, outcomes.emplace_back().done());
  }
  world.clock.advance(kDeadline);
  world.borrowed->tick();
  EXPECT_EQ(outcomes.back().status.code(), ErrorCode::kUnavailable);
  EXPECT_EQ(world.network.waiting(), 2u);
}

TEST(BorrowedFlow, ADoneMayBeginTheNext) {
  MemoryWorld world(memory_shape(ops::KvType::kBf16, 2, 2), 1, 1, 3);
  world.place([](uint32_t) { return 0; });
  std::vector<std::byte> bytes(64);
  int calls = 0;
  std::function<void(Status)> next = [&](Status status) {
    EXPECT_TRUE(status.ok());
    if (++calls < 5) world.borrowed->read(0, bytes, next);
  };
  world.borrowed->read(0, bytes, next);
  world.run();
  EXPECT_EQ(calls, 5);
}

TEST(BorrowedFlow, CostsAreMeasured) {
  MemoryWorld world(memory_shape(ops::KvType::kBf16, 2, 2), 1, 4, 4);
  world.place([](uint32_t) { return 0; });
  const PeerId& id = world.creditors[0].id;
  EXPECT_FALSE(world.borrowed->cost(id));
  std::vector<std::byte> bytes(world.shape.geometry.kv_cell_bytes());
  const auto q = world.random_query(1);
  for (int i = 0; i < 400; ++i) {
    // 1 ms and 1 ns for each byte, there and back.
    Outcome read, attended;
    auto partials = world.room({0, 4}, 1);
    std::span<std::byte> part(bytes.data(), i % 2 ? bytes.size() : 64);
    world.borrowed->read(0, part, read.done());
    world.clock.advance(kNanosPerMilli +
                        static_cast<Nanos>(2 * kDataHeaderBytes + kCellSpanBytes + part.size()));
    world.run();
    const auto before = world.borrowed->stats();
    world.attend({0, 4}, 0, q, 1, partials, attended);
    const auto sent = world.borrowed->stats();
    world.clock.advance(kNanosPerMilli + static_cast<Nanos>(sent.in_flight_bytes - before.in_flight_bytes));
    world.run();
  }
  const auto cost = world.borrowed->cost(id);
  ASSERT_TRUE(cost);
  EXPECT_NEAR(cost->latency_s, 1e-3, 1e-6);
  EXPECT_NEAR(cost->bytes_per_s, 1e9, 1e7);
  EXPECT_FALSE(world.borrowed->cost({"stranger", 1}));
}

// A creditor's word on its own time counts up to what has passed here.
TEST_F(BorrowedFaults, ABoastfulCreditorIsNotBelieved) {
  Outcome read;
  std::vector<std::byte> bytes(64);
  world.borrowed->read(0, bytes, read.done());
  world.clock.advance(kNanosPerMilli);
  world.run();
  attend();
  auto first = answer_of(0);
  const auto second = answer_of(1);
  std::fill_n(first.bytes.begin() + 32, 16, std::byte{0xff});  // worked, and waited
  world.clock.advance(6 * kNanosPerMilli);
  world.network.deliver(first);
  world.network.deliver(second);
  EXPECT_TRUE(outcome.status.ok());
  const auto cost = world.borrowed->cost(id(0));
  ASSERT_TRUE(cost);
  EXPECT_NEAR(cost->attend_s, 1e-3, 1e-9);  // 3 leaves, 2 rows
  EXPECT_EQ(cost->wait_s, 0);
  EXPECT_TRUE(equal_bits(partials, world.expected(kRun, 0, q, 2)));
}

// Everything at once, by chance: each operation ends once, and what ends well is right.
TEST(BorrowedTorture, EndsOnceAndRight) {
  int well = 0, failed = 0;
  BorrowedMemoryStats sums;
  for (uint64_t seed = 0; seed < 90; ++seed) {
    constexpr uint32_t kLeaves = 9;
    const ops::KvType type = ops::kKvTypes[seed % 3];
    const int creditors = 1 + static_cast<int>(seed % 4);
    const MemoryShape shape = memory_shape(type, 2, seed % 2 ? 4 : 1, 16, 64, 2);
    // Room for one leaf, or some; each way to decide.
    MemoryWorld world(shape, creditors, kLeaves, 900 + seed,
                      {.deadline = kDeadline,
                       .max_in_flight_bytes = 60'000,
                       .max_message_bytes = 6'000,
                       .fetch = static_cast<Fetch>(seed / 3 % 3),
                       .max_fetch_bytes = shape.leaf_bytes() * (seed % 10)});
    Random& random = world.random;
    const auto any = [&](uint64_t n) { return static_cast<uint32_t>(random.below(n)); };
    world.place_anywhere(seed % 4 == 0 ? 100 : 4);
    struct Asked {
      LeafRun run;
      uint32_t layer, rows;
      std::vector<float> q, partials;
      Outcome outcome;
    };
    std::deque<Asked> asked;
    std::vector<HeldNetwork::Packet> old;
    for (int i = 0; i < 120; ++i) {
      switch (any(17)) {
        case 0:
        case 1:
        case 2: {
          Asked& a = asked.emplace_back();
          a.run.first = any(kLeaves);
          a.run.end = a.run.first + 1 + any(kLeaves - a.run.first);
          a.layer = any(2);
          a.rows = 1 + any(6);
          a.q = world.random_query(a.rows);
          a.partials = world.room(a.run, a.rows);
          world.attend(a.run, a.layer, a.q, a.rows, a.partials, a.outcome);
          break;
        }
        case 3:
          world.clock.advance(static_cast<Nanos>(random.below(kDeadline / 2)));
          world.borrowed->tick();
          break;
        case 4: {  // lost, twice, damaged, or held back until much later
          const PeerId& peer = world.creditors[random.below(world.creditors.size())].id;
          const bool reply = random.below(2) == 0;
          auto packet = world.network.take(reply ? peer : world.self, reply ? world.self : peer);
          if (!packet) break;
          if (random.below(3) > 0) old.push_back(*packet);
          if (random.below(3) == 0) world.network.deliver(*packet);
          if (random.below(3) == 0) {
            // Format, kind, code and epochs: no parser can tell that another number is not the one that was
            // meant.
            const size_t at = random.below(24);
            packet->bytes[at < 8 ? at : at + 8] = static_cast<std::byte>(random.below(256));
            packet->bytes.resize(random.below(2) ? packet->bytes.size() : random.below(packet->bytes.size()));
            world.network.deliver(*packet);
          }
          break;
        }
        case 5:
          if (!old.empty()) world.network.deliver(old[random.below(old.size())]);
          break;
        case 6:
          if (random.below(12) > 0) break;
          world.borrowed->lost(world.creditors[random.below(world.creditors.size())].id);
          break;
        case 7: {
          if (random.below(6) > 0) break;
          auto& creditor = world.creditors[random.below(world.creditors.size())];
          const uint64_t contract = 1 + random.below(MemoryWorld::kContracts);
          if (random.below(2) == 0) creditor.cells->end(world.self, contract);
          if (random.below(2) == 0) world.borrowed->unmap(creditor.id, contract);
          break;
        }
        case 8:
          world.creditors[random.below(world.creditors.size())].memory->set_share(any(3) > 0 ? 1 : 0);
          break;
        case 9:
          if (any(8) > 0) break;
          world.borrowed->unmap(world.creditors[random.below(world.creditors.size())].id,
                                1 + random.below(MemoryWorld::kContracts), any(10), any(3));
          break;
        default:
          world.network.deliver_one(random);
          world.creditors[random.below(world.creditors.size())].memory->serve_one();
          if (any(3) == 0) world.borrowed->attend_one();
      }
    }
    world.run();
    world.clock.advance(kDeadline);
    world.borrowed->tick();
    world.run();
    for (const Asked& a : asked) {
      ASSERT_EQ(a.outcome.calls, 1) << "seed=" << seed;
      if (a.outcome.status.ok()) {
        ++well;
        ASSERT_TRUE(equal_bits(a.partials, world.expected(a.run, a.layer, a.q, a.rows))) << "seed=" << seed;
      } else {
        ++failed;
        ASSERT_EQ(a.partials, world.room(a.run, a.rows)) << "seed=" << seed;
      }
    }
    const auto stats = world.borrowed->stats();
    EXPECT_EQ(stats.in_flight_bytes, 0u);
    EXPECT_EQ(stats.queued, 0u);
    EXPECT_LE(stats.scratch_bytes, shape.leaf_bytes() * std::max<uint64_t>(seed % 10, 1));
    sums.shipped += stats.shipped;
    sums.fetched_cost += stats.fetched_cost;
    sums.fetched_busy += stats.fetched_busy;
    sums.fetched_split += stats.fetched_split;
    for (const auto& creditor : world.creditors) {
      EXPECT_EQ(creditor.cells->pinned(), 0u);
      EXPECT_EQ(creditor.memory->stats().queued, 0u);
    }
  }
  EXPECT_GT(well, 200);
  EXPECT_GT(failed, 200);
  EXPECT_GT(sums.shipped, 200u);
  EXPECT_GT(sums.fetched_cost, 200u);
  EXPECT_GT(sums.fetched_busy, 20u);
  EXPECT_GT(sums.fetched_split, 200u);
}

}  // namespace
}  // namespace kvasir::test
