#include "cluster/protocol/post.h"

#include "base/log.h"
#include "base/mutant.h"
#include "cluster/protocol/cluster.pb.h"
#include "cluster/protocol/settings.h"

namespace kvasir::cluster {

Status check(const ProtocolSettings& s) {
  const std::pair<const char*, Nanos> times[] = {{"heartbeat", s.heartbeat},
                                                 {"statement", s.statement},
                                                 {"answer", s.answer},
                                                 {"recall", s.recall},
                                                 {"silence", s.silence},
                                                 {"entry_lives", s.entry_lives},
                                                 {"settle_period", s.settle_period},
                                                 {"settle_limit", s.settle_limit}};
  for (const auto& [name, time] : times) {
    if (time <= 0)
      return error(ErrorCode::kInvalidArgument, "{} is {} ns: make it longer than 0", name, time);
  }
  if (s.silence <= 2 * s.statement || s.entry_lives <= s.heartbeat) {
    return error(
        ErrorCode::kInvalidArgument,
        "silence and entry_lives are {} and {} ns: make them longer than 2 statements of {} ns and a "
        "heartbeat of {} ns",
        s.silence, s.entry_lives, s.statement, s.heartbeat);
  }
  if (s.settle_min < 1) return error(ErrorCode::kInvalidArgument, "settle_min is 0: make it 1 or more");
  return {};
}

Nanos age_of(int64_t since_ns, int64_t now_ns) {
  return std::max<int64_t>(0, within_range(now_ns) - within_range(since_ns));
}

void put(const PeerId& from, wire::Peer* to) {
  to->set_instance(from.instance);
  to->set_epoch(from.epoch);
}

PeerId get(const wire::Peer& peer) {
  return {peer.instance(), peer.epoch()};
}

std::string name_of(const PeerId& peer) {
  return fmt::format("{}#{}", peer.instance, peer.epoch);
}

void Post::joined(const PeerId& peer) {
  if (peer.instance == self_.instance) return;
  members_[peer.instance] = {peer.epoch, 0};
}

void Post::lost(const PeerId& peer) {
  if (peer != self_ && knows(peer)) members_.erase(peer.instance);
}

bool Post::knows(const PeerId& peer) const {
  if (peer == self_) return true;
  const auto it = members_.find(peer.instance);
  return it != members_.end() && it->second.epoch == peer.epoch;
}

std::vector<PeerId> Post::members() const {
  std::vector<PeerId> out;
  for (const auto& [instance, member] : members_) out.push_back({instance, member.epoch});
  return out;
}

std::optional<PeerId> Post::current(const std::string& instance) const {
  const auto it = members_.find(instance);
  if (it == members_.end()) return std::nullopt;
  return PeerId{instance, it->second.epoch};
}

Status Post::send(const PeerId& to, wire::Envelope& message) {
  if (!knows(to)) {
    return error(ErrorCode::kUnavailable, "{} is no member of the cluster; wait until it joins", name_of(to));
  }
  message.set_sender_epoch(self_.epoch);
  message.set_receiver_epoch(to.epoch);
  message.set_sequence(++sent_);
  if (to == self_) {
    own_.push_back(std::make_shared<wire::Envelope>(std::move(message)));
    return {};
  }
  std::vector<std::byte> bytes;
  const size_t size = message.ByteSizeLong();
  bytes.reserve(size + 1);  // a transport may have to mark it
  bytes.resize(size);
  message.SerializeWithCachedSizesToArray(reinterpret_cast<uint8_t*>(bytes.data()));
  return transport_.send(to, std::move(bytes));
}

Status Post::send_data(const PeerId& to, std::span<const std::byte> bytes) {
  wire::Envelope message;
  message.set_data(bytes.data(), bytes.size());
  return send(to, message);
}

Post::Outcome Post::open(const PeerMessage& message) {
  auto envelope = std::make_shared<wire::Envelope>();
  if (!envelope->ParseFromArray(message.bytes.data(), static_cast<int>(message.bytes.size())) ||
      envelope->body_case() == wire::Envelope::BODY_NOT_SET) {
    malformed(message.from,
              error(ErrorCode::kCorrupt, "{} bytes are no message; see that it runs this version",
                    message.bytes.size()));
    return Dropped{};
  }
  const auto it = members_.find(message.from.instance);
  if (envelope->has_wrong_epoch()) {
    const PeerId ended{message.from.instance, envelope->wrong_epoch().ended()};
    if (it != members_.end() && it->second.epoch == ended.epoch && ended != message.from)
      return LifeOver{ended};
    ++counts_.stale;
    return Dropped{};
  }
  const bool stale = it == members_.end() || it->second.epoch != message.from.epoch ||
                     envelope->sender_epoch() != message.from.epoch ||
                     envelope->receiver_epoch() != self_.epoch;
  if (stale && !mutant(Mutant::kStaleEpochTaken)) {
    ++counts_.stale;
    if (it != members_.end() && it->second.epoch == message.from.epoch &&
        envelope->receiver_epoch() != self_.epoch) {
      wire::Envelope answer;
      answer.mutable_wrong_epoch()->set_ended(envelope->receiver_epoch());
      // A receiver that misses it has deadlines.
      (void)send(message.from, answer);
    }
    return Dropped{};
  }
  if (it != members_.end()) {
    if (envelope->sequence() <= it->second.last) {
      ++counts_.repeated;
      return Dropped{};
    }
    it->second.last = envelope->sequence();
  }
  return Opened{message.from, std::move(envelope)};
}

Post::Outcome Post::open_own() {
  if (own_.empty()) return Dropped{};
  std::shared_ptr<const wire::Envelope> message = std::move(own_.front());
  own_.pop_front();
  return Opened{self_, std::move(message)};
}

void Post::malformed(const PeerId& from, const Status& why) {
  ++counts_.malformed;
  log_error("a message of {} is malformed: {}", name_of(from), why.message());
}

std::string Post::describe() const {
  std::string out = fmt::format("post sent {}", sent_);
  for (const auto& [instance, member] : members_) {
    out += fmt::format(" {}#{}:{}", instance, member.epoch, member.last);
  }
  return out + "\n";
}

}  // namespace kvasir::cluster
