// A request to generate text, in native types and independent of the endpoint's schema.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "contract/slo.h"
#include "contract/step.h"
#include "model/grammar/output_grammar.h"
#include "model/templates/chat_template.h"

namespace kvasir {

// A call of a tool. The arguments are JSON as the model wrote them, which may be ill-formed.
struct ApiToolCall {
  std::string id;
  std::string name;
  std::string arguments;
};

struct ApiMessage {
  std::string role;
  std::string content;
  std::string reasoning = {};                // of the assistant, before the content
  std::vector<ApiToolCall> tool_calls = {};  // of the assistant
  std::string tool_call_id = {};             // of the role tool: which call this is the result of
  std::string name = {};                     // of the tool, or of the author
};

// A tool that the model may call.
struct ApiTool {
  std::string name;
  std::string description;
  std::string parameters;  // a JSON schema of the arguments, as text; empty: none
  bool strict = false;     // the arguments must be as the schema says
};

enum class ToolChoice : uint8_t {
  kNone,      // the model is not told of the tools
  kAuto,      // it may call tools
  kRequired,  // it calls at least one
  kNamed,     // it calls ApiRequest::named_tool
};

// Text, or the tokens themselves.
using PromptInput = std::variant<std::string, std::vector<Token>>;

// Has either messages, which become one prompt by the chat template, or prompts, each of which becomes a
// choice.
struct ApiRequest {
  std::string model;  // empty: the one that is served
  std::vector<ApiMessage> messages;
  std::vector<PromptInput> prompts;
  std::vector<ApiTool> tools;
  ToolChoice tool_choice = ToolChoice::kAuto;  // matters where there are tools
  std::string named_tool;
  bool parallel_tool_calls = true;         // false: at most one call in an answer
  TemplateValue::Dict template_variables;  // of the client, for the chat template
  bool include_reasoning = true;           // false: the answer leaves it out
  OutputGrammar grammar;
  std::string grammar_field;                // the field that said so
  std::vector<std::string> unknown_fields;  // some of those that nothing here knows
  bool stream = false;
  bool include_usage = false;          // a last chunk with the usage
  uint32_t choices = 1;                // of each prompt
  uint32_t best_of = 0;                // so many are generated, and the best are the choices; 0: choices
  SamplingParams sampling;             // its seed and its rules are set later, for each prompt
  LogitRules rules;                    // without `ends`, and with bad_words as texts below
  std::vector<std::string> bad_words;  // none of them is empty
  std::optional<uint64_t> seed;        // none: one is drawn for each choice
  bool echo = false;                   // the answer begins with the prompt
  int32_t prompt_logprobs = -1;        // of each token of the prompt, in a list of their own; -1: none
  std::optional<uint32_t> max_tokens;  // an error if they do not fit; 0 only with echo
  uint32_t default_max_tokens = UINT32_MAX;     // without max_tokens: as many of these as fit
  std::string max_tokens_field = "max_tokens";  // the name that the client used
  std::string messages_field = "messages";      // where the messages come from
  std::string prompts_field = "prompt";         // and the prompts
  std::vector<std::string> stop;                // none of them is empty
  std::vector<Token> stop_token_ids;
  bool ignore_eos = false;
  std::optional<bool> parse_special;  // text may spell control tokens; none: the server's default
  std::string cache_salt;
  std::optional<int32_t> priority;    // lower runs first
  Slo slo;                            // as asked
  uint32_t forced_output_tokens = 0;  // the exact length of the output; 0: not forced
  uint32_t output_tokens_hint = 0;
  // Of embeddings.
  bool base64 = false;      // little-endian f32, not a list of numbers
  uint32_t dimensions = 0;  // 0: the model's

  // How many outputs are generated for each prompt, and whether they are more than the choices.
  uint32_t candidates() const { return std::max(choices, best_of); }
  bool ranks() const { return best_of > choices; }
};

}  // namespace kvasir
