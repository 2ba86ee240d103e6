#include "cluster/protocol/control_plane.h"

#include <algorithm>

#include "cluster/protocol/cluster.pb.h"

namespace kvasir::cluster {

ControlPlane::ControlPlane(ProtocolSettings settings, PeerTransport& transport, PeerId self,
                           LendableMemory& memory, OnData on_data)
    : settings_(std::move(settings)),
      post_(transport, std::move(self)),
      rmanager_(settings_, memory, post_),
      gmanager_(settings_, post_),
      prefixes_(settings_, memory, post_, rmanager_),
      prompts_(settings_, memory, post_, rmanager_),
      on_data_(std::move(on_data)) {
  const Status fine = check(settings_);
  KV_CHECK(fine.ok(), "{}", fine.message());
}

void ControlPlane::handle(const PeerMessage& message, Nanos now) {
  dispatch(post_.open(message), now);
  finish(now);
}

void ControlPlane::dispatch(Post::Outcome outcome, Nanos now) {
  if (const auto* over = std::get_if<Post::LifeOver>(&outcome)) return lost(over->peer, now);
  const auto* opened = std::get_if<Post::Opened>(&outcome);
  if (!opened) return;
  const Status status = deliver(opened->from, *opened->message, now);
  if (!status.ok()) post_.malformed(opened->from, status);
}

Status ControlPlane::deliver(const PeerId& from, const wire::Envelope& message, Nanos now) {
  using Body = wire::Envelope::BodyCase;
  Lender& lender = rmanager_.lender();
  Borrower& borrower = rmanager_.borrower();
  switch (message.body_case()) {
    case Body::kData:
      if (on_data_) on_data_(from, std::as_bytes(std::span(message.data())));
      return {};
    case Body::kHeartbeat:
      return gmanager_.handle(from, message.heartbeat(), now);
    case Body::kBorrow:
      return gmanager_.handle(from, message.borrow(), now);
    case Body::kDenied:
      return gmanager_.handle(from, message.denied(), now);
    case Body::kSettled:
      return gmanager_.handle(from, message.settled(), now);
    case Body::kAsk:
      return rmanager_.handle(from, message.ask(), now);
    case Body::kStanding:
      return rmanager_.handle(from, message.standing(), now);
    case Body::kSettle:
      return rmanager_.handle(from, message.settle(), now);
    case Body::kGiveBack:
      return lender.handle(from, message.give_back(), now);
    case Body::kAskStatement:
      return lender.handle(from, message.ask_statement(), now);
    case Body::kNeeds:
      return lender.handle(from, message.needs(), now);
    case Body::kAdvice:
      return borrower.handle(from, message.advice(), now);
    case Body::kGranted:
      return rmanager_.handle(from, message.granted(), now);
    case Body::kRefused:
      return borrower.handle(from, message.refused(), now);
    case Body::kStatement:
      return borrower.handle(from, message.statement(), now);
    case Body::kFindPrefix:
      return prefixes_.handle(from, message.find_prefix(), now);
    case Body::kPrefixFound:
      return prefixes_.handle(from, message.prefix_found());
    case Body::kPrefixDone:
      return prefixes_.handle(from, message.prefix_done());
    case Body::kKeepPrefix:
      return prefixes_.handle(from, message.keep_prefix(), now);
    case Body::kPrefixKept:
      return prefixes_.handle(from, message.prefix_kept(), now);
    case Body::kComputePrompt:
      return prompts_.handle(from, message.compute_prompt(), now);
    case Body::kPromptComputed:
      return prompts_.handle(from, message.prompt_computed(), now);
    case Body::kPromptDone:
      return prompts_.handle(from, message.prompt_done());
    case Body::kWrongEpoch:
    case Body::BODY_NOT_SET:
      break;
  }
  KV_CHECK(false, "the post opens no message of kind {}", static_cast<int>(message.body_case()));
}

void ControlPlane::finish(Nanos now) {
  // Another leads.
  if (gmanager_.leads() && rmanager_.term() > gmanager_.term()) gmanager_.step_down();
  while (true) {
    rmanager_.after(now);
    gmanager_.after(now);
    Post::Outcome own = post_.open_own();
    if (std::holds_alternative<Post::Dropped>(own)) return;
    dispatch(std::move(own), now);
  }
}

void ControlPlane::joined(const PeerId& peer, Nanos now) {
  if (peer.instance == post_.self().instance || post_.knows(peer)) return;
  if (const std::optional<PeerId> earlier = post_.current(peer.instance)) lost(*earlier, now);
  post_.joined(peer);
}

void ControlPlane::lost(const PeerId& peer, Nanos now) {
  if (peer == post_.self() || !post_.knows(peer)) return;
  post_.lost(peer);
  rmanager_.lost(peer, now);
  gmanager_.lost(peer, now);
  prefixes_.lost(peer);
  prompts_.lost(peer, now);
  finish(now);
}

void ControlPlane::leader(const PeerId& peer, uint64_t term, Nanos now) {
  if (peer == post_.self() && term >= rmanager_.term()) gmanager_.lead(term, now);
  rmanager_.leader(peer, term, now);
  finish(now);
}

void ControlPlane::directory(bool reached, Nanos now) {
  rmanager_.directory(reached, now);
  gmanager_.directory(reached);
  finish(now);
}

void ControlPlane::tick(Nanos now) {
  rmanager_.tick(now);
  gmanager_.tick(now);
  prefixes_.tick(now);
  prompts_.tick(now);
  finish(now);
}

Nanos ControlPlane::next_deadline() const {
  return std::min({rmanager_.next_deadline(), gmanager_.next_deadline(), prefixes_.next_deadline(),
                   prompts_.next_deadline()});
}

void ControlPlane::want(const Want& want, Nanos needed_since, Nanos now) {
  rmanager_.borrower().needed_since(needed_since);
  rmanager_.borrower().want(want, now);
  finish(now);
}

void ControlPlane::give_back(const ContractRef& contract, std::span<const uint32_t> slots, Nanos now) {
  rmanager_.borrower().give_back(contract, slots);
  finish(now);
}

uint32_t ControlPlane::recall(uint32_t blocks, Nanos now, Nanos since) {
  const uint32_t coming = rmanager_.lender().recall(blocks, now, since);
  finish(now);
  return coming;
}

void ControlPlane::leave(Nanos now) {
  rmanager_.leave(now);
  prefixes_.leave();
  prompts_.leave();
  finish(now);
}

}  // namespace kvasir::cluster
