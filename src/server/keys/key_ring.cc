#include "server/keys/key_ring.h"

#include <openssl/crypto.h>

#include <set>
#include <unordered_map>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr float kShareBesideOthers = 0.5F;

bool is_bearer(std::string_view scheme) {
  constexpr std::string_view kBearer = "bearer ";
  if (scheme.size() != kBearer.size()) return false;
  for (size_t i = 0; i < kBearer.size(); ++i) {
    const char c = scheme[i];
    if ((c >= 'A' && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c) != kBearer[i]) return false;
  }
  return true;
}

// One whose name says only where it stands among the others.
bool is_numbered(const ApiKey& key) {
  return key.identity.starts_with("key:") && key.name.starts_with(kNumberedKey);
}

// The token; empty if there is none.
std::string_view bearer_token(std::string_view authorization) {
  constexpr size_t kSchemeBytes = 7;
  if (!is_bearer(authorization.substr(0, kSchemeBytes))) return {};
  return authorization.substr(kSchemeBytes);
}

}  // namespace

void KeyRing::keep_names(std::vector<ApiKey>& keys) const {
  std::unordered_map<std::string_view, std::string_view> before;  // by identity
  for (const auto& [name, entry] : entries_) before.emplace(entry.key->identity, name);
  std::set<std::string> taken;
  std::vector<ApiKey*> fresh;
  for (const ApiKey& key : keys) {
    if (!is_numbered(key)) taken.insert(key.name);
  }
  for (ApiKey& key : keys) {
    if (!is_numbered(key)) continue;
    const auto found = before.find(key.identity);
    if (found != before.end() && taken.emplace(found->second).second) {
      key.name = found->second;
    } else {
      fresh.push_back(&key);
    }
  }
  size_t number = 0;
  for (ApiKey* const key : fresh) {
    do key->name = numbered_key_name(++number);
    while (!taken.insert(key->name).second);
  }
}

void KeyRing::replace(std::vector<ApiKey> keys, Nanos now) {
  keep_names(keys);
  std::map<std::string, Entry, std::less<>> next;
  for (ApiKey& key : keys) {
    const auto before = entries_.find(key.name);
    Entry entry;
    const bool same_holder = before != entries_.end() && before->second.key->identity == key.identity;
    entry.usage = same_holder ? before->second.usage : std::make_shared<KeyUsage>();
    if (entry.usage->tenant == 0) entry.usage->tenant = ++last_tenant_;
    entry.usage->requests.set_rate(key.requests_per_minute, now);
    entry.usage->tokens.set_rate(key.tokens_per_minute, now);
    entry.key = std::make_shared<const ApiKey>(std::move(key));
    const bool is_new = next.emplace(entry.key->name, entry).second;
    KV_CHECK(is_new, "two keys have the name '{}'", entry.key->name);
  }
  const std::lock_guard lock(mutex_);
  entries_ = std::move(next);
}

// The time does not depend on which key is shown, nor on how much of it is right.
const KeyRing::Entry* KeyRing::holder_of(std::string_view shown) const {
  const KeyDigest digest = key_digest(shown);
  const Entry* found = nullptr;
  for (const auto& [name, entry] : entries_) {
    const bool same = CRYPTO_memcmp(digest.data(), entry.key->digest.data(), digest.size()) == 0;
    found = same ? &entry : found;
  }
  return shown.empty() ? nullptr : found;
}

std::optional<Caller> KeyRing::find(std::string_view authorization, std::string_view x_api_key) const {
  const std::string_view token = bearer_token(authorization);
  if (entries_.empty()) return Caller{{}, {}, std::string(token.empty() ? x_api_key : token), 1};
  const Entry* by_token = holder_of(token);
  const Entry* by_header = holder_of(x_api_key);
  const Entry* entry = by_token ? by_token : by_header;
  if (!entry) return std::nullopt;
  const float share = entry->key->queue_share.value_or(entries_.size() > 1 ? kShareBesideOthers : 1.0F);
  return Caller{entry->key, entry->usage, entry->key->identity, share};
}

void KeyRing::for_each(const std::function<void(const ApiKey&, const KeyUsage&)>& visit) const {
  const std::lock_guard lock(mutex_);
  for (const auto& [name, entry] : entries_) visit(*entry.key, *entry.usage);
}

}  // namespace kvasir
