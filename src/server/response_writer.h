// The JSON of every answer.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "model/tokenizer.h"
#include "server/api_error.h"
#include "server/api_request.h"
#include "server/choice_stream.h"

namespace kvasir {

struct Usage {
  uint64_t prompt_tokens = 0;
  uint64_t completion_tokens = 0;
  uint64_t cached_tokens = 0;
};

// One choice of an answer that is not streamed.
struct FinishedChoice {
  TextDelta all;
  std::string finish_reason;
};

// {"error": {...}}
std::string error_json(const ApiError& error);
std::string models_json(const std::vector<std::string>& names, int64_t created, uint32_t max_model_len);
std::string model_json(const std::string& name, int64_t created, uint32_t max_model_len);
std::string version_json(const std::string& version);

// Writes the answers to one request. Immutable, so thread-safe. REQUIRES: the tokenizer outlives this.
class ResponseWriter {
 public:
  // `created` in seconds since 1970.
  ResponseWriter(const Tokenizer* tokenizer, ApiKind kind, std::string id, int64_t created, std::string model,
                 bool want_logprobs, bool include_usage);

  // The first delta of a chat choice, which has the role. REQUIRES: kind is kChat
  std::string role_chunk(size_t choice) const;
  // `finish_reason` empty: null.
  std::string delta_chunk(size_t choice, const TextDelta& delta, const std::string& finish_reason) const;
  std::string usage_chunk(const Usage& usage) const;
  std::string full(const std::vector<FinishedChoice>& choices, const Usage& usage) const;

 private:
  std::string head(bool chunk) const;
  std::string logprobs_json(const TextDelta& delta) const;

  const Tokenizer* tokenizer_;
  const ApiKind kind_;
  const bool want_logprobs_;
  const bool include_usage_;
  const std::string id_;
  const std::string model_;  // as JSON
  const int64_t created_;
};

}  // namespace kvasir
