// Calls that are JSON objects, alone or in lists, behind a mark of their format; and Mistral's newer form, in
// which the name stands before the object.
#include <algorithm>
#include <utility>

#include "server/outputs/call_parser.h"
#include "server/outputs/json_pieces.h"

namespace kvasir {
namespace {

struct JsonCallForm {
  std::vector<std::string> opens;
  std::vector<std::string> closes = {};
  std::string_view separators = {};  // between calls outside of lists
  bool bare = false;                 // an object at the beginning of the text may be a call
  bool names_first = false;          // NAME[ARGS]{...} is one
};

JsonCallForm form_of(ToolFormat format) {
  switch (format) {
    case ToolFormat::kLlama3Json:
      return {.opens = {"<|python_tag|>"}, .separators = ";,", .bare = true};
    case ToolFormat::kMistral:
    case ToolFormat::kMistralArgs:
      return {.opens = {"[TOOL_CALLS]"}, .names_first = true};
    case ToolFormat::kGranite:
      return {.opens = {"<|tool_call|>", "<tool_call>"}};
    default:
      return {.opens = {"<tool_call>"}, .closes = {"</tool_call>"}};
  }
}

std::vector<std::string> both(const std::vector<std::string>& a, const std::vector<std::string>& b) {
  std::vector<std::string> out = a;
  out.insert(out.end(), b.begin(), b.end());
  return out;
}

bool is_name_char(char c) {
  return c != '[' && c != '{' && c != '"' && c != '<' && !is_json_space(c);
}

class JsonCalls final : public CallParser {
 public:
  explicit JsonCalls(const CallParserInputs& inputs)
      : form_(form_of(inputs.format)),
        marks_(both(form_.opens, form_.closes)),
        finder_(marks_),
        object_(nullptr),
        bare_(form_.bare) {
    for (const std::string& mark : marks_) hidden_.push_back(inputs.hides(mark));
    hides_tags_ = inputs.hides("[ARGS]");
    for (const ApiTool& tool : *inputs.tools) names_.push_back(tool.name);
  }

  void push(char c, AnswerParts& parts) override {
    if (waiting_.size() > kMostWaiting) give_up(parts);
    switch (state_) {
      case State::kText:
        return text(c, parts);
      case State::kBefore:
        return before(c, parts);
      case State::kObject:
        return object(c, parts);
      case State::kAfter:
        return after(c, parts);
      case State::kName:
        return name(c, parts);
      case State::kTag:
        return tag(c, parts);
      case State::kArguments:
        return arguments(c, parts);
    }
  }

  void finish(AnswerParts& parts) override {
    if (parts.in_call()) parts.cut_call();
    parts.content(waiting_);
    if (state_ == State::kText) parts.content(finder_.finish());
    waiting_.clear();
  }

 private:
  enum class State : uint8_t {
    kText,
    kBefore,     // behind a mark, or between calls: what begins a call comes
    kObject,     // {"name": ..., "arguments": ...}
    kAfter,      // behind a call
    kName,       // of Mistral's newer form
    kTag,        // [ARGS] or [CALL_ID] behind it
    kArguments,  // the object behind that
  };

  void text(char c, AnswerParts& parts) {
    if (bare_ && c == '{') {
      bare_ = false;
      guess_ = true;
      return begin_object(c, parts);
    }
    bare_ = bare_ && is_json_space(c);
    std::string shown;
    const std::optional<size_t> mark = finder_.push(c, shown);
    parts.content(shown);
    if (!mark) return;
    bare_ = false;
    const bool opens = *mark < form_.opens.size();
    if (opens) {
      waiting_ = hidden_[*mark] ? std::string() : marks_[*mark];
      state_ = State::kBefore;
      list_ = guess_ = false;
    } else if (!unclosed_ && !hidden_[*mark]) {
      parts.content(marks_[*mark]);
    }
    unclosed_ = false;
  }

  // What waited is content, and the text goes on.
  void give_up(AnswerParts& parts) {
    parts.content(std::exchange(waiting_, std::string()));
    if (parts.in_call()) parts.cut_call();
    list_ = guess_ = false;
    state_ = State::kText;
  }

  // The same, and `c` is the first byte of that text.
  void give_up_before(char c, AnswerParts& parts) {
    give_up(parts);
    text(c, parts);
  }

  void before(char c, AnswerParts& parts) {
    if (c == '{') return begin_object(c, parts);
    const bool first = c == '[' && !list_;
    const bool named = form_.names_first && !list_ && !first && !guess_ && is_name_char(c);
    if (!first && !named && !is_json_space(c)) return give_up_before(c, parts);
    waiting_ += c;
    if (first) list_ = true;
    if (!named) return;
    name_ = c;
    state_ = State::kName;
  }

