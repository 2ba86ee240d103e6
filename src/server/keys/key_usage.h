// What the requests with a key use, and the answers to those that would use more.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "base/clock.h"
#include "engine/request.h"
#include "server/api_error.h"
#include "server/keys/api_key.h"

namespace kvasir {

// A rate as a bucket: it fills with `per_minute` a minute, up to as many. What was used beyond what it had is
// a debt, which fills first.
class RateBucket {
 public:
  // 0: no bound.
  void set_rate(uint64_t per_minute, Nanos now);
  bool bounded() const { return per_minute_ > 0; }
  uint64_t per_minute() const { return per_minute_; }

  void spend(uint64_t amount, Nanos now);
  // What may be spent, not below 0.
  uint64_t left(Nanos now) const;
  // Until `amount` may be spent; 0: now. An amount beyond what the bucket holds waits until it is full.
  Nanos wait(uint64_t amount, Nanos now) const;

 private:
  double level(Nanos now) const;

  uint64_t per_minute_ = 0;
  double level_ = 0;  // at `at_`; below 0: a debt
  Nanos at_ = 0;
};

enum class KeyLimit : uint8_t { kRequests, kTokens, kConcurrent, kQueue, kClaims };
inline constexpr size_t kKeyLimits = 5;
// "requests_per_minute" and so on.
const char* name(KeyLimit limit);

// Of one key, as long as its name stays configured. Used on the I/O thread; counters are read on any.
struct KeyUsage {
  uint32_t tenant = 0;                // Tenant::id
  std::atomic<uint32_t> running = 0;  // prompts and choices in progress
  RateBucket requests;
  RateBucket tokens;
  // Since the server began, or the key came.
  std::atomic<uint64_t> requests_total = 0;
  std::atomic<uint64_t> prompt_tokens_total = 0;
  std::atomic<uint64_t> output_tokens_total = 0;
  std::array<std::atomic<uint64_t>, kKeyLimits> refused{};  // by KeyLimit
};

// Who sent a request.
struct Caller {
  std::shared_ptr<const ApiKey> key;  // null: the server needs no key
  std::shared_ptr<KeyUsage> usage;    // null: likewise
  std::string owner;                  // whose the answers are that the server keeps for the request
  float queue_share = 1;              // Tenant::queue_share
  std::string request_id = {};        // for logs

  // For logs: the key's name; "-": it has none, or shows none.
  std::string_view name() const { return key ? std::string_view(key->name) : "-"; }
  Tenant tenant() const { return key ? Tenant{usage->tenant, key->weight, queue_share} : Tenant{}; }
};

// Counts a request that begins. 429: one too many in this minute, or as many run as may.
std::optional<ApiError> begin_request(const Caller& caller, Nanos now);
// 429: the caller may not begin so many prompts and choices now, whose prompts have so many tokens in all.
std::optional<ApiError> check_generation(const Caller& caller, uint32_t choices, uint64_t prompt_tokens,
                                         Nanos now);
// 403: the key may not say this of its requests. `field`: as the client named it.
ApiError claim_refused(const Caller& caller, const char* field);
void count_refusal(const Caller& caller, KeyLimit limit);

// The salt of the prefixes that a request may reuse, which contains the one that it names itself. Callers of
// different keys have different ones, unless `shared`.
std::string prefix_salt(const Caller& caller, bool shared, const std::string& own);

// The headers x-ratelimit-{limit,remaining,reset}-{requests,tokens}, one a line, for the bounds that the key
// has.
std::string rate_limit_headers(const Caller& caller, Nanos now);

// So many prompts and choices are in progress. Used on the I/O thread.
class KeyLease {
 public:
  KeyLease() = default;
  KeyLease(std::shared_ptr<KeyUsage> usage, uint32_t choices) : usage_(std::move(usage)), choices_(choices) {
    if (usage_) usage_->running += choices_;
  }
  ~KeyLease() {
    if (usage_) usage_->running -= choices_;
  }
  KeyLease(KeyLease&& other) noexcept
      : usage_(std::move(other.usage_)), choices_(std::exchange(other.choices_, 0)) {}
  KeyLease& operator=(KeyLease&& other) noexcept {
    std::swap(usage_, other.usage_);
    std::swap(choices_, other.choices_);
    return *this;
  }

  void prompt(uint64_t tokens, Nanos now);
  void output(uint64_t tokens, Nanos now);
  // The engine's queue has no place for the caller.
  void over_share();

 private:
  std::shared_ptr<KeyUsage> usage_;
  uint32_t choices_ = 0;
};

}  // namespace kvasir
