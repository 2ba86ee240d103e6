// A debtor and its creditors, joined by a network that the test holds in its hand.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "cluster/memory/borrowed_memory.h"
#include "cluster/memory/lent_memory.h"
#include "cluster/memory/memory_shape.h"

namespace kvasir::test {

MemoryShape memory_shape(ops::KvType type, int64_t kv_heads, int64_t queries_per_kv, int64_t head_dim = 32,
                         uint32_t block_tokens = 64, uint32_t layers_per_group = 2);

// Cells of contracts, as their owner would keep them. Thread-safe.
class OwnedCells final : public LentCells {
 public:
  explicit OwnedCells(uint64_t cell_bytes) : cell_bytes_(cell_bytes) {}
  ~OwnedCells() override;

  void lend(const PeerId& debtor, uint64_t contract, uint32_t cells);
  // From now on nothing of it can be pinned.
  void end(const PeerId& debtor, uint64_t contract);
  uint64_t pinned() const;
  // Called by pin(), without a lock.
  std::function<void()> when_pinned;

  bool pin(const PeerId& debtor, std::span<const CellRun> runs, std::vector<std::byte*>& at,
           std::vector<uint32_t>& pins) override;
  void unpin(std::span<const uint32_t> pins) override;

 private:
  using Key = std::tuple<std::string, uint64_t, uint64_t>;
  struct Contract {
    std::unique_ptr<std::byte[]> bytes;
    uint32_t cells = 0;
    bool ended = false;
  };

  const uint64_t cell_bytes_;
  mutable std::mutex mutex_;
  std::map<Key, Contract> contracts_;
  uint64_t pinned_ = 0;
};

// Messages between two peers arrive in order; those of different pairs in any that the test likes.
class HeldNetwork {
 public:
  struct Packet {
    PeerId from;
    PeerId to;
    std::vector<std::byte> bytes;
  };
  using Deliver = std::function<void(const Packet&)>;

  void set_deliver(Deliver deliver) { deliver_ = std::move(deliver); }
  SendData sender(const PeerId& from);
  // From now on sending to the peer fails.
  void refuse(const PeerId& to);

  size_t waiting() const;
  // Of the pair's queue.
  std::optional<Packet> take(const PeerId& from, const PeerId& to);
  void deliver(const Packet& packet) { deliver_(packet); }
  // Delivers the first message of a random pair; false: there is none.
  bool deliver_one(Random& random);

 private:
  using Pair = std::tuple<std::string, uint64_t, std::string, uint64_t>;

  Deliver deliver_;
  mutable std::mutex mutex_;
  std::map<Pair, std::deque<Packet>> pairs_;
  std::vector<PeerId> refused_;
};

// How an operation ended.
struct Outcome {
  int calls = 0;
  Status status;
  PeerMemory::Done done() {
    return [this](Status s) {
      ++calls;
      status = std::move(s);
    };
  }
};

// One debtor, `creditors` creditors. Cell i of the tier lies wherever place() says; K and V of every cell are
// random, and kept here too.
class MemoryWorld {
 public:
  // What was fetched is attended to by run(), unless by a thread.
  MemoryWorld(const MemoryShape& shape, int creditors, uint32_t leaves, uint64_t seed,
              BorrowedMemoryOptions options = {}, LentMemoryOptions lent = {.threads = 0},
              bool own_thread = false);
  ~MemoryWorld();

  // Lends cells for each leaf at the creditor that pick(leaf) says, shuffled among its contracts, and writes
  // their bytes there.
  void place(const std::function<int(uint32_t leaf)>& pick);
  // The same for each block: a leaf may lie at several.
  void place_blocks(const std::function<int(uint32_t cell)>& pick);
  // Each leaf wherever; of `in` leaves, one has its blocks wherever.
  void place_anywhere(uint32_t in);
  // Delivers and serves in random order until nothing is left.
  void run();

  // Queries, and where a layer of the run's blocks lies.
  std::vector<float> random_query(uint32_t rows);
  std::vector<uint64_t> pieces(LeafRun run, uint32_t layer) const;
  std::vector<float> room(LeafRun run, uint32_t rows) const;
  void attend(LeafRun run, uint32_t layer, std::span<const float> q, uint32_t rows, std::span<float> partials,
              Outcome& outcome);
  // The same at home, by one tree over all leaves.
  std::vector<float> expected(LeafRun run, uint32_t layer, std::span<const float> q, uint32_t rows) const;

  struct Creditor {
    PeerId id;
    std::unique_ptr<OwnedCells> cells;
    std::unique_ptr<LentMemory> memory;
  };

  const MemoryShape shape;
  const ops::Kernels& kernels;
  VirtualClock clock;
  Random random;
  HeldNetwork network;
  const PeerId self{"debtor", 7};
  std::vector<Creditor> creditors;
  std::unique_ptr<BorrowedMemory> borrowed;
  static constexpr uint64_t kContracts = 2;  // with each creditor: 1 and 2

 private:
  const std::byte* local(uint64_t cell) const {
    return bytes_.data() + cell * shape.geometry.kv_cell_bytes();
  }

  const uint32_t leaves_;
  std::vector<std::byte> bytes_;  // of all cells, by leaf and block
};

}  // namespace kvasir::test