  void begin_object(char c, AnswerParts& parts) {
    object_ = CallObject(guess_ ? &names_ : nullptr);
    state_ = State::kObject;
    object(c, parts);
  }

  void object(char c, AnswerParts& parts) {
    const PieceStep step = object_.push(c, parts);
    if (step == PieceStep::kBad) return give_up_before(c, parts);
    if (object_.begun()) {
      waiting_.clear();
    } else {
      waiting_ += c;
    }
    if (step == PieceStep::kEnd) end_call();
  }

  void end_call() {
    waiting_.clear();
    state_ = State::kAfter;
    unclosed_ = true;
  }

  void after(char c, AnswerParts& parts) {
    if (list_ && is_json_space(c)) return;
    const bool goes_on = list_ ? c == ',' : form_.separators.find(c) != std::string_view::npos;
    if (goes_on) {
      waiting_ = c;
      state_ = State::kBefore;
      return;
    }
    if (list_ && c == ']') {
      list_ = false;
      return;
    }
    if (!is_json_space(c)) list_ = false;
    // Spaces behind a call are content only if other content follows.
    if (is_json_space(c)) return parts.content({&c, 1});
    state_ = State::kText;
    text(c, parts);
  }

  void name(char c, AnswerParts& parts) {
    if (c == '{') return begin_arguments(c, parts);
    if (c == '[') {
      tag_.clear();
      state_ = State::kTag;
      return tag(c, parts);
    }
    constexpr size_t kMostBytes = 256;
    if (!is_name_char(c) || name_.size() >= kMostBytes) return give_up_before(c, parts);
    waiting_ += c;
    name_ += c;
  }

  void tag(char c, AnswerParts& parts) {
    const bool arguments_come = tag_ == "[ARGS]";
    if (arguments_come && c == '{') return begin_arguments(c, parts);
    if (arguments_come && !is_json_space(c)) return give_up_before(c, parts);
    waiting_ += c;
    if (arguments_come) return;
    const bool in_id = tag_ == "[CALL_ID]";  // up to the next mark
    if (in_id && c != '[') return;
    if (in_id) tag_.clear();
    tag_ += c;
    const auto begins = [this](std::string_view mark) { return mark.starts_with(tag_); };
    if (!begins("[ARGS]") && !begins("[CALL_ID]")) return give_up(parts);
    if (tag_.back() == ']' && hides_tags_) waiting_.resize(waiting_.size() - tag_.size());
  }

  void begin_arguments(char c, AnswerParts& parts) {
    waiting_.clear();
    parts.begin_call(name_);
    parts.arguments({&c, 1});
    nest_ = JsonNest();
    state_ = State::kArguments;
  }

  void arguments(char c, AnswerParts& parts) {
    parts.arguments({&c, 1});
    if (!nest_.push(c)) return;
    parts.end_call();
    end_call();
  }

  const JsonCallForm form_;
  const std::vector<std::string> marks_;  // those that open, then those that close
  MarkFinder finder_;
  CallObject object_;
  std::vector<bool> hidden_;  // by mark
  std::vector<std::string> names_;
  State state_ = State::kText;
  JsonNest nest_;
  std::string waiting_;  // may be a call, or content
  std::string name_, tag_;
  bool hides_tags_ = false;
  bool bare_;              // the text so far is spaces
  bool list_ = false;      // inside of a list of calls
  bool guess_ = false;     // there is no mark, so a call must name a tool
  bool unclosed_ = false;  // a call whose closing mark may come
};

}  // namespace

MarkFinder::MarkFinder(const std::vector<std::string>& marks)
    : fresh_(std::move(StopMatcher::create(marks)).value()), matcher_(fresh_) {}

std::optional<size_t> MarkFinder::push(char c, std::string& out) {
  out += matcher_.push({&c, 1});
  const std::optional<size_t> found = matcher_.matched();
  if (found) matcher_ = fresh_;
  return found;
}

std::string MarkFinder::finish() {
  return matcher_.finish();
}

bool CallParserInputs::hides(std::string_view mark) const {
  return std::find(hidden.begin(), hidden.end(), mark) != hidden.end();
}

std::unique_ptr<CallParser> make_json_calls(const CallParserInputs& inputs) {
  return std::make_unique<JsonCalls>(inputs);
}

}  // namespace kvasir
