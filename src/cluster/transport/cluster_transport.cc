#include "cluster/transport/cluster_transport.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/check.h"
#include "base/log.h"

namespace kvasir {
namespace {

constexpr size_t kMaxInstanceBytes = 255;
constexpr size_t kMostToldOf = 64;
constexpr size_t kMostMessageBytes = size_t{1} << 30;  // gRPC counts in int

}  // namespace

Status check_options(const TransportOptions& options) {
  if (options.self.instance.empty() || options.self.instance.size() > kMaxInstanceBytes) {
    return error(ErrorCode::kInvalidArgument, "an instance's name of {} bytes: give it 1 to {}",
                 options.self.instance.size(), kMaxInstanceBytes);
  }
  if (options.max_message_bytes > kMostMessageBytes) {
    return error(ErrorCode::kInvalidArgument, "messages of {} bytes: allow {} at most",
                 options.max_message_bytes, kMostMessageBytes);
  }
  if (options.send_deadline <= 0 || options.max_message_bytes == 0 ||
      options.max_waiting_bytes < options.max_message_bytes) {
    return error(ErrorCode::kInvalidArgument,
                 "a deadline of {} ms, messages of {} bytes and queues of {} do not go together",
                 to_millis(options.send_deadline), options.max_message_bytes, options.max_waiting_bytes);
  }
  return {};
}

ClusterTransport::ClusterTransport(TransportOptions options)
    : options_(std::move(options)),
      tick_(std::clamp(options_.send_deadline / 20, 5 * kNanosPerMilli, 100 * kNanosPerMilli)),
      life_(options_.self.epoch) {}

void ClusterTransport::begin_life(uint64_t epoch) {
  std::lock_guard lock(mutex_);
  life_ = epoch;
  for (const auto& [link, instance] : linked_) close_link(link);
  linked_.clear();
  peers_.clear();
  inbox_.clear();
  inbox_bytes_ = 0;
  lost_.clear();
}

void ClusterTransport::introduce(const PeerId& peer, const std::string& address) {
  std::lock_guard lock(mutex_);
  if (life_ == 0) return;
  const auto known = peers_.find(peer.instance);
  if (known != peers_.end()) {
    const Peer& now = known->second;
    if (now.epoch == peer.epoch && now.link != 0 && now.address == address) return;
    drop_locked(peer.instance);
  }
  const LinkId link = next_link_++;
  peers_[peer.instance] = {.epoch = peer.epoch, .address = address, .link = link};
  linked_[link] = peer.instance;
  open_link(link, life_, peer, address);
}

void ClusterTransport::forget(const PeerId& peer) {
  std::lock_guard lock(mutex_);
  const auto known = peers_.find(peer.instance);
  if (known != peers_.end() && known->second.epoch == peer.epoch) drop_locked(peer.instance);
}

void ClusterTransport::drop_locked(const std::string& instance) {
  const auto known = peers_.find(instance);
  const PeerId id{instance, known->second.epoch};
  if (known->second.link != 0) {
    close_link(known->second.link);
    linked_.erase(known->second.link);
  }
  peers_.erase(known);
  std::erase(lost_, id);
  std::erase_if(inbox_, [&](const PeerMessage& message) {
    if (message.from != id) return false;
    inbox_bytes_ -= message.bytes.size();
    return true;
  });
}

Status ClusterTransport::send(const PeerId& to, std::vector<std::byte> bytes) {
  const size_t size = bytes.size();
  if (size > options_.max_message_bytes) {
    return error(ErrorCode::kInvalidArgument, "a message of {} bytes to {}: send {} at most", size,
                 to.instance, options_.max_message_bytes);
  }
  std::lock_guard lock(mutex_);
  const auto known = peers_.find(to.instance);
  if (known == peers_.end() || known->second.epoch != to.epoch) {
    return error(ErrorCode::kUnavailable, "{} of epoch {} was not introduced", to.instance, to.epoch);
  }
  Peer& peer = known->second;
  if (peer.link == 0) {
    return error(ErrorCode::kUnavailable, "{} of epoch {} is lost", to.instance, to.epoch);
  }
  if (peer.waiting_bytes + size > options_.max_waiting_bytes) {
    return error(ErrorCode::kExhausted, "{} bytes wait for {} already: send less, or later",
                 peer.waiting_bytes, to.instance);
  }
  peer.waiting_bytes += size;
  ++stats_.messages_sent;
  stats_.bytes_sent += size;
  post(peer.link, std::move(bytes));
  return {};
}

std::vector<PeerMessage> ClusterTransport::receive() {
  std::lock_guard lock(mutex_);
  inbox_bytes_ = 0;
  return std::exchange(inbox_, {});
}

std::vector<PeerId> ClusterTransport::lost() {
  std::lock_guard lock(mutex_);
  return std::exchange(lost_, {});
}

void ClusterTransport::wait(Nanos timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, std::chrono::nanoseconds(std::max<Nanos>(timeout, 0)),
                    [&] { return woken_ || !inbox_.empty() || !lost_.empty(); });
  woken_ = false;
}

