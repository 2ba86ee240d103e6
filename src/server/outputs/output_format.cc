// The tables of formats.
#include "server/outputs/output_format.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>

namespace kvasir {
namespace {

constexpr std::string_view kHermesMarks[] = {"<tool_call>", "</tool_call>"};
constexpr std::string_view kLlamaMarks[] = {"<|python_tag|>"};
constexpr std::string_view kMistralMarks[] = {"[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"};
constexpr std::string_view kGraniteMarks[] = {"<|tool_call|>", "<tool_call>"};
constexpr std::string_view kHarmonyMarks[] = {"<|start|>", "<|channel|>", "<|constrain|>", "<|message|>",
                                              "<|end|>",   "<|call|>",    "<|return|>"};
constexpr std::string_view kThinkMarks[] = {"<think>", "</think>"};
constexpr std::string_view kMistralThinkMarks[] = {"[THINK]", "[/THINK]"};

struct ToolRow {
  ToolFormat format;
  std::string_view name;  // as other servers call the parser
  std::span<const std::string_view> marks;
};

const ToolRow kTools[] = {
    {ToolFormat::kNone, "none", {}},
    {ToolFormat::kHermes, "hermes", kHermesMarks},
    {ToolFormat::kLlama3Json, "llama3_json", kLlamaMarks},
    {ToolFormat::kMistral, "mistral", kMistralMarks},
    {ToolFormat::kMistralArgs, "mistral", kMistralMarks},
    {ToolFormat::kGranite, "granite", kGraniteMarks},
    {ToolFormat::kQwen3Xml, "qwen3_xml", kHermesMarks},
    {ToolFormat::kOpenAi, "openai", kHarmonyMarks},
};

struct ReasoningRow {
  ReasoningFormat format;
  std::string_view name;
  std::span<const std::string_view> marks;
};

const ReasoningRow kReasoning[] = {
    {ReasoningFormat::kNone, "none", {}},
    {ReasoningFormat::kThink, "qwen3", kThinkMarks},
    {ReasoningFormat::kThinkFirst, "deepseek_r1", kThinkMarks},
    {ReasoningFormat::kGranite, "granite", kThinkMarks},
    {ReasoningFormat::kMistral, "mistral", kMistralThinkMarks},
    {ReasoningFormat::kOpenAi, "openai_gptoss", kHarmonyMarks},
};

template <typename Row, typename Format>
const Row& row_of(std::span<const Row> table, Format format) {
  return *std::find_if(table.begin(), table.end(), [&](const Row& r) { return r.format == format; });
}

template <typename Row, typename Format>
Status override_parser(std::span<const Row> table, const char* flag, std::string_view name, Format& format) {
  if (name == "auto") return {};
  std::string known = "auto";
  for (const Row& row : table) {
    if (row.name == name) {
      format = row.format;
      return {};
    }
    if (!known.ends_with(row.name)) known += fmt::format(", {}", row.name);  // a name of two forms once
  }
  return error(ErrorCode::kInvalidArgument, "{}: '{}' is not known; there are {}", flag, name, known);
}

bool is_word(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_';
}

// Goes through what stands in {{ }} and {% %}, without strings and comments.
class CodeScanner {
 public:
  explicit CodeScanner(std::string_view source) : source_(source) {}

  bool names(std::string_view variable) {
    while (next_block()) {
      while (at_ < source_.size() && source_.substr(at_, 2) != close_) {
        const char c = source_[at_];
        if (c == '\'' || c == '"') {
          skip_string(c);
        } else if (is_word(c)) {
          const bool member = at_ > 0 && source_[at_ - 1] == '.';
          const size_t from = at_;
          while (at_ < source_.size() && is_word(source_[at_])) ++at_;
          if (!member && source_.substr(from, at_ - from) == variable) return true;
        } else {
          ++at_;
        }
      }
    }
    return false;
  }

 private:
  bool next_block() {
    while ((at_ = source_.find('{', at_)) != std::string_view::npos) {
      const char kind = at_ + 1 < source_.size() ? source_[at_ + 1] : '\0';
      if (kind == '#') {
        at_ = std::min(source_.find("#}", at_), source_.size());
        continue;
      }
      ++at_;
      if (kind != '{' && kind != '%') continue;
      ++at_;
      close_ = kind == '{' ? "}}" : "%}";
      return true;
    }
    return false;
  }
  void skip_string(char quote) {
    for (++at_; at_ < source_.size() && source_[at_] != quote; ++at_) {
      if (source_[at_] == '\\') ++at_;
    }
    at_ = std::min(at_ + 1, source_.size());
  }

