// The keys of a server, and what their holders use.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/clock.h"
#include "server/keys/api_key.h"
#include "server/keys/key_usage.h"

namespace kvasir {

// Used on the I/O thread; for_each() on any.
class KeyRing {
 public:
  // Without keys every caller is let in.
  explicit KeyRing(std::vector<ApiKey> keys = {}, Nanos now = 0) { replace(std::move(keys), now); }
  KeyRing(const KeyRing&) = delete;
  KeyRing& operator=(const KeyRing&) = delete;

  // Other keys from now on. One of the same name goes on with what was used and counted. A key
  // that has only a number for a name keeps it, wherever it now stands among the others.
  void replace(std::vector<ApiKey> keys, Nanos now);

  // The caller whose key is the bearer token in `authorization`, or else `x_api_key`: the values of these
  // headers, or empty. None: neither is one of the keys. All digests are compared, each in constant time.
  std::optional<Caller> find(std::string_view authorization, std::string_view x_api_key) const;

  // In the order of their names.
  void for_each(const std::function<void(const ApiKey&, const KeyUsage&)>& visit) const;

 private:
  struct Entry {
    std::shared_ptr<const ApiKey> key;
    std::shared_ptr<KeyUsage> usage;
  };
  void keep_names(std::vector<ApiKey>& keys) const;
  const Entry* holder_of(std::string_view shown) const;

  mutable std::mutex mutex_;                           // held while entries_ is changed, or read elsewhere
  std::map<std::string, Entry, std::less<>> entries_;  // by name
  uint32_t last_tenant_ = 0;
};

}  // namespace kvasir