void ClusterTransport::wake() {
  {
    std::lock_guard lock(mutex_);
    woken_ = true;
  }
  changed_.notify_all();
}

TransportStats ClusterTransport::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

Status ClusterTransport::admit(const PeerId& from, uint64_t life, const std::vector<std::string>* certified) {
  Status fine = check_life(from, life);
  if (certified != nullptr &&
      std::find(certified->begin(), certified->end(), from.instance) == certified->end()) {
    fine = error(ErrorCode::kInvalidArgument, "the certificate of '{}' is not that of '{}'",
                 fmt::join(*certified, "', '"), from.instance);
    // Said once of each, and not of too many: a caller with a certificate can try as often as it likes.
    bool tells = false;
    {
      const std::lock_guard lock(mutex_);
      tells = told_of_names_.size() < kMostToldOf && told_of_names_.insert(fine.message()).second;
    }
    if (tells) {
      log_warning("cluster: {}: its sender is not heard; /metrics counts what is rejected", fine.message());
    }
  }
  if (!fine.ok()) count_rejected();
  return fine;
}

Status ClusterTransport::check_life(const PeerId& from, uint64_t life) const {
  if (life != 0 && life == life_) return {};
  return error(ErrorCode::kUnavailable, "a frame of {} for epoch {}, which is not this one", from.instance,
               life);
}

Status ClusterTransport::deliver(const PeerId& from, uint64_t life, std::vector<std::byte> message) {
  {
    std::lock_guard lock(mutex_);
    // It was admitted, but since then the life may have ended, and the sender been introduced to the next.
    if (Status meant = check_life(from, life); !meant.ok()) {
      ++stats_.rejected_frames;
      return meant;
    }
    const auto known = peers_.find(from.instance);
    if (known == peers_.end() || known->second.epoch != from.epoch || known->second.link == 0) {
      ++stats_.unknown_frames;
      return {};
    }
    if (inbox_bytes_ + message.size() > options_.max_waiting_bytes) {
      return {ErrorCode::kExhausted, "the inbox is full"};
    }
    inbox_bytes_ += message.size();
    ++stats_.messages_received;
    stats_.bytes_received += message.size();
    inbox_.push_back({from, std::move(message)});
  }
  changed_.notify_all();
  return {};
}

void ClusterTransport::link_lost(LinkId link, const std::string& why) {
  {
    std::lock_guard lock(mutex_);
    const auto linked = linked_.find(link);
    if (linked == linked_.end()) return;  // forgotten meanwhile
    Peer& peer = peers_.at(linked->second);
    log_warning("cluster: instance {} of epoch {} is lost: {}", linked->second, peer.epoch, why);
    lost_.push_back({linked->second, peer.epoch});
    peer.link = 0;
    peer.waiting_bytes = 0;
    ++stats_.lost_peers;
    linked_.erase(linked);
  }
  changed_.notify_all();
}

void ClusterTransport::settled(LinkId link, size_t bytes) {
  std::lock_guard lock(mutex_);
  const auto linked = linked_.find(link);
  if (linked == linked_.end()) return;
  Peer& peer = peers_.at(linked->second);
  KV_CHECK(peer.waiting_bytes >= bytes, "waiting={} settled={}", peer.waiting_bytes, bytes);
  peer.waiting_bytes -= bytes;
}

std::map<std::string, uint64_t> ClusterTransport::introduced() const {
  const std::lock_guard lock(mutex_);
  std::map<std::string, uint64_t> out;
  for (const auto& [instance, peer] : peers_) out[instance] = peer.epoch;
  return out;
}

void ClusterTransport::count_rejected() {
  std::lock_guard lock(mutex_);
  ++stats_.rejected_frames;
}

void ClusterTransport::count_refused() {
  std::lock_guard lock(mutex_);
  ++stats_.refused_links;
}

}  // namespace kvasir
