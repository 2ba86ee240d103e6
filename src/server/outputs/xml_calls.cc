// Qwen3-Coder's form: <tool_call>\n<function=NAME>\n<parameter=P>\nVALUE\n</parameter>\n</function>\n
// </tool_call>. Values are bare text; what types they have is known from the schemas of the tools.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/json_fields.h"
#include "server/json_values.h"
#include "server/outputs/call_parser.h"
#include "server/outputs/json_pieces.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr std::string_view kFunction = "<function=", kParameter = "<parameter=";
constexpr std::string_view kFunctionEnd = "</function>", kParameterEnd = "</parameter>";
constexpr size_t kMostNameBytes = 256;

class XmlCalls final : public CallParser {
 public:
  explicit XmlCalls(const CallParserInputs& inputs)
      : tools_(*inputs.tools), finder_({"<tool_call>", "</tool_call>", std::string(kFunction)}) {
    for (const char* mark : {"<tool_call>", "</tool_call>"}) hidden_.push_back(inputs.hides(mark));
  }

  void push(char c, AnswerParts& parts) override {
    if (waiting_.size() > kMostWaiting) give_up(parts);
    switch (state_) {
      case State::kText:
        return text(c, parts);
      case State::kBefore:
        return before(c, parts);
      case State::kName:
        return name(c, parts);
      case State::kBody:
        return body(c, parts);
      case State::kValue:
        return value(c, parts);
    }
  }

  void finish(AnswerParts& parts) override {
    if (state_ == State::kValue) {
      // As far as it came: a string that is not closed.
      const std::string begun = dump_json(json(value_text()));
      parts.arguments(key_text() + begun.substr(0, begun.size() - 1));
    }
    if (parts.in_call()) parts.cut_call();
    parts.content(waiting_);
    if (state_ == State::kText) parts.content(finder_.finish());
    waiting_.clear();
  }

 private:
  enum class State : uint8_t {
    kText,
    kBefore,  // behind <tool_call>
    kName,    // behind <function=
    kBody,    // between parameters
    kValue,   // behind <parameter=P>
  };

  void text(char c, AnswerParts& parts) {
    std::string shown;
    const std::optional<size_t> mark = finder_.push(c, shown);
    parts.content(shown);
    if (!mark) return;
    if (*mark == 1) {
      if (!unclosed_ && !hidden_[1]) parts.content("</tool_call>");
    } else {
      state_ = *mark == 0 ? State::kBefore : State::kName;
      waiting_ = *mark == 2 ? std::string(kFunction) : hidden_[0] ? std::string() : "<tool_call>";
      matched_ = 0;
      name_.clear();
    }
    unclosed_ = false;
  }

  // What waited is content, and the text goes on.
  void give_up(AnswerParts& parts) {
    parts.content(std::exchange(waiting_, std::string()));
    state_ = State::kText;
  }

  void give_up_before(char c, AnswerParts& parts) {
    give_up(parts);
    text(c, parts);
  }

  void before(char c, AnswerParts& parts) {
    if (matched_ == 0 && is_json_space(c)) {
      waiting_ += c;
      return;
    }
    if (c != kFunction[matched_]) return give_up_before(c, parts);
    waiting_ += c;
    if (++matched_ == kFunction.size()) state_ = State::kName;
  }

  void name(char c, AnswerParts& parts) {
    if (c != '>') {
      const bool bad = is_json_space(c) || c == '<' || name_.size() >= kMostNameBytes;
      if (bad) return give_up_before(c, parts);
      waiting_ += c;
      name_ += c;
      return;
    }
    if (name_.empty()) return give_up_before(c, parts);
    waiting_.clear();
    parts.begin_call(name_);
    parts.arguments("{");
    first_ = true;
    tag_.clear();
    state_ = State::kBody;
  }

  void body(char c, AnswerParts& parts) {
    if (tag_.empty() && is_json_space(c)) return;
    tag_ += c;
    const bool is_value = tag_.starts_with(kParameter);
    if (tag_ == kFunctionEnd) {
      end_call(parts);
    } else if (is_value && c == '>') {
      key_ = tag_.substr(kParameter.size(), tag_.size() - kParameter.size() - 1);
      value_.clear();
      state_ = State::kValue;
    } else if (!is_value && !kParameter.starts_with(tag_) && !kFunctionEnd.starts_with(tag_)) {
      // The function's closing mark is missing: what is here may be the call's.
      end_call(parts);
      for (const char begun : std::exchange(tag_, std::string())) text(begun, parts);
    } else if (tag_.size() > kMostNameBytes) {
      end_call(parts);
      parts.content(std::exchange(tag_, std::string()));
    }
  }

  void end_call(AnswerParts& parts) {
    parts.arguments("}");
    parts.end_call();
    unclosed_ = true;
    state_ = State::kText;
  }

  void value(char c, AnswerParts& parts) {
    value_ += c;
    if (c != '>' || !value_.ends_with(kParameterEnd)) return;
    value_.resize(value_.size() - kParameterEnd.size());
    const std::string text = value_text();
    const bool is_json = !takes_text() && json::accept(text);
    parts.arguments(key_text() + (is_json ? text : dump_json(json(text))));
    first_ = false;
    tag_.clear();
    state_ = State::kBody;
  }

  // Without the line breaks around it, which belong to the form.
  std::string value_text() const {
    std::string_view text = value_;
    if (text.starts_with('\n')) text.remove_prefix(1);
    if (text.ends_with('\n')) text.remove_suffix(1);
    return std::string(text);
  }
  std::string key_text() const { return (first_ ? "" : ", ") + dump_json(json(key_)) + ": "; }

  // Whether the schema says that the parameter is a string.
  bool takes_text() const {
    const auto tool =
        std::find_if(tools_.begin(), tools_.end(), [this](const ApiTool& t) { return t.name == name_; });
    if (tool == tools_.end()) return false;
    size_t budget = kMaxJsonValues;
    const auto schema = template_value_of(tool->parameters, budget);
    const TemplateValue* at = schema ? &*schema : nullptr;
    for (const std::string_view step :
         {std::string_view("properties"), std::string_view(key_), std::string_view("type")}) {
      at = at == nullptr ? nullptr : member_of(*at, step);
    }
    const auto* type = at == nullptr ? nullptr : std::get_if<std::string>(&at->data);
    return type != nullptr && *type == "string";
  }

  const std::vector<ApiTool>& tools_;
  MarkFinder finder_;
  std::vector<bool> hidden_;
  State state_ = State::kText;
  std::string waiting_;
  std::string name_, tag_, key_, value_;
  size_t matched_ = 0;  // bytes of <function=
  bool first_ = true;   // no parameter yet
  bool unclosed_ = false;
};

}  // namespace

std::unique_ptr<CallParser> make_xml_calls(const CallParserInputs& inputs) {
  return std::make_unique<XmlCalls>(inputs);
}

}  // namespace kvasir
