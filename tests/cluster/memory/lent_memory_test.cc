// The creditor's side: nothing that a peer sends does harm, and attention for others keeps within its share.
#include "cluster/memory/lent_memory.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "cluster/memory/memory_rig.h"
#include "ops/cpu/isa.h"

namespace kvasir::test {
namespace {

// Moves by a step whenever it is read: work takes time.
class TickingClock final : public Clock {
 public:
  Nanos now() const override { return time_.fetch_add(step) + step; }
  void advance(Nanos by) { time_ += by; }
  std::atomic<Nanos> step{0};

 private:
  mutable std::atomic<Nanos> time_{0};
};

// One creditor with two leaves in contract 1 of each debtor, and what it answered.
class LentFixture : public testing::Test {
 protected:
  explicit LentFixture(LentMemoryOptions options = {.threads = 0}) { start(options); }

  void start(LentMemoryOptions options) {
    memory.reset();
    cells.lend(debtor, 1, 8);
    cells.lend(other, 1, 8);
    const SendData send = [this](const PeerId& to, std::vector<std::byte> bytes) -> Status {
      std::lock_guard lock(mutex);
      replies.push_back({self, to, std::move(bytes)});
      return {};
    };
    memory = std::make_unique<LentMemory>(options, self, shape, kernels, cells, clock, send);
  }

