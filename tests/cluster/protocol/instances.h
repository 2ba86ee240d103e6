// Some instances with their control planes on the network in memory, in a time that is moved by hand.
#pragma once

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cluster/protocol/control_plane.h"
#include "cluster/protocol/counted_memory.h"
#include "fakes/fake_network.h"

namespace kvasir::cluster::test {

using kvasir::test::FakeNetwork;

// Instances "a", "b", .. of epoch 1, which know each other; "a" leads in term 1. Settled debts: 4 blocks and
// more.
class Instances {
 public:
  // computing: the first that computes rows of prompts; those after it do, too.
  explicit Instances(const std::vector<uint32_t>& blocks, bool lend_to_creditors = true, size_t computing = 0)
      : network_(clock_), lend_to_creditors_(lend_to_creditors), computing_(computing) {
    for (const uint32_t of_it : blocks) start(of_it);
    for (One& one : all_) {
      for (const One& other : all_) one.plane->joined(other.id, 0);
    }
    for (One& one : all_) one.plane->leader(all_[0].id, 1, 0);
    run(kNanosPerSecond);
  }

  ControlPlane& at(size_t which) { return *all_[which].plane; }
  CountedMemory& memory(size_t which) { return *all_[which].memory; }
  const PeerId& id(size_t which) const { return all_[which].id; }
  PeerTransport& transport(size_t which) { return *all_[which].transport; }
  Lender& lender(size_t which) { return at(which).rmanager().lender(); }
  Borrower& borrower(size_t which) { return at(which).rmanager().borrower(); }
  FakeNetwork& network() { return network_; }
  Nanos now() const { return clock_.now(); }

  // What happens in so much time; events are kept for events().
  void run(Nanos time) {
    const Nanos end = now() + time;
    while (true) {
      Nanos next = end;
      for (One& one : all_) {
        if (!one.dead) next = std::min(next, one.plane->next_deadline());
      }
      clock_.advance(std::max<Nanos>(next - now(), 0));
      for (One& one : all_) {
        if (!one.dead && one.plane->next_deadline() <= now()) one.plane->tick(now());
      }
      deliver();
      if (now() >= end) return;
    }
  }
  // What has been sent arrives, and the answers.
  void deliver() {
    for (bool more = true; more;) {
      more = false;
      for (One& one : all_) {
        if (one.dead) continue;
        for (const PeerMessage& message : one.transport->receive()) {
          one.plane->handle(message, now());
          more = true;
        }
      }
    }
  }
  void kill(size_t which) {
    all_[which].dead = true;
    network_.kill(id(which).instance);
    for (One& one : all_) {
      if (!one.dead) one.plane->lost(id(which), now());
    }
  }

  // Those since the last call, of one kind or of all.
  std::vector<BorrowEvent> events(size_t which, std::optional<BorrowEvent::Kind> kind = std::nullopt) {
    std::vector<BorrowEvent> out;
    for (BorrowEvent& event : at(which).take_events()) {
      if (!kind || event.kind == *kind) out.push_back(std::move(event));
    }
    return out;
  }
  // Wants to borrow for a request that arrived at `since`, or now.
  void want(size_t which, uint32_t most, std::optional<Nanos> since = std::nullopt, uint32_t least = 0,
            Nanos hold = 0) {
    at(which).want({most, least, since.value_or(now()), hold}, needed_since, now());
  }
  // Borrows of one creditor, and expects that it succeeds.
  ContractRef borrow(size_t which, uint32_t blocks, std::optional<Nanos> since = std::nullopt) {
    want(which, blocks, since);
    deliver();
    const auto granted = events(which, BorrowEvent::Kind::kGranted);
    KV_CHECK(granted.size() == 1 && granted[0].blocks == blocks, "{} grants: {}", granted.size(),
             at(which).describe());
    return granted[0].contract;
  }
  Nanos needed_since = INT64_MIN;  // as all instances say

 private:
  struct One {
    PeerId id;
    std::unique_ptr<PeerTransport> transport;
    std::unique_ptr<CountedMemory> memory;
    std::unique_ptr<ControlPlane> plane;
    bool dead = false;
  };

  void start(uint32_t blocks) {
    ProtocolSettings settings;
    settings.lend_cap = blocks;
    settings.settle_min = 4;
    settings.prompt_asked = 3;
    settings.computes_prompts = all_.size() >= computing_;
    settings.lend_to_creditors = lend_to_creditors_;
    One one;
    one.id = {std::string(1, static_cast<char>('a' + all_.size())), 1};
    one.transport = network_.join(one.id);
    one.memory = std::make_unique<CountedMemory>(blocks);
    one.plane = std::make_unique<ControlPlane>(settings, *one.transport, one.id, *one.memory, nullptr);
    all_.push_back(std::move(one));
  }

  VirtualClock clock_;
  FakeNetwork network_;
  const bool lend_to_creditors_;
  const size_t computing_;
  std::vector<One> all_;
};

}  // namespace kvasir::cluster::test
