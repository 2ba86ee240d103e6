#include "cluster/node/node_rig.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include "base/check.h"
#include "cluster/membership/members.h"
#include "ops/cpu/isa.h"
#include "support/take.h"

namespace kvasir::cluster::test {
namespace {

constexpr Nanos kStep = 5 * kNanosPerMilli;

// A network in memory has nothing to wait for: the dispatcher looks again after a moment.
class PacedTransport final : public PeerTransport {
 public:
  explicit PacedTransport(std::unique_ptr<PeerTransport> of) : of_(std::move(of)) {}
  std::string address() const override { return of_->address(); }
  void begin_life(uint64_t epoch) override { of_->begin_life(epoch); }
  void introduce(const PeerId& peer, const std::string& address) override { of_->introduce(peer, address); }
  void forget(const PeerId& peer) override { of_->forget(peer); }
  Status send(const PeerId& to, std::vector<std::byte> bytes) override {
    return of_->send(to, std::move(bytes));
  }
  std::vector<PeerMessage> receive() override { return of_->receive(); }
  std::vector<PeerId> lost() override { return of_->lost(); }
  void wait(Nanos) override { std::this_thread::sleep_for(std::chrono::microseconds(200)); }
  void wake() override {}

 private:
  const std::unique_ptr<PeerTransport> of_;
};

}  // namespace

// ---------------------------------------------------------------- one instance

std::vector<LendableCells::Frame> Frames::take(uint32_t cells) {
  if (free_.size() < cells) return {};
  std::vector<Frame> out;
  for (; cells > 0; --cells) {
    out.push_back({Tier::kDevice, *free_.begin() * cell_bytes_});
    free_.erase(free_.begin());
  }
  return out;
}

void Frames::give_back(std::span<const Frame> frames) {
  for (const Frame& f : frames) {
    KV_CHECK(free_.insert(f.at / cell_bytes_).second, "frame at {} comes back twice", f.at);
  }
}

LendableCells::Prefix Frames::show_prefix(std::span<const PrefixHash> chain) {
  const std::vector<Frame> frames = take(static_cast<uint32_t>(std::min(has, chain.size())));
  if (frames.empty()) return {};
  shown_[++last_prefix_] = frames;
  return {last_prefix_, frames, static_cast<uint32_t>(frames.size())};
}

void Frames::hide_prefix(uint64_t id) {
  give_back(shown_.at(id));
  shown_.erase(id);
  kept.erase(id);
}

void Instance::give_back(uint32_t cell) {
  KV_CHECK(held.erase(cell) + lost.erase(cell) == 1, "cell={} is not held", cell);
  recalled.erase(cell);
  next.returned.push_back(cell);
}

void Instance::give_back_all() {
  while (!held.empty()) give_back(*held.begin());
  while (!lost.empty()) give_back(*lost.begin());
}

// ---------------------------------------------------------------- all of them

Cluster::Cluster() {
  shape_.kv = {1, 2, 16, 64, ops::KvType::kBf16};
  shape_.queries_per_kv = 2;
  shape_.geometry.block_tokens = 64;
  shape_.geometry.layers = 2;
  shape_.geometry.layers_per_group = 1;
  shape_.geometry.kv_plane_bytes_per_token_layer =
      static_cast<uint64_t>(2 * ops::kv_row_bytes(ops::KvType::kBf16, 16));
}

Cluster::~Cluster() = default;

Instance& Cluster::start(const std::string& name, const std::string& numerics, uint32_t borrowable,
                         uint32_t attended) {
  auto instance = std::make_unique<Instance>();
  instance->name = name;
  instance->memory.resize(kCells * cell_bytes());
  instance->frames = std::make_unique<Frames>(kCells, cell_bytes());
  NodeOptions options;
  options.self = kvasir::test::some_member(name);
  options.self.numerics_id = numerics;
  options.self.lends_cells = kCells / 2;
  options.broker.protocol.lend_cap = kCells / 2;
  options.broker.protocol.prompt_asked = 1;
  options.broker.protocol.computes_prompts = true;
  options.broker.borrowable_cells = borrowable;
  options.broker.attended_cells = attended;
  options.broker.prefix_cells = kCells;
  options.memory = NodeMemory{};
  options.memory->shape = shape_;
  options.memory->tiers[index_of(Tier::kDevice)] = instance->memory;
  instance->node = kvasir::test::take(
      ClusterNode::join(std::move(options), std::make_unique<PacedTransport>(network.join({name, 0})),
                        directory.handle(), ops::kernels_for(ops::detect_isa()), clock));
  instance->node->set_wake([] {});  // it comes in any case, unless it is busy
  return *(instances_[name] = std::move(instance));
}

void Cluster::kill(const std::string& name, bool silently) {
  // At its own end it says no goodbye.
  directory.kill(name);
  if (!silently) network.kill(name);
  instances_.erase(name);
}

void Cluster::step() {
  clock.advance(kStep);
  directory.tick();
  for (auto& [name, i] : instances_) {
    if (i->busy) continue;
    const LendingEvents events = i->node->turn(std::exchange(i->next, {}), *i->frames);
    for (uint32_t cell : events.granted) {
      KV_CHECK(!i->lost.contains(cell) && i->held.insert(cell).second, "cell={} is granted twice", cell);
    }
    for (uint32_t cell : events.recalled) {
      KV_CHECK(i->held.contains(cell), "cell={} is recalled, and not held", cell);
      i->recalled.insert(cell);
    }
    for (uint32_t cell : events.lost) {
      KV_CHECK(i->held.erase(cell) == 1, "cell={} is lost, and not held", cell);
      i->recalled.erase(cell);
      i->lost.insert(cell);
    }
    i->found.insert(i->found.end(), events.prefixes_found.begin(), events.prefixes_found.end());
    for (const PrefixKeptAnswer& answer : events.prefixes_kept) {
      i->kept.push_back(answer);
      i->held.insert(answer.cells.begin(), answer.cells.end());
    }
    for (const PromptAnswer& answer : events.prompts_found) {
      i->computed.push_back(answer);
      i->held.insert(answer.cells.begin(), answer.cells.end());
    }
    i->jobs.insert(i->jobs.end(), events.prompts_to_compute.begin(), events.prompts_to_compute.end());
    i->refused += events.refused;
    i->lendable = events.lendable;
  }
  std::this_thread::sleep_for(std::chrono::microseconds(500));
}

bool Cluster::until(const std::function<bool()>& so) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(30);
  while (!so()) {
    if (std::chrono::steady_clock::now() > end) return false;
    step();
  }
  return true;
}