  DataHeader header(DataKind kind, uint64_t sequence = 1) const {
    return {kind, DataCode::kOk, sequence, debtor.epoch, self.epoch, 1'000'000'000'000, 0};
  }
  std::vector<std::byte> query(uint64_t sequence = 1, uint32_t rows = 1, uint32_t leaves = 2) const {
    AttendBody body{0, rows, {{0, leaves}}, {{1, 0, 1, leaves * 4}}};
    auto message = make_attend_message(header(DataKind::kAttend, sequence), body, shape.query_bytes(rows));
    message.resize(message.size() + shape.query_bytes(rows));
    return message;
  }
  std::vector<std::byte> write(uint32_t index, uint64_t offset, std::span<const std::byte> bytes) const {
    auto message =
        make_copy_message(header(DataKind::kWrite), {1, index, offset, bytes.size()}, bytes.size());
    append_bytes(message, bytes);
    return message;
  }
  std::vector<std::byte> read(uint32_t index, uint64_t offset, uint64_t bytes) const {
    return make_copy_message(header(DataKind::kRead), {1, index, offset, bytes}, 0);
  }
  // Of the one reply that there is.
  DataCode code() {
    EXPECT_EQ(replies.size(), 1u);
    const auto head = parse_header(replies.at(0).bytes);
    EXPECT_TRUE(head && head->kind == DataKind::kReply);
    replies.clear();
    return head->code;
  }
  DataCode code_of(const PeerId& from, std::span<const std::byte> message) {
    memory->handle(from, message);
    while (memory->serve_one()) {
    }
    return code();
  }

  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2, 16);
  const ops::Kernels& kernels = ops::kernels_for(ops::detect_isa());
  const PeerId self{"creditor", 3};
  const PeerId debtor{"a", 7};
  const PeerId other{"b", 7};
  OwnedCells cells{shape.geometry.kv_cell_bytes()};
  TickingClock clock;
  std::mutex mutex;
  std::vector<HeldNetwork::Packet> replies;
  std::unique_ptr<LentMemory> memory;
};

class LentMemoryTest : public LentFixture {};

TEST_F(LentMemoryTest, BytesAreCopiedAtOnce) {
  const std::vector<std::byte> bytes(100, std::byte{5});
  memory->handle(debtor, write(3, 9, bytes));
  EXPECT_EQ(code(), DataCode::kOk);
  memory->handle(debtor, read(3, 8, 102));
  ASSERT_EQ(replies.size(), 1u);
  const auto back = std::span(replies[0].bytes).subspan(kDataHeaderBytes);
  ASSERT_EQ(back.size(), 102u);
  EXPECT_EQ(back.front(), std::byte{0});
  EXPECT_EQ(back.back(), std::byte{0});
  EXPECT_TRUE(std::equal(bytes.begin(), bytes.end(), back.begin() + 1));
  // The other debtor's contract of that number is another one.
  replies.clear();
  memory->handle(other, read(3, 8, 102));
  EXPECT_EQ(std::count(replies.at(0).bytes.begin() + kDataHeaderBytes, replies[0].bytes.end(), std::byte{0}),
            102);
}

TEST_F(LentMemoryTest, WhatIsWrongIsAnsweredWithAnError) {
  const uint64_t cell = shape.geometry.kv_cell_bytes();
  const std::vector<std::byte> bytes(8);
  EXPECT_EQ(code_of(debtor, query()), DataCode::kOk);
  // Places.
  EXPECT_EQ(code_of(debtor, write(7, cell - 8, bytes)), DataCode::kOk);
  EXPECT_EQ(code_of(debtor, write(8, 0, bytes)), DataCode::kNoCell);
  EXPECT_EQ(code_of(debtor, write(7, cell - 7, bytes)), DataCode::kMalformed);
  EXPECT_EQ(code_of(debtor, write(7, UINT64_MAX - 3, bytes)), DataCode::kMalformed);
  EXPECT_EQ(code_of(debtor, read(7, 0, cell + 1)), DataCode::kMalformed);
  EXPECT_EQ(code_of(debtor, read(7, 1, UINT64_MAX)), DataCode::kMalformed);
  EXPECT_EQ(code_of(debtor, read(7, 0, 0)), DataCode::kMalformed);
  EXPECT_EQ(code_of({"c", 7}, read(0, 0, 1)), DataCode::kNoCell);
  // Payloads.
  auto message = write(0, 0, bytes);
  message.pop_back();
  EXPECT_EQ(code_of(debtor, message), DataCode::kMalformed);
  message = read(0, 0, 8);
  message.push_back({});
  EXPECT_EQ(code_of(debtor, message), DataCode::kMalformed);
  message = query();
  message.push_back({});
  EXPECT_EQ(code_of(debtor, message), DataCode::kMalformed);
  // Lives.
  EXPECT_EQ(code_of({"a", 8}, query()), DataCode::kStaleEpoch);
  message = query();
  message[24] = std::byte{4};
  EXPECT_EQ(code_of(debtor, message), DataCode::kStaleEpoch);
  EXPECT_EQ(memory->stats().stale_epoch, 2u);
  // Queries.
  const auto asked = [&](uint32_t layer, uint32_t rows, std::vector<LeafRun> runs, std::vector<CellRun> where,
                         uint64_t table = 0, uint32_t known = 0) {
    auto made = make_attend_message(header(DataKind::kAttend),
                                    {layer, rows, std::move(runs), std::move(where), table, known}, 0);
    made.resize(made.size() + shape.query_bytes(rows));
    return code_of(debtor, made);
  };
  EXPECT_EQ(asked(1, 1, {{0, 1}, {2, 3}}, {{1, 0, 1, 8}}), DataCode::kOk);
  EXPECT_EQ(asked(2, 1, {{0, 2}}, {{1, 0, 1, 8}}), DataCode::kMalformed);
  EXPECT_EQ(asked(0, 0, {{0, 2}}, {{1, 0, 1, 8}}), DataCode::kMalformed);
  EXPECT_EQ(asked(0, kMaxQueryRows + 1, {{0, 2}}, {{1, 0, 1, 8}}), DataCode::kMalformed);
  EXPECT_EQ(asked(0, 1, {}, {}), DataCode::kMalformed);
  EXPECT_EQ(asked(0, 1, {{2, 0}}, {{1, 0, 1, 8}}), DataCode::kMalformed);
  EXPECT_EQ(asked(0, 1, {{0, 1}, {0, 1}}, {{1, 0, 1, 8}}), DataCode::kMalformed);
  EXPECT_EQ(asked(0, 1, {{0, UINT32_MAX}}, {{1, 0, 0, UINT32_MAX}}), DataCode::kMalformed);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {{1, 0, 1, 7}}), DataCode::kMalformed);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {{1, 1, 1, 8}}), DataCode::kNoCell);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {{1, 0, 0x40000000, 8}}), DataCode::kNoCell);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {{2, 0, 1, 8}}), DataCode::kNoCell);
  // Tables.
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {}, 5, 8), DataCode::kNoTable);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {}, 0, 8), DataCode::kMalformed);
  EXPECT_EQ(asked(0, 1, {{0, 1}}, {{1, 0, 1, 4}}, 5, 0), DataCode::kOk);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {}, 5, 8), DataCode::kNoTable);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {{1, 4, 1, 4}}, 5, 4), DataCode::kOk);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {}, 5, 8), DataCode::kOk);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {}, 5, 7), DataCode::kMalformed);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {{1, 7, 1, 1}}, 5, 7), DataCode::kOk);
  EXPECT_EQ(asked(0, 1, {{0, 2}}, {{1, 0, 1, 9}}, 5, UINT32_MAX), DataCode::kMalformed);
  EXPECT_EQ(cells.pinned(), 0u);
  // Neither requests nor answerable.
  const uint64_t malformed = memory->stats().malformed;
  memory->handle(debtor, {});
  memory->handle(debtor, make_reply(header(DataKind::kReply), 0));
  EXPECT_TRUE(replies.empty());
  EXPECT_EQ(memory->stats().malformed, malformed + 2);
}

