// A line in the log for each name of a field that requests have and the server does not know. Internal to
// src/server.
#pragma once

#include <mutex>
#include <set>
#include <span>
#include <string>

#include "base/log.h"
#include "server/keys/key_usage.h"

namespace kvasir {

// Thread-safe. Such fields are ignored, as OpenAI's clients expect; a client may have mistyped one.
class UnknownFields {
 public:
  // Logs those of the names that are new, and whose request had them. After kMost names it logs no more.
  void note(std::span<const std::string> names, const Caller& caller) {
    constexpr size_t kMost = 64;
    std::lock_guard lock(mutex_);
    for (const std::string& name : names) {
      if (seen_.size() >= kMost || !seen_.insert(name).second) continue;
      log_line(LogLevel::kWarning,
               fmt::format("a request has the field '{}', which is unknown and ignored (said once)",
                           printable(name)),
               {{"request_id", caller.request_id}, {"key", caller.name()}});
    }
  }

 private:
  static std::string printable(std::string name) {
    for (char& c : name) {
      if (c < ' ' || c > '~') c = '?';
    }
    return name;
  }

  std::mutex mutex_;
  std::set<std::string> seen_;
};

}  // namespace kvasir
