// A request to the OpenAI interface in native types: JSON ends at the parser that fills it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "contract/slo.h"
#include "contract/step.h"

namespace kvasir {

enum class ApiKind { kChat, kCompletion };

struct ApiMessage {
  std::string role;
  std::string content;
};

// Text, or the tokens themselves.
using PromptInput = std::variant<std::string, std::vector<Token>>;

struct ApiRequest {
  ApiKind kind = ApiKind::kChat;
  std::string model;                 // empty: the one that is served
  std::vector<ApiMessage> messages;  // chat: at least one
  std::vector<PromptInput> prompts;  // completions: at least one; each becomes a choice
  bool stream = false;
  bool include_usage = false;                   // a last chunk with the usage
  SamplingParams sampling;                      // its seed is set later, for each prompt
  std::optional<uint64_t> seed;                 // none: one is drawn for each prompt
  std::optional<uint32_t> max_tokens;           // must fit
  uint32_t default_max_tokens = UINT32_MAX;     // without max_tokens: as many of these as fit
  std::string max_tokens_field = "max_tokens";  // as the client called it
  std::vector<std::string> stop;                // none of them is empty
  std::vector<Token> stop_token_ids;
  bool ignore_eos = false;
  std::optional<bool>
      parse_special;  // messages and prompts may spell control tokens; none: as the server does
  std::string cache_salt;
  int32_t priority = 0;               // lower runs first
  Slo slo;                            // as asked
  uint32_t forced_output_tokens = 0;  // the output ends with exactly so many; 0: by itself
  uint32_t output_tokens_hint = 0;
};

}  // namespace kvasir