void Cluster::run_for(Nanos time) {
  for (const Nanos end = clock.now() + time; clock.now() < end;) step();
}

bool Cluster::has_leader() {
  return until([&] {
    return std::any_of(instances_.begin(), instances_.end(), [&](const auto& i) {
      return i.second->node->status().ledger.size() == instances_.size();
    });
  });
}

std::string Cluster::disagreement() {
  for (auto& [name, i] : instances_) {
    const NodeStatus s = i->node->status();
    uint32_t lent = 0, borrowed = 0;
    for (const PeerLink& link : s.links) {
      lent += link.lent;
      borrowed += link.borrowed;
      const auto other = instances_.find(link.peer.instance);
      if (other == instances_.end()) continue;
      uint32_t there = 0;
      for (const PeerLink& back : other->second->node->status().links) {
        if (back.peer == s.self) there = back.borrowed;
      }
      if (there != link.lent) {
        return fmt::format("{} has lent {} {}, which says {}", name, link.peer.instance, link.lent, there);
      }
    }
    if (borrowed != i->held.size()) {
      return fmt::format("{} holds {} cells of {} in its contracts", name, i->held.size(), borrowed);
    }
    if (lent + i->frames->free_cells() != kCells) {
      return fmt::format("{} has lent {}, and {} of {} are free", name, lent, i->frames->free_cells(),
                         kCells);
    }
  }
  return "";
}

Status write_cell(Cluster& cluster, Instance& instance, uint32_t cell, std::span<const std::byte> bytes) {
  std::atomic<bool> ended{false};
  Status status;
  instance.node->memory().write(cell * cluster.cell_bytes(), bytes, [&](Status s) {
    status = std::move(s);
    ended = true;
  });
  KV_CHECK(cluster.until([&] { return ended.load(); }), "a write to cell {} never ends", cell);
  return status;
}

Result<std::vector<std::byte>> read_cell(Cluster& cluster, Instance& instance, uint32_t cell) {
  std::vector<std::byte> bytes(cluster.cell_bytes());
  std::atomic<bool> ended{false};
  Status status;
  instance.node->memory().read(cell * cluster.cell_bytes(), bytes, [&](Status s) {
    status = std::move(s);
    ended = true;
  });
  KV_CHECK(cluster.until([&] { return ended.load(); }), "a read of cell {} never ends", cell);
  if (!status.ok()) return status;
  return bytes;
}

}  // namespace kvasir::cluster::test
