// The control plane of one instance: it opens incoming messages and passes each to its handler.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "cluster/protocol/gmanager.h"
#include "cluster/protocol/prefix_exchange.h"
#include "cluster/protocol/prompt_loans.h"
#include "cluster/protocol/rmanager.h"

namespace kvasir::cluster {

// Not thread-safe; owns no thread, no clock and no socket. A driver loop: wait on the transport until
// next_deadline(); lost() for its lost(), handle() for its receive(), membership as it comes; tick(); then
// the borrower's events. A peer whose connection broke is lost here even if it is still a member; it joins
// again when it has been introduced to the transport again.
class ControlPlane {
 public:
  // Receives each message of the data plane that comes from the current life of a peer.
  using OnData = std::function<void(const PeerId& from, std::span<const std::byte> bytes)>;

  // Everything given by reference outlives it. REQUIRES: check(settings).ok()
  ControlPlane(ProtocolSettings settings, PeerTransport& transport, PeerId self, LendableMemory& memory,
               OnData on_data);
  ControlPlane(const ControlPlane&) = delete;
  ControlPlane& operator=(const ControlPlane&) = delete;

  void handle(const PeerMessage& message, Nanos now);

  // Membership. An earlier life of an instance that joins is lost; joining twice is joining once.
  void joined(const PeerId& peer, Nanos now);
  void lost(const PeerId& peer, Nanos now);
  // The elected leader, possibly this instance. Older terms are ignored.
  void leader(const PeerId& peer, uint64_t term, Nanos now);
  void directory(bool reached, Nanos now);

  void tick(Nanos now);
  // INT64_MAX: nothing is due.
  Nanos next_deadline() const;

  // What the instance wants of its peers. Each call sends its messages at once.
  // needed_since: arrival of the oldest request that needs borrowed blocks; INT64_MAX: none does.
  void want(const Want& want, Nanos needed_since, Nanos now);
  void give_back(const ContractRef& contract, std::span<const uint32_t> slots, Nanos now);
  uint32_t recall(uint32_t blocks, Nanos now, Nanos since = INT64_MIN);
  void leave(Nanos now);
  // Data-plane messages to a current life of a peer.
  Status send_data(const PeerId& to, std::span<const std::byte> bytes) { return post_.send_data(to, bytes); }

  std::vector<BorrowEvent> take_events() { return rmanager_.borrower().take_events(); }
  Post& post() { return post_; }
  const Post& post() const { return post_; }
  RManager& rmanager() { return rmanager_; }
  const RManager& rmanager() const { return rmanager_; }
  PrefixExchange& prefixes() { return prefixes_; }
  const PrefixExchange& prefixes() const { return prefixes_; }
  PromptLoans& prompts() { return prompts_; }
  GManager& gmanager() { return gmanager_; }
  const GManager& gmanager() const { return gmanager_; }
  // Describes all state that decides what happens next; equal states have equal descriptions.
  std::string describe() const {
    return post_.describe() + rmanager_.describe() + gmanager_.describe() + prefixes_.describe() +
           prompts_.describe();
  }

 private:
  void dispatch(Post::Outcome outcome, Nanos now);
  Status deliver(const PeerId& from, const wire::Envelope& message, Nanos now);
  void finish(Nanos now);

  const ProtocolSettings settings_;
  Post post_;
  RManager rmanager_;
  GManager gmanager_;
  PrefixExchange prefixes_;
  PromptLoans prompts_;
  const OnData on_data_;
};

}  // namespace kvasir::cluster
