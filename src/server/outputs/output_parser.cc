// The reasoning first, then the parser of the model's calls.
#include "server/outputs/output_parser.h"

#include <algorithm>
#include <utility>

#include "server/outputs/json_pieces.h"

namespace kvasir {
namespace {

// Before the mark of the reasoning; with more the text is the answer.
constexpr size_t kMostLeading = 1024;

bool is_harmony(const OutputPlan& plan) {
  return plan.reasoning == ReasoningFormat::kOpenAi || plan.tools == ToolFormat::kOpenAi;
}

// The mark that begins the reasoning, or that ends it; empty: there is none.
std::string mark_of(const OutputPlan& plan, size_t which) {
  if (is_harmony(plan) || plan.reasoning == ReasoningFormat::kNone) return {};
  return std::string(marks_of(plan.reasoning)[which]);
}

std::vector<std::string> unless_empty(std::string mark) {
  if (mark.empty()) return {};
  return {std::move(mark)};
}

std::unique_ptr<CallParser> make_parser(const OutputParserOptions& options,
                                        const std::vector<ApiTool>& tools) {
  const CallParserInputs inputs{options.plan.tools, &tools, options.hidden};
  if (is_harmony(options.plan)) return make_harmony(inputs);
  if (options.plan.tools == ToolFormat::kNone) return nullptr;
  if (options.plan.tools == ToolFormat::kQwen3Xml) return make_xml_calls(inputs);
  return make_json_calls(inputs);
}

AnswerStyle style_of(const OutputParserOptions& options) {
  const ToolFormat format = options.plan.tools;
  return {.id_seed = options.id_seed,
          .short_ids = format == ToolFormat::kMistral || format == ToolFormat::kMistralArgs,
          .with_reasoning = options.include_reasoning,
          .trims_around_calls = format != ToolFormat::kNone};
}

// Marks of the reasoning that are control tokens.
std::vector<std::string> stray_marks(const OutputParserOptions& options) {
  std::vector<std::string> out;
  for (const size_t which : {size_t{0}, size_t{1}}) {
    std::string mark = mark_of(options.plan, which);
    const auto& hidden = options.hidden;
    if (std::find(hidden.begin(), hidden.end(), mark) != hidden.end()) out.push_back(std::move(mark));
  }
  return out;
}

// What has no text in an answer: these marks, and those around the answer.
std::vector<std::string> dropped_marks(const OutputParserOptions& options) {
  std::vector<std::string> out = stray_marks(options);
  if (options.plan.reasoning == ReasoningFormat::kGranite) {
    out.insert(out.end(), {"<response>", "</response>"});
  }
  return out;
}

}  // namespace

OutputParser::OutputParser(const OutputParserOptions& options, const std::vector<ApiTool>& tools)
    : parallel_(options.parallel_calls),
      open_(mark_of(options.plan, 0)),
      thinking_first_(options.plan.thinking == Thinking::kInside),
      stage_(open_.empty() ? Stage::kAnswer : Stage::kBegin),
      close_(unless_empty(mark_of(options.plan, 1))),
      stray_(dropped_marks(options)),
      strays_(!stray_marks(options).empty()),
      answer_is_marked_(options.plan.reasoning == ReasoningFormat::kGranite),
      parts_(style_of(options)),
      calls_(make_parser(options, tools)) {}

void OutputParser::push(std::string_view text, TextDelta& delta) {
  parts_.into(&delta);
  for (const char c : text) {
    if (complete()) break;
    push(c);
  }
}

void OutputParser::push(char c) {
  switch (stage_) {
    case Stage::kBegin:
      return begin(c);
    case Stage::kThinking:
      return think(c);
    case Stage::kBehind:
      if (is_json_space(c)) return;
      stage_ = Stage::kAnswer;
      return answer(c);
    case Stage::kAnswer:
      return answer(c);
  }
}

// A model may repeat the mark that its prompt ends with.
void OutputParser::begin(char c) {
  if (is_json_space(c) && spaces_ == waiting_.size()) ++spaces_;
  waiting_ += c;
  const std::string_view mark = std::string_view(waiting_).substr(spaces_);
  if (mark == open_) {
    waiting_.clear();
    stage_ = Stage::kThinking;
    return;
  }
  if (open_.starts_with(mark) && spaces_ <= kMostLeading) return;
  stage_ = thinking_first_ ? Stage::kThinking : Stage::kAnswer;
  for (const char waited : std::exchange(waiting_, std::string())) push(waited);
}

void OutputParser::think(char c) {
  std::string text;
  const bool closed = close_.push(c, text).has_value();
  parts_.reasoning(text);
  if (!closed) return;
  thought_ = true;
  stage_ = Stage::kBehind;
}

void OutputParser::answer(char c) {
  if (!strays_ && !(answer_is_marked_ && thought_)) return answer_text({&c, 1});
  std::string text;
  stray_.push(c, text);
  answer_text(text);
}

void OutputParser::answer_text(std::string_view text) {
  if (!calls_) return parts_.content(text);
  for (const char c : text) calls_->push(c, parts_);
}

void OutputParser::finish(TextDelta& delta) {
  parts_.into(&delta);
  if (!complete()) {
    const std::string waited = std::exchange(waiting_, std::string());
    if (stage_ == Stage::kBegin) stage_ = thinking_first_ ? Stage::kThinking : Stage::kAnswer;
    for (const char c : waited) push(c);
    if (stage_ == Stage::kThinking) parts_.reasoning(close_.finish());
    answer_text(stray_.finish());
    const bool inside = parts_.in_call();
    if (calls_) calls_->finish(parts_);
    cut_ = inside && parts_.was_cut();
  }
  parts_.finish();
}

}  // namespace kvasir
