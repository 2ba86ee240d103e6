// Connects an engine, which counts cells, to the protocol, which counts blocks of contracts: it borrows what
// the engine asks for, numbers the borrowed cells, and lends the engine's free frames to peers.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/broker/borrowed_cells.h"
#include "cluster/broker/lent_frames.h"
#include "cluster/protocol/control_plane.h"
#include "contract/lending.h"
#include "contract/peer_transport.h"

namespace kvasir::cluster {

// Receives where borrowed cells lie, and which of them are gone. Never calls back into the broker.
class CellPlaces {
 public:
  virtual ~CellPlaces() = default;
  // Cells [first_cell, + count) are slots [first_slot, + count) of the contract.
  virtual void map(const ContractRef& contract, uint32_t first_slot, uint32_t first_cell, uint32_t count) = 0;
  virtual void unmap(const ContractRef& contract, uint32_t first_slot, uint32_t count) = 0;
  virtual void unmap(const ContractRef& contract) = 0;
};

struct BrokerOptions {
  ProtocolSettings protocol;
  uint32_t borrowable_cells = 0;  // in all
  uint32_t attended_cells = 0;    // of prefixes that peers keep at once; their numbers follow those
  uint32_t prefix_cells = 0;      // of peers that are read at once; their numbers follow those
};

// Not thread-safe; owns no thread, no clock and no socket. It acts in turns of the engine: begin_turn(),
// then the messages and events since the turn before, then end_turn().
class Broker {
 public:
  // What is given by reference outlives it.
  Broker(BrokerOptions options, PeerTransport& transport, CellPlaces& places)
      : options_(std::move(options)),
        transport_(transport),
        places_(places),
        cells_(options_.borrowable_cells),
        attended_(options_.attended_cells),
        prefix_cells_(options_.prefix_cells) {}
  Broker(const Broker&) = delete;
  Broker& operator=(const Broker&) = delete;

  void begin_turn(LendableCells& own);
  LendingEvents end_turn(const LendingRequest& request, Nanos now);

  // Handles deadlines of the protocol between two turns; it lends nothing meanwhile.
  void tick(Nanos now);

  // Call these within a turn, or, if nothing is to be lent, between two. Between two lives the instance has
  // no identity: it borrows nothing and sends nothing.
  void begin_life(const PeerId& self);
  // Ends everything that it has borrowed or lent. REQUIRES: nothing that was lent is pinned
  void end_life();
  void handle(const PeerMessage& message, Nanos now);
  void joined(const PeerId& peer, Nanos now);
  void lost(const PeerId& peer, Nanos now);
  void leader(const PeerId& peer, uint64_t term, Nanos now);
  void directory(bool reached, Nanos now);

  // From the next turn on it lends and borrows no more, calls in what it has lent, and has the engine return
  // what it has borrowed. gone(): this is done.
  void begin_to_leave() { leaving_ = true; }
  bool gone() const;
  bool leaving() const { return leaving_; }

  // When a turn is due even if nothing arrives; INT64_MAX if never.
  Nanos next_deadline() const;

  // null between two lives. The data plane pins cells through it.
  ControlPlane* control() { return life_ ? &life_->control : nullptr; }
  const ControlPlane* control() const { return life_ ? &life_->control : nullptr; }
  const LentFrames& frames() const { return frames_; }

 private:
  struct Life {
    Life(const BrokerOptions& options, PeerTransport& transport, const PeerId& self, LentFrames& frames)
        : control(options.protocol, transport, self, frames, {}) {}
    ControlPlane control;
    bool told_to_leave = false;
  };
  void take_returned(const LendingRequest& request, Nanos now);
  void want(const LendingRequest& request, Nanos now);
  void ask_for_prefixes(const LendingRequest& request, Nanos now);
  void tell_of_prefixes();
  void keep_prefixes(const LendingRequest& request, Nanos now);
  void take_kept(const ContractRef& shown, const BorrowEvent& event, Nanos now);
  void forget_shown(const ContractRef& shown);
  // The cells of a contract that the engine has, or, with `lose`, has lost now.
  std::vector<uint32_t> cells_of(const ContractRef& contract) const;
  std::vector<uint32_t> lose(const ContractRef& contract);
  void ask_for_prompts(const LendingRequest& request, Nanos now);
  void tell_of_prompts();
  void heed(const BorrowEvent& event, Nanos now);
  // Gives back the slots of a new contract from `first` on.
  void give_back_from(const BorrowEvent& event, uint32_t first, Nanos now);
  void take_computed(uint64_t question, const BorrowEvent& event, Nanos now);
  // How many free cells are kept for answers that may still come.
  uint32_t kept_for_prompts() const;
  uint32_t kept_for_prefixes() const;  // of attended_
  void recall(const BorrowEvent& event);

  const BrokerOptions options_;
  PeerTransport& transport_;
  CellPlaces& places_;
  LentFrames frames_;
  // Each has numbers of its own: the engine's are those, behind those of the ones before.
  BorrowedCells cells_;
  BorrowedCells attended_;
  BorrowedCells prefix_cells_;
  std::map<uint64_t, std::optional<ContractRef>> prefixes_;  // by question, until it is done: what is shown
  std::map<uint64_t, uint32_t> keeping_;  // of these: the cells that a peer was asked to keep
  std::map<uint64_t, uint32_t> prompts_;  // questions that are not answered: the cells they may bring
  std::unique_ptr<Life> life_;
  // Cells that the engine has asked for and not been answered for. If none of them comes by refuse_at_, the
  // engine is told that they are refused, so that it can do without; if it asks again, or still lacks them,
  // they have kept their place at the leader meanwhile.
  uint32_t asked_ = 0;
  Nanos asked_since_ = 0;
  Nanos refuse_at_ = INT64_MAX;
  LendingEvents events_;  // of the current turn
  bool leaving_ = false;
};

}  // namespace kvasir::cluster
