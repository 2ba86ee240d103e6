#include "server/keys/key_usage.h"

#include <fmt/format.h>

#include <cmath>
#include <iterator>

namespace kvasir {
namespace {

constexpr double kMinuteNs = 60e9;

int whole_seconds(Nanos wait) {
  return static_cast<int>(std::max<Nanos>(1, (wait + kNanosPerSecond - 1) / kNanosPerSecond));
}

// As OpenAI writes it: "6m0s", "1.5s", "250ms".
std::string reset_text(Nanos wait) {
  const auto millis = static_cast<uint64_t>(std::ceil(to_millis(wait)));
  if (millis < 1000) return fmt::format("{}ms", millis);
  const uint64_t minutes = millis / 60'000, rest = millis % 60'000;
  const std::string seconds = rest % 1000 == 0 ? fmt::format("{}s", rest / 1000)
                                               : fmt::format("{:.3g}s", static_cast<double>(rest) / 1000);
  return minutes > 0 ? fmt::format("{}m{}", minutes, seconds) : seconds;
}

// retry_after_s 0: to ask again is in vain.
ApiError over_limit(const Caller& caller, KeyLimit limit, const std::string& what, int retry_after_s) {
  count_refusal(caller, limit);
  ApiError e;
  e.status = 429;
  e.message = fmt::format("the key '{}' is over its limit {}: {}", caller.name(), name(limit), what);
  if (retry_after_s > 0) e.message += fmt::format("; try again in {} s", retry_after_s);
  e.code = "rate_limit_exceeded";
  e.retry_after_s = retry_after_s;
  return e;
}

std::optional<ApiError> too_many_running(const Caller& caller, uint32_t more) {
  const uint32_t most = caller.key->concurrent_requests;
  const uint32_t running = caller.usage->running;
  if (most == 0 || running + more <= most) return std::nullopt;
  const bool ever = more <= most;
  return over_limit(
      caller, KeyLimit::kConcurrent,
      fmt::format("{} prompts and choices may be in progress at once, {} are, and this request has {}", most,
                  running, more),
      ever ? 1 : 0);
}

void add_rate_headers(std::string& out, const char* what, const RateBucket& bucket, Nanos now) {
  if (!bucket.bounded()) return;
  fmt::format_to(
      std::back_inserter(out),
      "x-ratelimit-limit-{0}: {1}\r\nx-ratelimit-remaining-{0}: {2}\r\nx-ratelimit-reset-{0}: {3}\r\n", what,
      bucket.per_minute(), bucket.left(now), reset_text(bucket.wait(bucket.per_minute(), now)));
}

}  // namespace

double RateBucket::level(Nanos now) const {
  const double filled = static_cast<double>(now - at_) / kMinuteNs * static_cast<double>(per_minute_);
  return std::min(static_cast<double>(per_minute_), level_ + std::max(filled, 0.0));
}

void RateBucket::set_rate(uint64_t per_minute, Nanos now) {
  if (per_minute == per_minute_) return;
  // What was spent stays spent.
  const double spent = bounded() ? static_cast<double>(per_minute_) - level(now) : 0;
  per_minute_ = per_minute;
  level_ = static_cast<double>(per_minute) - spent;
  at_ = now;
}

void RateBucket::spend(uint64_t amount, Nanos now) {
  if (!bounded()) return;
  level_ = level(now) - static_cast<double>(amount);
  at_ = now;
}

uint64_t RateBucket::left(Nanos now) const {
  return static_cast<uint64_t>(std::max(level(now), 0.0));
}

Nanos RateBucket::wait(uint64_t amount, Nanos now) const {
  if (!bounded()) return 0;
  // The least part of one that a double may lose.
  constexpr double kNearly = 1e-6;
  const double lacks =
      std::min(static_cast<double>(amount), static_cast<double>(per_minute_)) - level(now) - kNearly;
  return lacks <= 0 ? 0 : static_cast<Nanos>(std::ceil(lacks / static_cast<double>(per_minute_) * kMinuteNs));
}

const char* name(KeyLimit limit) {
  switch (limit) {
    case KeyLimit::kRequests:
      return "requests_per_minute";
    case KeyLimit::kTokens:
      return "tokens_per_minute";
    case KeyLimit::kConcurrent:
      return "concurrent_requests";
    case KeyLimit::kQueue:
      return "queue_share";
    case KeyLimit::kClaims:
      return "claims";
  }
  return "?";
}

void count_refusal(const Caller& caller, KeyLimit limit) {
  if (caller.usage) ++caller.usage->refused[static_cast<size_t>(limit)];
}

std::optional<ApiError> begin_request(const Caller& caller, Nanos now) {
  if (!caller.key) return std::nullopt;
  KeyUsage& usage = *caller.usage;
  if (auto e = too_many_running(caller, 1)) return e;
  if (const Nanos wait = usage.requests.wait(1, now); wait > 0) {
    return over_limit(caller, KeyLimit::kRequests, fmt::format("{} in a minute", usage.requests.per_minute()),
                      whole_seconds(wait));
  }
  usage.requests.spend(1, now);
  ++usage.requests_total;
  return std::nullopt;
}

std::optional<ApiError> check_generation(const Caller& caller, uint32_t choices, uint64_t prompt_tokens,
                                         Nanos now) {
  if (!caller.key) return std::nullopt;
  if (auto e = too_many_running(caller, choices)) return e;
  const RateBucket& tokens = caller.usage->tokens;
  if (!tokens.bounded()) return std::nullopt;
  if (prompt_tokens > tokens.per_minute()) {
    return over_limit(
        caller, KeyLimit::kTokens,
        fmt::format("{} in a minute, and the prompts have {}: send less", tokens.per_minute(), prompt_tokens),
        0);
  }
  const Nanos wait = tokens.wait(prompt_tokens, now);
  if (wait == 0) return std::nullopt;
  return over_limit(caller, KeyLimit::kTokens,
                    fmt::format("{} in a minute, {} are left, and the prompts have {}", tokens.per_minute(),
                                tokens.left(now), prompt_tokens),
                    whole_seconds(wait));
}

ApiError claim_refused(const Caller& caller, const char* field) {
  ApiError e =
      bad_field(field, fmt::format("the key '{}' may not set '{}'; leave it out, or ask the server's "
                                   "operator to add it to the key's claims",
                                   caller.name(), field));
  e.status = 403;
  e.code = "claim_not_allowed";
  return e;
}

// Different pairs of identity and own salt give different texts, and none equals a salt made without a key.
std::string prefix_salt(const Caller& caller, bool shared, const std::string& own) {
  if (!caller.key || shared) return own.empty() ? "" : "s" + own;
  return fmt::format("k{}:{}{}", caller.key->identity.size(), caller.key->identity, own);
}

std::string rate_limit_headers(const Caller& caller, Nanos now) {
  std::string out;
  if (!caller.key) return out;
  add_rate_headers(out, "requests", caller.usage->requests, now);
  add_rate_headers(out, "tokens", caller.usage->tokens, now);
  return out;
}

void KeyLease::prompt(uint64_t tokens, Nanos now) {
  if (!usage_) return;
  usage_->tokens.spend(tokens, now);
  usage_->prompt_tokens_total += tokens;
}

void KeyLease::output(uint64_t tokens, Nanos now) {
  if (!usage_) return;
  usage_->tokens.spend(tokens, now);
  usage_->output_tokens_total += tokens;
}

void KeyLease::over_share() {
  if (usage_) ++usage_->refused[static_cast<size_t>(KeyLimit::kQueue)];
}

}  // namespace kvasir
