#include "apps/simulate/sim_network.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr std::string_view kInstanceName = "instance-";

}  // namespace

PeerId SimNetwork::id_of(uint32_t number) {
  return {fmt::format("{}{:02}", kInstanceName, number), 1};
}

uint32_t SimNetwork::number_of(const PeerId& id) {
  KV_CHECK(id.instance.starts_with(kInstanceName), "{} is no simulated instance", id.instance);
  return static_cast<uint32_t>(std::stoul(id.instance.substr(kInstanceName.size())));
}

PeerTransport& SimNetwork::open(uint32_t number, const Clock& clock) {
  return endpoints_.emplace_back(*this, number, clock);
}

Status SimNetwork::send(uint32_t from, Nanos now, const PeerId& to, std::vector<std::byte> bytes) {
  const uint32_t number = number_of(to);
  KV_CHECK(number < inboxes_.size(), "there is no {}", to.instance);
  // The leader, which runs no model, is on a node of its own.
  const bool apart = std::max(from, number) == topology_.instances;
  const NetworkSpec& way = apart ? topology_.between : topology_.way(from, number);
  const double seconds = way.latency_s + static_cast<double>(bytes.size()) / way.usable();
  Nanos& last = last_[{from, number}];
  last = std::max<Nanos>(last, now + std::llround(seconds * static_cast<double>(kNanosPerSecond)));
  inboxes_[number].emplace(last, PeerMessage{id_of(from), std::move(bytes)});
  ++messages_;
  return {};
}

std::vector<PeerMessage> SimNetwork::receive(uint32_t number, Nanos by) {
  Inbox& inbox = inboxes_[number];
  std::vector<PeerMessage> out;
  while (!inbox.empty() && inbox.begin()->first <= by) {
    out.push_back(std::move(inbox.begin()->second));
    inbox.erase(inbox.begin());
  }
  return out;
}

Nanos SimNetwork::next_arrival(uint32_t number) const {
  return inboxes_[number].empty() ? INT64_MAX : inboxes_[number].begin()->first;
}

}  // namespace kvasir
