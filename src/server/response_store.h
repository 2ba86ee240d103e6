// The answers of /v1/responses that later requests continue, and that clients ask for again.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "server/api_request.h"

namespace kvasir {

struct StoredResponse {
  std::string owner;                 // Caller::owner of its client: another does not find it
  std::string body;                  // the response, as JSON
  std::vector<ApiMessage> messages;  // the conversation up to the answer and with it, without instructions

  uint64_t bytes() const;  // about what it takes in memory
};

// Those that were used last, in memory, within bounds. Where an owner's take more than an equal share of what
// all take, they make room first, so that one owner cannot push out those of the others. Thread-safe.
class ResponseStore {
 public:
  // With `max_bytes` 0 it keeps nothing.
  ResponseStore(uint64_t max_bytes, size_t max_entries) : max_bytes_(max_bytes), max_entries_(max_entries) {}

  bool on() const { return max_bytes_ > 0; }
  // Those that were not used for longest make room, as above. One that is larger than all the room is not
  // kept.
  void add(const std::string& id, StoredResponse response);
  // Null: there is none, or it is someone else's.
  std::shared_ptr<const StoredResponse> find(const std::string& id, std::string_view owner);
  // False: as above.
  bool remove(const std::string& id, std::string_view owner);

  uint64_t bytes() const;
  size_t entries() const;

 private:
  using Entry = std::pair<std::string, std::shared_ptr<const StoredResponse>>;
  using Entries = std::list<Entry>;

  struct Held {
    uint64_t bytes = 0;
    uint64_t entries = 0;
  };

  void erase(Entries::iterator entry);
  // The one that was not used for longest, of owners with an equal share or more. REQUIRES: there is one
  Entries::iterator next_to_go(bool by_bytes);

  const uint64_t max_bytes_;
  const size_t max_entries_;
  mutable std::mutex mutex_;
  // Guarded by mutex_.
  Entries entries_;  // the one that was used last is the first
  std::unordered_map<std::string, Entries::iterator> by_id_;
  std::unordered_map<std::string, Held> by_owner_;  // without those that have none
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