TEST_F(LentMemoryTest, AnythingMayCome) {
  Random random(5);
  const std::vector<std::byte> bytes(40);
  std::vector<std::vector<std::byte>> good = {query(), query(1, 3, 1), write(1, 2, bytes), read(2, 3, 50)};
  for (const AttendBody& body :
       {AttendBody{0, 1, {{0, 1}}, {{1, 0, 1, 4}}, 5, 0}, AttendBody{0, 1, {{0, 1}}, {}, 5, 4}}) {
    good.push_back(make_attend_message(header(DataKind::kAttend), body, 0));
    good.back().resize(good.back().size() + shape.query_bytes(1));
  }
  std::map<DataCode, int> codes;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> message = good[random.below(good.size())];
    const size_t list = std::min<size_t>(message.size(), kDataHeaderBytes + 64);
    for (uint64_t i = 1 + random.below(3); i > 0; --i) {
      message[4 + random.below(list - 4)] =
          static_cast<std::byte>(random.below(2) ? random.below(256) : random.below(4));
    }
    if (random.below(4) == 0) message.resize(random.below(message.size() + 20));
    memory->handle(debtor, message);
    while (memory->serve_one()) {
    }
    for (const auto& reply : replies) ++codes[parse_header(reply.bytes)->code];
    replies.clear();
  }
  EXPECT_EQ(cells.pinned(), 0u);
  EXPECT_EQ(memory->stats().queued, 0u);
  for (const DataCode seen :
       {DataCode::kOk, DataCode::kMalformed, DataCode::kStaleEpoch, DataCode::kNoCell, DataCode::kNoTable}) {
    EXPECT_GT(codes[seen], 100) << static_cast<int>(seen);
  }
}

TEST_F(LentMemoryTest, WritesKeepTheirPlaceAmongQueries) {
  cells.lend(debtor, 1, 8);
  std::vector<std::byte> k(shape.piece_bytes(), std::byte{0x3f});
  memory->handle(debtor, query(1));
  memory->handle(debtor, write(0, 0, k));
  memory->handle(debtor, query(2));
  EXPECT_TRUE(replies.empty());
  EXPECT_EQ(memory->stats().queued, 3u);
  EXPECT_EQ(memory->stats().writes, 0u);
  while (memory->serve_one()) {
  }
  ASSERT_EQ(replies.size(), 3u);
  // The first one attended to zeros.
  EXPECT_EQ(parse_header(replies[0].bytes)->sequence, 1u);
  EXPECT_EQ(parse_header(replies[2].bytes)->sequence, 2u);
  EXPECT_NE(replies[0].bytes, replies[2].bytes);
  float o = 0;
  const size_t first_o = kDataHeaderBytes + 2 * 2 * sizeof(float);  // behind m and l of two heads
  std::memcpy(&o, replies[0].bytes.data() + first_o, sizeof(o));
  EXPECT_EQ(o, 0);
  std::memcpy(&o, replies[2].bytes.data() + first_o, sizeof(o));
  EXPECT_GT(o, 0);
}

// What is fetched since attention takes too long does not wait for attention.
TEST_F(LentMemoryTest, ReadsPassQueriesButNoWrite) {
  const std::vector<std::byte> k(8, std::byte{0x3f});
  memory->handle(debtor, query(1));
  memory->handle(debtor, read(0, 0, 8));
  ASSERT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].bytes.back(), std::byte{0});
  memory->handle(debtor, write(0, 0, k));
  memory->handle(debtor, read(0, 0, 8));
  EXPECT_EQ(replies.size(), 1u);
  while (memory->serve_one()) {
  }
  ASSERT_EQ(replies.size(), 4u);
  EXPECT_EQ(replies[3].bytes.back(), std::byte{0x3f});
  EXPECT_EQ(memory->stats().reads, 2u);
  // The write is done: reads pass again.
  memory->handle(debtor, query(2));
  memory->handle(debtor, read(0, 0, 8));
  EXPECT_EQ(replies.size(), 5u);
}

TEST_F(LentMemoryTest, DebtorsTakeTurns) {
  for (uint64_t i = 1; i <= 3; ++i) memory->handle(debtor, query(i));
  for (uint64_t i = 4; i <= 5; ++i) memory->handle(other, query(i));
  while (memory->serve_one()) {
  }
  std::vector<uint64_t> order;
  for (const auto& reply : replies) order.push_back(parse_header(reply.bytes)->sequence);
  EXPECT_EQ(order, (std::vector<uint64_t>{1, 4, 2, 5, 3}));
}