  const std::string_view source_;
  size_t at_ = 0;
  std::string_view close_;
};

}  // namespace

ToolFormat pick_tool_format(std::string_view t) {
  const auto has = [t](std::string_view mark) { return t.find(mark) != std::string_view::npos; };
  if (has("<|channel|>") && has("<|message|>")) return ToolFormat::kOpenAi;
  if (has("[TOOL_CALLS]")) return has("[ARGS]") ? ToolFormat::kMistralArgs : ToolFormat::kMistral;
  if (has("<|tool_call|>")) return ToolFormat::kGranite;
  if (has("<tool_call>") && has("<function=") && has("<parameter=")) return ToolFormat::kQwen3Xml;
  // Others put names and values between marks of their own.
  if (has("<tool_call>") && has("arguments") && !has("<arg_key>")) return ToolFormat::kHermes;
  const bool llama = has("<|python_tag|>") || (has("<|start_header_id|>") && has("\"parameters\""));
  return llama && !has("<function=") ? ToolFormat::kLlama3Json : ToolFormat::kNone;
}

ReasoningFormat pick_reasoning_format(std::string_view t) {
  const auto has = [t](std::string_view mark) { return t.find(mark) != std::string_view::npos; };
  if (has("<|channel|>") && has("<|message|>")) return ReasoningFormat::kOpenAi;
  if (has("[THINK]")) return ReasoningFormat::kMistral;
  if (has("<think>") && has("<response>")) return ReasoningFormat::kGranite;
  return has("<think>") || has("</think>") ? ReasoningFormat::kThink : ReasoningFormat::kNone;
}

OutputFormats pick_formats(std::string_view chat_template) {
  OutputFormats out;
  for (const char* variable : {"tools", "xml_tools"}) {
    if (!out.tools_variable.empty() || !template_reads(chat_template, variable)) continue;
    out.tools_variable = variable;
  }
  out.tools = pick_tool_format(chat_template);
  out.reasoning = pick_reasoning_format(chat_template);
  return out;
}

bool template_reads(std::string_view chat_template, std::string_view variable) {
  return CodeScanner(chat_template).names(variable);
}

std::string_view tool_parser_name(ToolFormat format) {
  return row_of(std::span<const ToolRow>(kTools), format).name;
}

std::string_view reasoning_parser_name(ReasoningFormat format) {
  return row_of(std::span<const ReasoningRow>(kReasoning), format).name;
}

Status override_tool_parser(std::string_view name, OutputFormats& formats) {
  // One name for both forms, of which the template says which it is.
  if (name == "mistral" && formats.tools == ToolFormat::kMistralArgs) return {};
  return override_parser(std::span<const ToolRow>(kTools), "--tool-call-parser", name, formats.tools);
}

Status override_reasoning_parser(std::string_view name, OutputFormats& formats) {
  return override_parser(std::span<const ReasoningRow>(kReasoning), "--reasoning-parser", name,
                         formats.reasoning);
}

std::span<const std::string_view> marks_of(ToolFormat format) {
  return row_of(std::span<const ToolRow>(kTools), format).marks;
}

std::span<const std::string_view> marks_of(ReasoningFormat format) {
  return row_of(std::span<const ReasoningRow>(kReasoning), format).marks;
}

std::vector<Token> control_marks(const Tokenizer& tokenizer, const OutputPlan& plan) {
  std::vector<Token> out;
  for (const auto marks : {marks_of(plan.tools), marks_of(plan.reasoning)}) {
    for (const std::string_view mark : marks) {
      const std::optional<Token> id = tokenizer.find_token(mark);
      const bool known = id && std::find(out.begin(), out.end(), *id) != out.end();
      if (id && tokenizer.is_special(*id) && !known) out.push_back(*id);
    }
  }
  return out;
}

Thinking thinking_behind(std::string_view prompt, ReasoningFormat format) {
  if (format == ReasoningFormat::kNone) return Thinking::kNo;
  if (format == ReasoningFormat::kOpenAi) return Thinking::kMayBegin;
  const size_t last = prompt.find_last_not_of(" \t\r\n");
  prompt = prompt.substr(0, last == std::string_view::npos ? 0 : last + 1);
  const std::span<const std::string_view> marks = marks_of(format);
  if (prompt.ends_with(marks[1])) return Thinking::kNo;
  if (format == ReasoningFormat::kThinkFirst || prompt.ends_with(marks[0])) return Thinking::kInside;
  return Thinking::kMayBegin;
}

}  // namespace kvasir
