// The connections that wait for their clients, by how long: those that may be closed to make way for others.
#pragma once

#include <cstdint>
#include <map>
#include <new>
#include <string>
#include <unordered_map>

#include "base/clock.h"

namespace kvasir {

class Connection;

// Never looks into a connection. Not thread-safe.
class WaitingConnections {
 public:
  // Of this client, as ConnectionQuota knows it. It keeps `bytes` in memory. Nothing happens if it waits
  // already, or if this throws.
  void add(Connection* connection, const std::string& client, Nanos now, uint64_t bytes = 0) {
    if (!places_.emplace(connection, Place{next_, client, now, bytes}).second) return;
    bytes_ += bytes;
    try {
      all_.emplace(next_, connection);
      by_client_[client].emplace(next_, connection);
    } catch (const std::bad_alloc&) {
      remove(connection);
      throw;
    }
    ++next_;
  }
  // Nothing happens if it does not wait.
  void remove(Connection* connection) {
    const auto place = places_.find(connection);
    if (place == places_.end()) return;
    bytes_ -= place->second.bytes;
    all_.erase(place->second.order);
    if (const auto client = by_client_.find(place->second.client); client != by_client_.end()) {
      client->second.erase(place->second.order);
      if (client->second.empty()) by_client_.erase(client);
    }
    places_.erase(place);
  }
  // The one that waits for longest, of all or of a client; null if none waits.
  Connection* oldest() const { return all_.empty() ? nullptr : all_.begin()->second; }
  Connection* oldest_of(const std::string& client) const {
    const auto found = by_client_.find(client);
    return found == by_client_.end() ? nullptr : found->second.begin()->second;
  }
  // REQUIRES: it waits
  Nanos since(Connection* connection) const { return places_.at(connection).since; }
  // Of all that wait.
  uint64_t bytes() const { return bytes_; }

 private:
  struct Place {
    uint64_t order;
    std::string client;
    Nanos since;
    uint64_t bytes;
  };
  using InOrder = std::map<uint64_t, Connection*>;

  uint64_t next_ = 0;
  uint64_t bytes_ = 0;
  InOrder all_;
  std::unordered_map<std::string, InOrder> by_client_;  // without empty ones
  std::unordered_map<Connection*, Place> places_;
};

}  // namespace kvasir