TEST_F(LentMemoryTest, ALostDebtorIsNotServed) {
  memory->handle(debtor, query(1));
  memory->handle(other, query(2));
  memory->lost(debtor);
  while (memory->serve_one()) {
  }
  EXPECT_EQ(replies.size(), 1u);
  EXPECT_EQ(replies[0].to, other);
  // Nor is it answered if it is lost in between.
  cells.when_pinned = [&] { memory->lost(debtor); };
  replies.clear();
  memory->handle(debtor, query(3));
  EXPECT_TRUE(memory->serve_one());
  EXPECT_TRUE(replies.empty());
  EXPECT_EQ(cells.pinned(), 0u);
  cells.when_pinned = nullptr;
}

TEST_F(LentMemoryTest, AStopWaitsForACopyThatHasBegun) {
  std::atomic<bool> begun = false, may_go_on = false, stopped = false;
  cells.when_pinned = [&] {
    begun = true;
    begun.notify_all();
    may_go_on.wait(false);
  };
  std::thread dispatcher([&] { memory->handle(debtor, read(0, 0, 16)); });
  begun.wait(false);
  std::thread stopper([&] {
    memory->stop();
    stopped = true;
  });
  std::this_thread::sleep_for(std::chrono::milliseconds(50));
  EXPECT_FALSE(stopped);
  may_go_on = true;
  may_go_on.notify_all();
  dispatcher.join();
  stopper.join();
  EXPECT_EQ(cells.pinned(), 0u);
}

TEST_F(LentMemoryTest, WhatWaitedTooLongIsNotComputed) {
  auto message = query();
  const uint64_t patience = 5 * kNanosPerMilli;
  std::memcpy(message.data() + 32, &patience, sizeof(patience));
  memory->handle(debtor, message);
  clock.advance(static_cast<Nanos>(patience) + 1);
  EXPECT_TRUE(memory->serve_one());
  EXPECT_EQ(code(), DataCode::kTooLate);
  EXPECT_EQ(memory->stats().queries, 0u);
}

TEST_F(LentMemoryTest, TheQueueIsBounded) {
  start({.threads = 0, .max_queued = 2});
  for (uint64_t i = 1; i <= 3; ++i) memory->handle(debtor, query(i));
  EXPECT_EQ(code(), DataCode::kBusy);
  memory->handle(other, query());
  EXPECT_TRUE(replies.empty());
  start({.threads = 0, .max_queued_bytes = 2000});
  for (int i = 0; i < 20; ++i) memory->handle(debtor, query());
  EXPECT_EQ(memory->stats().queued + memory->stats().busy, 20u);
  EXPECT_GE(memory->stats().queued, 2u);
  EXPECT_LE(memory->stats().queued, 2000 / shape.query_bytes(1));
  // A write that would have to wait counts, too.
  replies.clear();
  const std::vector<std::byte> bytes(2000);
  memory->handle(debtor, write(0, 0, bytes));
  EXPECT_EQ(code(), DataCode::kBusy);
}

// A clock by which each leaf takes a quarter of a millisecond: it is read once behind each.
TEST_F(LentMemoryTest, ComputeKeepsToItsShare) {
  start({.threads = 0, .share = 0.25, .burst = 0});
  int served = 0;
  const Nanos begun = clock.now();
  for (Nanos t = 0; t < 2000; ++t) {
    if (memory->stats().queued < 8) memory->handle(debtor, query());
    clock.step = kNanosPerMilli / 4;
    served += memory->serve_one();
    clock.step = 0;
    replies.clear();
    clock.advance(kNanosPerMilli / 4);
  }
  const double wall = to_seconds(clock.now() - begun);
  const double busy = memory->stats().busy_s;
  EXPECT_GT(served, 50);
  EXPECT_GT(busy, 0.2 * wall);
  EXPECT_LT(busy, 0.26 * wall);
}

