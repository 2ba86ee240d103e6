// A link in virtual time: it moves no bytes, and computes when they would have arrived.
//
// Five lanes run in parallel: to the device, from the device, the disk (both directions), to peers and from
// peers. A lane moves one transfer at a time: the most urgent that may begin, and of those the first. A more
// urgent one preempts it as soon as it may begin, without losing the bytes already moved. A transfer takes
// its direction's latency and its bytes times seconds_per_byte. A transfer with an end in borrowed memory
// takes the network, at its costs.
//
// Cards without a network of their own exchange data over the same wires: collective() lets the lanes between
// device and host share them.
#pragma once

#include <array>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>
#include <vector>

#include "contract/cost_model.h"
#include "contract/link.h"
#include "exec/sim/sim_peers.h"

namespace kvasir {

// Used by the thread of the engine's loop, on which set_wake()'s function is called, too.
class SimLink final : public Link {
 public:
  // [from][to], by tier.
  using Costs = std::array<std::array<LinkCost, kTiers>, kTiers>;

  // The host tier's bytes from `begin` on are borrowed.
  struct Borrowed {
    uint64_t begin = UINT64_MAX;
    const SimPeers* peers = nullptr;  // outlives the link; null: nothing is borrowed
  };

  // The clock outlives the link, which moves it in wait() only.
  SimLink(const Costs& costs, VirtualClock& clock) : SimLink(costs, clock, Borrowed()) {}
  SimLink(const Costs& costs, VirtualClock& clock, const Borrowed& borrowed)
      : costs_(costs), borrowed_(borrowed), clock_(clock) {
    stats_.emulated = true;
  }

  void start(Transfer transfer) override;
  void cancel(TransferId id) override;
  TransferState wait(TransferId id, Nanos timeout) override;
  std::vector<TransferDone> completed() override;

  // The cards exchange data from now on, which takes `alone` if nothing else moves between device and host.
  // While both move, each has half of the link. yields: transfers give way: the one that moves ends its unit,
  // and whether the link is free is looked at again each quarter of `alone`. Means are taken: half a unit,
  // and half of a quarter after the end. Moves the clock; returns the time.
  Nanos collective(Nanos alone, bool yields);

  void set_wake(std::function<void()> wake) override { wake_ = std::move(wake); }
  // As of the last call above.
  LinkStats stats() const override { return stats_; }
  // The part of the stats' bytes between device and host that went to and from peers.
  uint64_t peer_bytes() const { return peer_bytes_; }

  // When the next transfer ends, if nothing is started before; nothing if none moves.
  std::optional<Nanos> next_end() const;

 private:
  enum Lane : uint8_t { kToDevice, kFromDevice, kDisk, kFromPeers, kToPeers, kLanes };
  // Of transfers that may begin: by priority, then in the order of start().
  using Turn = std::pair<std::pair<TransferPriority, uint64_t>, TransferId>;

  struct Job {
    Transfer transfer;
    Lane lane = kToDevice;
    uint64_t number = 0;
    Nanos left = 0;       // of its time on the lane
    Nanos began = -1;     // -1: it has not
    uint32_t waits = 0;   // transfers before it that have not ended
    bool doomed = false;  // it fails as soon as it may begin: it was cancelled, or a needed transfer failed
    double latency_s = 0;
    double moving_s = 0;  // its bytes
  };
  struct LaneState {
    std::set<Turn> ready;  // the one that moves included
    std::optional<TransferId> moving;
    Nanos since = 0;  // when what moves began to
    double rate = 1;  // at which it moves; below 1 beside collectives
  };

  bool is_borrowed(MemoryAddress a) const {
    return borrowed_.peers && a.tier == Tier::kHost && a.offset >= borrowed_.begin;
  }
  LinkCost cost_of(const Segment& s) const;
  Lane lane_of(const Transfer& transfer) const;
  Turn turn_of(const Job& job) const { return {{job.transfer.priority, job.number}, job.transfer.id}; }
  // Time passes on every lane; transfers end.
  void run_until(Nanos time);
  void may_begin(Job& job, Nanos time);
  void choose(LaneState& lane, Nanos time);
  // Counts what has moved on a lane so far.
  void settle(LaneState& lane, Nanos time);
  // When what moves ends; nothing if it stands still.
  std::optional<Nanos> end_of(const LaneState& lane) const;
  void set_rate(double rate, Nanos time);  // of the lanes between device and host
  bool any_beside_collectives() const;
  void end(TransferId id, Nanos time);
  void count(const Job& job);

  const Costs costs_;
  const Borrowed borrowed_;
  VirtualClock& clock_;
  std::function<void()> wake_;
  std::unordered_map<TransferId, Job> jobs_;
  std::unordered_map<TransferId, std::vector<TransferId>> followers_;
  std::unordered_set<TransferId> failed_;
  std::array<LaneState, kLanes> lanes_;
  std::vector<TransferDone> done_;
  LinkStats stats_;
  uint64_t peer_bytes_ = 0;
  double to_peers_bytes_ = 0, to_peers_s_ = 0;
  uint64_t started_ = 0;
};

}  // namespace kvasir
