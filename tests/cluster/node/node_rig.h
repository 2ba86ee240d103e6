// Whole instances of a cluster, but for their engines, over a network and a directory in the test's hand.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "base/clock.h"
#include "cluster/node/cluster_node.h"
#include "fakes/fake_membership.h"
#include "fakes/fake_network.h"

namespace kvasir::cluster::test {

// The frames of an instance, none of which its engine needs, unless the test takes some away.
class Frames final : public LendableCells {
 public:
  Frames(uint32_t cells, uint64_t cell_bytes) : cell_bytes_(cell_bytes), total_(cells) {
    for (uint32_t i = 0; i < cells; ++i) free_.insert(i);
  }
  std::vector<Frame> take(uint32_t cells) override;
  void give_back(std::span<const Frame> frames) override;
  uint32_t free_cells() const override { return static_cast<uint32_t>(free_.size()); }
  uint32_t total_cells() const override { return total_; }
  // One cell of each block, of the first `has` of any chain.
  Prefix show_prefix(std::span<const PrefixHash> chain) override;
  void keep_prefix(uint64_t id, uint32_t blocks) override { kept[id] = blocks; }
  void hide_prefix(uint64_t id) override;
  // Of blocks that are lent as they are, too, a leaf of four blocks and cells.
  BlockShape block_shape() const override { return {64, 1}; }
  std::optional<std::vector<Frame>> take_blocks(std::span<const PrefixHash> chain) override {
    return take(static_cast<uint32_t>(chain.size()));
  }
  size_t has = 0;
  std::map<uint64_t, uint32_t> kept;  // of the prefixes that it shows: their blocks

 private:
  const uint64_t cell_bytes_;
  const uint32_t total_;
  std::set<uint64_t> free_;
  uint64_t last_prefix_ = 0;
  std::map<uint64_t, std::vector<Frame>> shown_;
};

struct Instance {
  std::string name;
  std::vector<std::byte> memory;
  std::unique_ptr<Frames> frames;
  std::unique_ptr<ClusterNode> node;
  LendingRequest next;          // for its next turn
  std::set<uint32_t> held;      // borrowed cells
  std::set<uint32_t> recalled;  // of those
  std::set<uint32_t> lost;      // in all, not returned yet
  std::vector<PrefixAnswer> found;
  std::vector<PrefixKeptAnswer> kept;
  std::vector<PromptAnswer> computed;
  std::vector<PromptJob> jobs;
  uint32_t refused = 0;
  uint32_t lendable = UINT32_MAX;  // as its last turn said
  bool busy = false;               // its engine is in a long step: it takes no turn

  // As an engine does: in its next turn.
  void give_back(uint32_t cell);
  void give_back_all();
};

class Cluster {
 public:
  static constexpr uint32_t kCells = 40;  // of each instance, of which it lends half
  static constexpr Nanos kTtl = 500 * kNanosPerMilli;

  Cluster();
  ~Cluster();

  Instance& start(const std::string& name, const std::string& numerics = "n",
                  uint32_t borrowable = 3 * kCells, uint32_t attended = kCells);
  Instance& at(const std::string& name) { return *instances_.at(name); }
  // Its process is gone; the others learn of it by the network, or, if `silently`, by the directory alone.
  void kill(const std::string& name, bool silently = false);
  // A turn of each, a little later.
  void step();
  // Steps until it is so. False: it was not within a long time.
  [[nodiscard]] bool until(const std::function<bool()>& so);
  void run_for(Nanos time);
  [[nodiscard]] bool has_leader();
  // Cells that `debtor` has of others.
  uint32_t borrowed(const std::string& debtor) { return static_cast<uint32_t>(at(debtor).held.size()); }
  // What all agree upon when nothing moves; an explanation where they do not.
  std::string disagreement();

  uint64_t cell_bytes() const { return shape_.geometry.kv_cell_bytes(); }

  VirtualClock clock;
  kvasir::test::FakeNetwork network{clock};
  kvasir::test::FakeDirectory directory{clock, kTtl};

 private:
  MemoryShape shape_;
  std::map<std::string, std::unique_ptr<Instance>> instances_;
};

// A read or write of a whole cell, waited for.
Status write_cell(Cluster& cluster, Instance& instance, uint32_t cell, std::span<const std::byte> bytes);
Result<std::vector<std::byte>> read_cell(Cluster& cluster, Instance& instance, uint32_t cell);

}  // namespace kvasir::cluster::test
