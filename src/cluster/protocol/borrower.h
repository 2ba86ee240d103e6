// What an instance borrows. It tells the leader what it wants, asks the creditors that the leader names, and
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
#include "cluster/protocol/post.h"
#include "cluster/protocol/settings.h"

namespace kvasir::wire {
class Advice;
class Borrow;
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
    kGranted,   // slots [0, blocks) of the contract may be used
    kRecalled,  // give back `blocks` of those held, by `by`, or all is lost; 0 blocks: the recall is off
    kLost,      // the blocks and their content are gone
    kVacate,    // the instance leaves: give back all of it, as soon as possible
  };
  Kind kind = Kind::kGranted;
  ContractRef contract;
  uint32_t blocks = 0;
  Nanos by = 0;
};

// What the instance wants to borrow, in addition to what it has been granted.
struct Want {
  uint32_t most = 0;   // 0: nothing
  uint32_t least = 0;  // so many at once, or none
  Nanos since = 0;     // when the request arrived that needs it: earlier requests are served first
  Nanos hold = 0;      // how long that keeps it; 0: unknown
  friend bool operator==(const Want&, const Want&) = default;
};

// A loan, as its debtor knows it.
struct HeldContract {
  uint32_t granted = 0;
  std::set<uint32_t> held;       // slots that have not been given back
  std::optional<uint32_t> keep;  // recalled: so many may stay
  Nanos recalled_by = 0;
  bool announced =
      false;  // by an event; until then it may be given back, with what else was borrowed at once
};

// Not thread-safe.
class Borrower {
 public:
  // The references outlive it.
  Borrower(const ProtocolSettings& settings, Post& post) : settings_(settings), post_(post) {}

  // What is wanted from now on, instead of what was wanted before; what is granted is subtracted from it.
  // Less at the most than at once is nothing.
  void want(const Want& want, Nanos now);
  const Want& wanted() const { return want_; }
  // Arrival of the oldest request that needs what is borrowed; INT64_MAX: there is none.
  void needed_since(Nanos since) { needed_since_ = since; }
  // Gives back slots that are empty. A contract that is lost and slots that are not held are ignored.
  void give_back(const ContractRef& contract, std::span<const uint32_t> slots);
  // A loan for which there was no Ask: it is announced at once. False: no new contracts are wanted.
  bool take(const ContractRef& contract, uint32_t blocks, Nanos now);
  // Gives back a loan that was not taken.
  void decline(const ContractRef& contract) { send_back_unwanted(contract.creditor, contract.id); }
  // null: lost, or given back.
  const HeldContract* held(const ContractRef& contract) const;

  Status handle(const PeerId& from, const wire::Advice& message, Nanos now);
  // Also of one that refused for the time of a step: it is taken as far as its request still lacks it.
  Status handle(const PeerId& from, const wire::Granted& message, Nanos now);
  Status handle(const PeerId& from, const wire::Refused& message, Nanos now);
  Status handle(const PeerId& from, const wire::Statement& message, Nanos now);
  void creditor_lost(const PeerId& creditor, Nanos now);
  // The leader to tell from now on.
  void leader(const PeerId& peer, uint64_t term, Nanos now);
  void tick(Nanos now);
  Nanos next_deadline() const;
  // The wish, for a heartbeat; nothing while creditors are being asked.
  void fill(wire::Borrow* message, Nanos now) const;

  // Whether new contracts are wanted.
  void set_borrowing(bool borrowing, Nanos now);
  // Tells the owner of the borrowed blocks, by events, to give back all contracts.
  void vacate_all();

  std::vector<BorrowEvent> take_events() { return std::exchange(events_, {}); }
  bool asking() const { return round_.has_value(); }
  // Whether it waits for this answer.
  bool asks(const PeerId& creditor, uint64_t ask) const { return find_ask(creditor, ask) != nullptr; }
  // The most blocks that may still be announced of what creditors have been asked for.
  uint32_t expected() const;
  // By creditor and id.
  const std::map<PeerId, std::map<uint64_t, HeldContract>, ByPeer>& contracts() const { return contracts_; }
  std::map<PeerId, uint32_t, ByPeer> by_creditor() const;

  std::string describe() const;

 private:
  struct Asked {
    PeerId creditor;
    uint32_t blocks = 0;
  };
  // What one that was busy may still grant.
  struct Late {
    uint64_t ask = 0;
    uint32_t blocks = 0;
    Nanos since = 0;  // Want::since
  };
  // The creditors of one advice, all asked at once.
  struct Round {
    std::map<uint64_t, Asked> open;    // by ask
    std::vector<ContractRef> granted;  // and not announced
    Nanos until = 0;
  };
  struct Silence {
    Nanos heard = 0;
    Nanos next_ask = 0;
  };

  void tell_leader(Nanos now);
  void deny(const PeerId& creditor);
  // The ask of the running round; its end if there are no others.
  const Asked* find_ask(const PeerId& from, uint64_t ask) const;
  void answered(uint64_t ask, uint32_t granted, Nanos now);
  void end_round_if_answered(Nanos now);
  void end_round(Nanos now);
  void announce(const ContractRef& ref);
  void accept(const PeerId& creditor, uint64_t id, uint32_t blocks, Nanos now);
  void accept_late(const PeerId& creditor, const wire::Granted& message, Nanos now);
  HeldContract& hold(const ContractRef& ref, uint32_t blocks, Nanos now);
  void send_back(const PeerId& creditor, uint64_t contract, std::span<const uint32_t> slots);
  void send_back_unwanted(const PeerId& creditor, uint64_t contract);
  HeldContract* find(const PeerId& creditor, uint64_t contract);
  void erase(const PeerId& creditor, uint64_t contract);
  void lose(const PeerId& creditor, uint64_t contract);
  void heed(const PeerId& creditor, const wire::Statement_Line& line, Nanos now);

  const ProtocolSettings& settings_;
  Post& post_;
  bool borrowing_ = true;
  PeerId leader_;
  uint64_t term_ = 0;  // 0: there is no leader yet
  uint64_t attempt_ = 1;
  uint64_t last_ask_ = 0;
  Want want_;
  std::optional<Round> round_;
  std::map<PeerId, Late, ByPeer> late_;  // by creditor, the last
  Nanos needed_since_ = INT64_MAX;
  std::map<PeerId, std::map<uint64_t, HeldContract>, ByPeer> contracts_;  // no creditor without a contract
  std::map<PeerId, Silence, ByPeer> silence_;                             // of the same creditors
  std::vector<BorrowEvent> events_;
};

}  // namespace kvasir::cluster
