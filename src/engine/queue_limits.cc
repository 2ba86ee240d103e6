#include "engine/queue_limits.h"

namespace kvasir {

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

Status QueueLimits::check_queue(const GenerationRequest& request) {
  if (requests_ >= options_.max_num_queued_reqs) {
    return error(ErrorCode::kExhausted, "{} requests are queued already: try again later", requests_);
  }
  KV_RETURN_IF_ERROR(check_share(request.tenant));
  // A request that would be alone in the queue is accepted whatever its length: it would be no shorter later.
  if (options_.max_num_queued_tokens > 0 && requests_ > 0 &&
      prompt_tokens_ + request.prompt.size() > options_.max_num_queued_tokens) {
    return error(ErrorCode::kExhausted, "{} prompt tokens are queued already: try again later",
                 prompt_tokens_);
  }
  const Nanos wait = pace_.wait(requests_);
  if (options_.refuse_late && request.slo.ttft_ms > 0 && 4 * wait > request.slo.ttft_ms * kNanosPerMilli) {
    ++refused_late_;
    return error(ErrorCode::kExhausted,
                 "the queue is about {} ms long, too long for a TTFT of {} ms: try again later",
                 wait / kNanosPerMilli, request.slo.ttft_ms);
  }
  return {};
}

// With shares below 1 the queue is never full of the requests of few tenants: n tenants that take all that
// they may with a share of a half leave 1 of n + 1 places free.
Status QueueLimits::check_share(const Tenant& tenant) const {
  if (tenant.queue_share >= 1) return {};
  const auto found = by_tenant_.find(tenant.id);
  const uint64_t own = found == by_tenant_.end() ? 0 : found->second;
  const uint64_t others = requests_ - own;
  const double places = static_cast<double>(options_.max_num_queued_reqs - others);
  // One place is for each that finds one free.
  if (own == 0 || static_cast<double>(own + 1) <= places * static_cast<double>(tenant.queue_share)) return {};
  return error(
      ErrorCode::kOverShare,
      "{} of your requests are queued, as many as your queue_share allows while {} of others are: try again "
      "later",
      own, others);
}

void QueueLimits::joined(Place place, Nanos now) {
  ++by_tenant_[place.tenant];  // first, since it may throw
  ++requests_;
  prompt_tokens_ += place.prompt_tokens;
  pace_.came(now, requests_);
}

void QueueLimits::began(Place place, Nanos now) {
  pace_.began(now);
  ended(place);
}

void QueueLimits::ended(Place place) {
  --requests_;
  prompt_tokens_ -= place.prompt_tokens;
  const auto own = by_tenant_.find(place.tenant);
  if (--own->second == 0) by_tenant_.erase(own);
}

}  // namespace kvasir
