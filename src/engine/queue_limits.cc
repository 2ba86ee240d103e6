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

void QueueLimits::joined(uint64_t prompt_tokens, Nanos now) {
  ++requests_;
  prompt_tokens_ += prompt_tokens;
  pace_.came(now, requests_);
}

void QueueLimits::began(uint64_t prompt_tokens, Nanos now) {
  pace_.began(now);
  ended(prompt_tokens);
}

void QueueLimits::ended(uint64_t prompt_tokens) {
  --requests_;
  prompt_tokens_ -= prompt_tokens;
}

}  // namespace kvasir
