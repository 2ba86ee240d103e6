#include "engine/queue_limits.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace kvasir {

uint64_t prompt_tokens_of(std::span<const GenerationRequest> requests) {
  return std::accumulate(requests.begin(), requests.end(), uint64_t{0},
                         [](uint64_t sum, const GenerationRequest& r) { return sum + r.prompt.size(); });
}

Status QueueLimits::check_length(const GenerationRequest& request) const {
  const uint64_t prompt = request.prompt.size();
  if (prompt == 0) return error(ErrorCode::kInvalidArgument, "the prompt is empty: send at least one token");
  if (prompt >= options_.max_model_len) {
    return error(
        ErrorCode::kInvalidArgument,
        "the prompt has {} tokens, and with at least one of output the largest length that fits is {} "
        "tokens: shorten the prompt",
        prompt, options_.max_model_len);
  }
  if (request.max_tokens > options_.max_model_len - prompt) {
    return error(
        ErrorCode::kInvalidArgument,
        "the prompt has {} tokens and max_tokens is {}, but the largest length that fits is {} tokens: "
        "ask for at most {}",
        prompt, request.max_tokens, options_.max_model_len, options_.max_model_len - prompt);
  }
  return {};
}

Status QueueLimits::check_queue(std::span<const GenerationRequest> requests) {
  const uint64_t more = requests.size();
  const GenerationRequest& first = requests.front();
  const double most = static_cast<double>(options_.max_num_queued_reqs) *
                      static_cast<double>(std::min(first.tenant.queue_share, 1.0F));
  if (more > 1 && static_cast<double>(more) > most) {
    return error(
        ErrorCode::kInvalidArgument,
        "the request needs {} places in the queue, one for each choice of each prompt, and may have {}: "
        "send fewer prompts or ask for fewer choices",
        more, static_cast<uint64_t>(most));
  }
  if (requests_ + more > options_.max_num_queued_reqs) {
    return error(ErrorCode::kExhausted, "{} requests are queued already{}: try again later", requests_,
                 more > 1 ? fmt::format(", and this one needs {} places", more) : "");
  }
  KV_RETURN_IF_ERROR(check_share(first.tenant, more));
  // A request that would be alone in the queue is accepted whatever its length: it would be no shorter later.
  if (options_.max_num_queued_tokens > 0 && requests_ > 0 &&
      prompt_tokens_ + prompt_tokens_of(requests) > options_.max_num_queued_tokens) {
    return error(ErrorCode::kExhausted, "{} prompt tokens are queued already: try again later",
                 prompt_tokens_);
  }
  const Nanos wait = pace_.wait(requests_ - reserved_);
  if (options_.refuse_late && first.slo.ttft_ms > 0 && 4 * wait > first.slo.ttft_ms * kNanosPerMilli) {
    ++refused_late_;
    return error(ErrorCode::kExhausted,
                 "the queue is about {} ms long, too long for a TTFT of {} ms: try again later",
                 wait / kNanosPerMilli, first.slo.ttft_ms);
  }
  return {};
}

// With shares below 1 the queue is never full of the requests of few tenants: n tenants that take all that
// they may with a share of a half leave 1 of n + 1 places free.
Status QueueLimits::check_share(const Tenant& tenant, uint64_t more) const {
  if (tenant.queue_share >= 1) return {};
  const auto found = by_tenant_.find(tenant.id);
  const uint64_t own = found == by_tenant_.end() ? 0 : found->second;
  const uint64_t others = requests_ - own;
  const double places = static_cast<double>(options_.max_num_queued_reqs - others);
  // One place is for each that finds one free.
  if (own + more == 1 ||
      static_cast<double>(own + more) <= places * static_cast<double>(tenant.queue_share)) {
    return {};
  }
  return error(ErrorCode::kOverShare,
               "{} of your requests are queued{}: your queue_share allows no more while {} of others are "
               "queued; try again later",
               own, more > 1 ? fmt::format(", and this one needs {} places", more) : "", others);
}

void QueueLimits::joined(Place place, Nanos now) {
  add(1, place);
  pace_.came(now, requests_ - reserved_);
}

void QueueLimits::reserve(uint64_t requests, Place all) {
  add(requests, all);
  reserved_ += requests;
}

void QueueLimits::give_back(uint64_t requests, Place all) {
  remove(requests, all);
  reserved_ -= requests;
}

void QueueLimits::add(uint64_t requests, Place all) {
  by_tenant_[all.tenant] += requests;  // first, since it may throw
  requests_ += requests;
  prompt_tokens_ += all.prompt_tokens;
}

void QueueLimits::remove(uint64_t requests, Place all) {
  requests_ -= requests;
  prompt_tokens_ -= all.prompt_tokens;
  const auto own = by_tenant_.find(all.tenant);
  if ((own->second -= requests) == 0) by_tenant_.erase(own);
}

void QueueLimits::began(Place place, Nanos now) {
  pace_.began(now);
  ended(place);
}

void QueueLimits::ended(Place place) {
  remove(1, place);
}

}  // namespace kvasir
