// A model's chat template: messages to the text of a prompt, as Hugging Face renders it.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "base/status.h"
#include "model/tokenizers/marked_text.h"

namespace kvasir {

// A variable of a template, as in JSON; its text is plain. monostate is none.
struct TemplateValue {
  using List = std::vector<TemplateValue>;
  using Dict = std::vector<std::pair<std::string, TemplateValue>>;  // in the order in which tojson writes it

  TemplateValue() = default;
  TemplateValue(bool boolean) : data(boolean) {}
  TemplateValue(int64_t integer) : data(integer) {}
  TemplateValue(double real) : data(real) {}
  TemplateValue(std::string text) : data(std::move(text)) {}
  TemplateValue(const char* text) : data(std::string(text)) {}
  TemplateValue(List list) : data(std::move(list)) {}
  TemplateValue(Dict dict) : data(std::move(dict)) {}

  std::variant<std::monostate, bool, int64_t, double, std::string, List, Dict> data;
};

// Plain text, except for the roles that the interface defines (system, developer, user, assistant, tool,
// function): these are a choice of the client, not its text, and templates build control tokens from them.
struct ChatMessage {
  std::string role;
  std::string content;
  // Further members, such as tool_calls or reasoning_content; one that is named `content` goes before the
  // text.
  TemplateValue::Dict more = {};
};

struct ChatTemplateInputs {
  std::span<const ChatMessage> messages;
  bool add_generation_prompt = true;
  // The tokens as trusted text; a missing one is undefined for the template.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  TemplateValue::List tools;  // a list of their schemas; empty: undefined for the template
  TemplateValue::Dict
      variables;  // such as a client's chat_template_kwargs; later ones win, also over the above
  // The time that strftime_now() formats, in seconds since 1970, UTC. Without it the template has no such
  // function, and the prompt does not depend on the day.
  std::optional<int64_t> now_seconds;
};

// What one rendering may use.
struct TemplateBudget {
  uint64_t steps = 10'000'000;  // about 50 ns each: half a second
  uint64_t bytes =
      uint64_t{256} << 20;  // of all strings and lists that are made, whether or not they live on
  size_t output_bytes = size_t{64} << 20;  // of the text
};

// Immutable after parse(), hence thread-safe. Rendering is bounded in steps, memory, output and depth, so a
// hostile template or conversation costs about half a second at most.
class ChatTemplate {
 public:
  // kInvalidArgument: a syntax error. kUnsupported: a construct of Jinja that is not known. Both name the
  // line.
  static Result<ChatTemplate> parse(std::string_view source);

  // kInvalidArgument: the template refused the messages (raise_exception, whose message this is) or could not
  // handle them. kExhausted: a bound was hit. Ill-formed UTF-8 in the inputs counts as U+FFFD.
  // The result is UTF-8. The template's own text and the tokens above are trusted in it. All text made from
  // messages and variables is plain, whatever the template does with it.
  Result<MarkedText> render(const ChatTemplateInputs& inputs, const TemplateBudget& budget = {}) const;

  // What parse() was given; valid as long as this.
  const std::string& source() const;

 private:
  struct Tree;
  explicit ChatTemplate(std::shared_ptr<const Tree> tree) : tree_(std::move(tree)) {}
  std::shared_ptr<const Tree> tree_;
};

}  // namespace kvasir
