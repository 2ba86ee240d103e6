// Each allocation of a creditor fails once: its threads live, and the next request is served.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "cluster/memory/lent_memory.h"
#include "cluster/memory/memory_rig.h"
#include "memory/failing_new.h"
#include "ops/cpu/isa.h"

namespace kvasir::test {
namespace {

// What is not under test has memory at any time.
class SparedCells final : public LentCells {
 public:
  explicit SparedCells(uint64_t cell_bytes) : cells(cell_bytes) {}
  bool pin(const PeerId& debtor, std::span<const CellRun> runs, std::vector<std::byte*>& at,
           std::vector<uint32_t>& pins) override {
    const Spared spared;
    return cells.pin(debtor, runs, at, pins);
  }
  void unpin(std::span<const uint32_t> pins) override {
    const Spared spared;
    cells.unpin(pins);
  }
  OwnedCells cells;
};

struct CreditorWorld {
  CreditorWorld() {
    for (const PeerId& debtor : debtors) cells.cells.lend(debtor, 1, 8);
    memory = std::make_unique<LentMemory>(LentMemoryOptions{.threads = 0}, self, shape, kernels, cells, clock,
                                          [this](const PeerId&, std::vector<std::byte> bytes) {
                                            const Spared spared;
                                            replies.push_back(std::move(bytes));
                                            return Status();
                                          });
  }
  DataHeader header(DataKind kind, const PeerId& debtor) const {
    return {kind, DataCode::kOk, 1, debtor.epoch, self.epoch, 1'000'000'000'000, 0};
  }
  std::vector<std::byte> query(const PeerId& debtor) const {
    AttendBody body{0, 1, {{0, 2}}, {{1, 0, 1, 8}}};
    auto message = make_attend_message(header(DataKind::kAttend, debtor), body, shape.query_bytes(1));
    message.resize(message.size() + shape.query_bytes(1));
    return message;
  }
  std::vector<std::byte> write(const PeerId& debtor) const {
    const std::vector<std::byte> bytes(64);
    auto message = make_copy_message(header(DataKind::kWrite, debtor), {1, 3, 0, bytes.size()}, bytes.size());
    append_bytes(message, bytes);
    return message;
  }

  const MemoryShape shape = memory_shape(ops::KvType::kBf16, 2, 2, 16);
  const ops::Kernels& kernels = ops::kernels_for(ops::detect_isa());
  const PeerId self{"creditor", 3};
  // Longer than what a string holds without memory of its own.
  const std::vector<PeerId> debtors = {{"a debtor with a name of some length", 7},
                                       {"another one with a name of such length", 8}};
  SparedCells cells{shape.geometry.kv_cell_bytes()};
  VirtualClock clock;
  std::vector<std::vector<std::byte>> replies;
  std::unique_ptr<LentMemory> memory;
};

// Queries that wait, writes behind them, and reads of cells that are there at once.
void ask(CreditorWorld& world, const std::vector<std::vector<std::byte>>& messages) {
  for (size_t i = 0; i < messages.size(); ++i) {
    try {
      world.memory->handle(world.debtors[i % 2], messages[i]);
    } catch (const std::bad_alloc&) {
      // As the dispatcher's thread does, which can tell the peer by a new life.
    }
  }
  while (world.memory->serve_one()) {  // as a thread does that has no caller
  }
}

TEST(LendingMemory, EachAllocationOfACreditorMayFail) {
  CreditorWorld world;
  std::vector<std::vector<std::byte>> messages;
  for (int i = 0; i < 6; ++i) {
    const PeerId& debtor = world.debtors[i % 2];
    messages.push_back(i == 4 || i == 5 ? world.write(debtor) : world.query(debtor));
  }
  uint64_t k = 1;
  for (;; ++k) {
    SCOPED_TRACE("allocation " + std::to_string(k));
    world.replies.clear();
    Failures failures;
    {
      const Enlisted enlisted;
      fail_allocations(k, 1, Counted::kEnlistedThreads);
      ask(world, messages);
      failures = fail_no_more();
    }
    EXPECT_GE(world.replies.size() + failures.failed, messages.size()) << "one is lost at most";
    EXPECT_EQ(world.cells.cells.pinned(), 0u);
    EXPECT_EQ(world.memory->stats().queued, 0u);
    world.replies.clear();
    ask(world, messages);
    ASSERT_EQ(world.replies.size(), messages.size());
    for (const auto& reply : world.replies) EXPECT_EQ(parse_header(reply)->code, DataCode::kOk);
    if (!failures.any() || HasFailure()) break;
  }
  EXPECT_GT(k, 20u);
}

}  // namespace
}  // namespace kvasir::test
