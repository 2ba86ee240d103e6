// In which form a model writes calls of tools and what it thinks, told by its chat template.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/step.h"
#include "model/tokenizers/tokenizer.h"

namespace kvasir {

enum class ToolFormat : uint8_t {
  kNone,
  kHermes,       // <tool_call>{"name": N, "arguments": {...}}</tool_call>
  kLlama3Json,   // {"name": N, "parameters": {...}}, perhaps behind <|python_tag|>; several with ";"
  kMistral,      // [TOOL_CALLS][{"name": N, "arguments": {...}}, ...]
  kMistralArgs,  // [TOOL_CALLS]N[ARGS]{...}
  kGranite,      // <|tool_call|>[{"name": N, "arguments": {...}}, ...]
  kQwen3Xml,     // <tool_call><function=N><parameter=P>V</parameter>...</function></tool_call>
  kOpenAi,       // harmony: <|channel|>commentary to=functions.N<|message|>{...}<|call|>
};

enum class ReasoningFormat : uint8_t {
  kNone,
  kThink,       // <think>...</think> before the answer
  kThinkFirst,  // the same, and the output begins inside even if the prompt does not say so
  kGranite,     // <think>...</think><response>...</response>
  kMistral,     // [THINK]...[/THINK]
  kOpenAi,      // harmony: the channel `analysis`
};

// What a server knows of its model's outputs.
struct OutputFormats {
  ToolFormat tools = ToolFormat::kNone;
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  // The variable in which the chat template takes tools; empty: it takes none.
  std::string tools_variable;
};

// What the end of a prompt says of reasoning.
enum class Thinking : uint8_t {
  kNo,        // the model has none, or the prompt has ended it
  kMayBegin,  // the model may begin it, or answer at once
  kInside,    // the prompt has begun it
};

// How the outputs of one request are read.
struct OutputPlan {
  ToolFormat tools = ToolFormat::kNone;  // kNone: calls are not looked for
  ReasoningFormat reasoning = ReasoningFormat::kNone;
  Thinking thinking = Thinking::kNo;
  bool active() const { return tools != ToolFormat::kNone || reasoning != ReasoningFormat::kNone; }
};

// By marks that a template shows to its model, or reads from it. kNone: none is known.
ToolFormat pick_tool_format(std::string_view chat_template);
ReasoningFormat pick_reasoning_format(std::string_view chat_template);
OutputFormats pick_formats(std::string_view chat_template);
// Whether an expression or statement of the template names the variable.
bool template_reads(std::string_view chat_template, std::string_view variable);

// The names of the flags --tool-call-parser and --reasoning-parser.
std::string_view tool_parser_name(ToolFormat format);
std::string_view reasoning_parser_name(ReasoningFormat format);
// `name` is one of the above, or "auto", which changes nothing. kInvalidArgument: it is none of them; the
// message lists them.
Status override_tool_parser(std::string_view name, OutputFormats& formats);
Status override_reasoning_parser(std::string_view name, OutputFormats& formats);

// Texts that stand around calls and reasoning: in many vocabularies they are control tokens.
std::span<const std::string_view> marks_of(ToolFormat format);
std::span<const std::string_view> marks_of(ReasoningFormat format);
// Those marks of the plan that are control tokens of the vocabulary.
std::vector<Token> control_marks(const Tokenizer& tokenizer, const OutputPlan& plan);

// By the mark that the prompt ends with, spaces aside.
Thinking thinking_behind(std::string_view prompt, ReasoningFormat format);

}  // namespace kvasir
