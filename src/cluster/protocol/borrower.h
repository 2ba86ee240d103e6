// What an instance borrows. It asks the leader for creditors, and then asks these one after another; it
// gives back what it holds by its own decision or on a recall. Results are events.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "cluster/protocol/cluster_clock.h"
#include "cluster/protocol/post.h"
#include "cluster/protocol/settings.h"

namespace kvasir::wire {
class Advice;
class Granted;
class Refused;
class Statement;
class Statement_Line;
}  // namespace kvasir::wire

namespace kvasir::cluster {

// Names a loan: the creditor assigns ids, unique in one life of it.
struct ContractRef {
  PeerId creditor;
  uint64_t id = 0;
  friend bool operator==(const ContractRef&, const ContractRef&) = default;
};

struct BorrowEvent {
  enum class Kind {
    kGranted,   // of `request`: slots [0, blocks) of the contract may be used
    kRefused,   // of `request`: no peer lends so much; `blocks`: the most that a peer may lend, 0: unknown
    kRecalled,  // give back `blocks` of those held, by `by`, or all is lost; 0 blocks: the recall is off
    kLost,      // the blocks and their content are gone
    kFrozen,    // put nothing new into the contract's blocks
    kThawed,    // its blocks may be used again
    kVacate,    // the instance leaves: give back all of it, as soon as possible
  };
  Kind kind = Kind::kGranted;
  uint64_t request = 0;
  ContractRef contract;
  uint32_t blocks = 0;
  Nanos by = 0;
};

// A loan, as its debtor knows it.
struct HeldContract {
  uint32_t granted = 0;
  std::set<uint32_t> held;       // slots that have not been given back
  std::set<uint32_t> vacated;    // of these, the slots that are given back when the contract thaws
  std::optional<uint32_t> keep;  // recalled: so many may stay
  bool frozen = false;
};

// Not thread-safe.
class Borrower {
 public:
  // The references outlive it.
  Borrower(const ProtocolSettings& settings, Post& post, ClusterClock& clock)
      : settings_(settings), post_(post), clock_(clock) {}

  // Asks for so many blocks, of one creditor. The request's answer is one event, kGranted or kRefused, within
  // rounds * (1 + 3) answer times. REQUIRES: blocks > 0
  // `since`: when the request that needs them arrived; earlier requests are served first.
  uint64_t borrow(uint32_t blocks, Nanos now, Nanos since);
  // Gives back slots that are empty: at once, or as soon as the contract is no longer frozen. A contract
  // that is lost and slots that are not held are ignored.
  void give_back(const ContractRef& contract, std::span<const uint32_t> slots);
  // null: lost, or given back.
  const HeldContract* held(const ContractRef& contract) const;

  Status handle(const PeerId& from, const wire::Advice& message, Nanos now);
  Status handle(const PeerId& from, const wire::Granted& message, Nanos now);
  Status handle(const PeerId& from, const wire::Refused& message, Nanos now);
  Status handle(const PeerId& from, const wire::Statement& message, Nanos now);
  void creditor_lost(const PeerId& creditor, Nanos now);
  // The leader to ask from now on; questions to another leader are asked again.
  void leader(const PeerId& peer, uint64_t term, Nanos now);
  void tick(Nanos now);
  Nanos next_deadline() const;

  // Whether new contracts are wanted: if not, all requests are refused, including those under way.
  void set_borrowing(bool borrowing);
  // Tells the owner of the borrowed blocks, by events, to give back all contracts.
  void vacate_all();

  std::vector<BorrowEvent> take_events() { return std::exchange(events_, {}); }
  size_t requests() const { return requests_.size(); }
  // By creditor and id.
  const std::map<PeerId, std::map<uint64_t, HeldContract>, ByPeer>& contracts() const { return contracts_; }
  std::map<PeerId, uint32_t, ByPeer> by_creditor() const;

  // For a settlement: freezes the contracts with a creditor. Returns their blocks.
  uint32_t freeze(const PeerId& creditor);
  void thaw();

  std::string describe() const;

 private:
  struct Request {
    uint32_t blocks = 0;
    Nanos since = 0;
    int round = 0;
    uint64_t attempt = 0;  // whose answer is awaited
    bool asking = true;    // the leader; otherwise creditors[next]
    std::vector<PeerId> creditors;
    size_t next = 0;
    Nanos deadline = 0;
  };
  using Requests = std::map<uint64_t, Request>;
  struct Silence {
    Nanos heard = 0;
    Nanos next_ask = 0;
  };

  void ask(Requests::iterator it, Nanos now);
  void try_creditor(Requests::iterator it, Nanos now);
  void next_creditor(Requests::iterator it, Nanos now);
  void refuse(Requests::iterator it, uint32_t largest);
  Requests::iterator find_attempt(uint64_t attempt);
  void grant(Requests::iterator it, const PeerId& creditor, uint64_t contract, uint32_t blocks, Nanos now);
  void send_back(const PeerId& creditor, uint64_t contract, std::span<const uint32_t> slots);
  void send_back_unwanted(const PeerId& creditor, uint64_t contract);
  HeldContract* find(const PeerId& creditor, uint64_t contract);
  void lose(const PeerId& creditor, uint64_t contract);
  void flush(const PeerId& creditor, uint64_t contract);
  void heed(const PeerId& creditor, const wire::Statement_Line& line, Nanos now);

  const ProtocolSettings& settings_;
  Post& post_;
  ClusterClock& clock_;
  bool borrowing_ = true;
  PeerId leader_;
  uint64_t term_ = 0;  // 0: there is no leader yet
  uint64_t last_request_ = 0;
  uint64_t last_attempt_ = 0;
  Requests requests_;
  std::map<PeerId, std::map<uint64_t, HeldContract>, ByPeer> contracts_;  // no creditor without a contract
  std::map<PeerId, Silence, ByPeer> silence_;                             // of the same creditors
  std::vector<BorrowEvent> events_;
};

}  // namespace kvasir::cluster