TEST_F(LentMemoryTest, ALongQueueIsRefusedByItsTime) {
  start({.threads = 0, .share = 0.5, .burst = 0, .max_wait = 50 * kNanosPerMilli});
  clock.step = kNanosPerMilli;
  memory->handle(debtor, query());
  while (memory->serve_one()) {
  }
  clock.step = 0;
  clock.advance(kNanosPerSecond);  // nothing is owed any more
  replies.clear();
  const double leaf_row_s = memory->stats().busy_s / static_cast<double>(memory->stats().leaf_rows);
  // Those before it take leaf_row_s x 2 leaves each, at half the time.
  const auto fitting = static_cast<uint64_t>(0.05 * 0.5 / (2 * leaf_row_s)) + 1;
  for (uint64_t i = 0; i < fitting; ++i) memory->handle(debtor, query());
  EXPECT_TRUE(replies.empty()) << fitting;
  memory->handle(debtor, query());
  EXPECT_EQ(code(), DataCode::kBusy);
  // With more of the time they fit.
  memory->set_share(1);
  memory->handle(debtor, query());
  EXPECT_TRUE(replies.empty());
  // With none, what waits is told so.
  memory->set_share(0);
  while (memory->serve_one()) {
  }
  EXPECT_EQ(replies.size(), fitting + 1);
  for (const auto& reply : replies) EXPECT_EQ(parse_header(reply.bytes)->code, DataCode::kBusy);
}

// With threads of its own.
TEST(LentMemoryThreads, ServeManyAtOnce) {
  const MemoryShape shape = memory_shape(ops::KvType::kQ8_0, 2, 2);
  MemoryWorld world(shape, 3, 9, 6, {.deadline = 3600 * kNanosPerSecond},
                    {.threads = 2, .share = 1, .max_queued = 10'000});
  world.place([](uint32_t leaf) { return static_cast<int>(leaf / 2 % 3); });
  std::atomic<bool> stop{false};
  std::thread dispatcher([&] {
    Random random(1);
    while (!stop) {
      if (!world.network.deliver_one(random)) std::this_thread::yield();
    }
  });
  std::atomic<int> ended{0};
  struct Asked {
    LeafRun run;
    std::vector<float> q, partials;
    Status status;
  };
  std::vector<Asked> asked(200);
  for (Asked& a : asked) {
    a.run.first = static_cast<uint32_t>(world.random.below(9));
    a.run.end = a.run.first + 1 + static_cast<uint32_t>(world.random.below(9 - a.run.first));
    a.q = world.random_query(3);
    a.partials = world.room(a.run, 3);
  }
  std::vector<std::thread> askers;
  for (size_t t = 0; t < 2; ++t) {
    askers.emplace_back([&, t] {
      for (size_t i = t; i < asked.size(); i += 2) {
        Asked& a = asked[i];
        const auto pieces = world.pieces(a.run, 1);
        world.borrowed->attend({a.run.first, a.run.end, 3, a.q.data(), shape.q_dim(), pieces}, a.partials,
                               [&](Status status) {
                                 a.status = std::move(status);
                                 ++ended;
                               });
      }
    });
  }
  for (std::thread& asker : askers) asker.join();
  while (ended < static_cast<int>(asked.size())) std::this_thread::yield();
  stop = true;
  dispatcher.join();
  for (const Asked& a : asked) {
    ASSERT_TRUE(a.status.ok()) << a.status.message();
    const auto want = world.expected(a.run, 1, a.q, 3);
    ASSERT_EQ(std::memcmp(want.data(), a.partials.data(), want.size() * sizeof(float)), 0);
  }
}

// Of real time: a share of a tenth leaves nine tenths to others, within a long query, too.
TEST(LentMemoryThreads, PauseWithinAQuery) {
  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 8, 4, 64);
  const PeerId self{"creditor", 1}, debtor{"debtor", 2};
  OwnedCells cells(shape.geometry.kv_cell_bytes());
  cells.lend(debtor, 1, 4);
  MonotonicClock clock;
  std::atomic<int> replies{0};
  const auto send = [&](const PeerId&, std::vector<std::byte> bytes) -> Status {
    EXPECT_EQ(parse_header(bytes)->code, DataCode::kOk);
    ++replies;
    return {};
  };
  LentMemory memory({.threads = 1, .share = 0.1, .burst = 0}, self, shape,
                    ops::kernels_for(ops::detect_isa()), cells, clock, send);
  AttendBody body{0, 16, {{0, 16}}, {{1, 0, 0, 64}}};
  auto message = make_attend_message({DataKind::kAttend, DataCode::kOk, 1, 2, 1, UINT64_MAX, 0}, body, 0);
  message.resize(message.size() + shape.query_bytes(16));
  const Nanos begun = clock.now();
  memory.handle(debtor, message);
  while (replies == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  const double wall = to_seconds(clock.now() - begun);
  EXPECT_LT(memory.stats().busy_s, 0.2 * wall) << wall;
  EXPECT_EQ(cells.pinned(), 0u);
}

}  // namespace
}  // namespace kvasir::test
