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

// Plain text, except that a role which the interface defines (system, developer, user, assistant, tool,
// function) is no text of the client but a choice among these; templates build control tokens of it.
struct ChatMessage {
  std::string role;
  std::string content;
};

// A further variable for the template, plain where it is text, such as a client's chat_template_kwargs;
// monostate is none.
using TemplateScalar = std::variant<std::monostate, bool, int64_t, double, std::string>;

struct ChatTemplateInputs {
  std::span<const ChatMessage> messages;
  bool add_generation_prompt = true;
  // The tokens as text, trusted; a template sees those that are missing as undefined.
  std::optional<std::string> bos_token;
  std::optional<std::string> eos_token;
  std::vector<std::pair<std::string, TemplateScalar>> variables;  // later ones win, also over the above
  // What strftime_now() formats, in seconds since 1970, UTC. Without it the template sees no such function
  // and the prompt does not depend on the day.
  std::optional<int64_t> now_seconds;
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
  // The result is UTF-8. Trusted in it is what the template spells out itself, and the tokens above; all that
  // is made of messages and variables is plain, whatever the template does with it.
  Result<MarkedText> render(const ChatTemplateInputs& inputs) const;

 private:
  struct Tree;
  explicit ChatTemplate(std::shared_ptr<const Tree> tree) : tree_(std::move(tree)) {}
  std::shared_ptr<const Tree> tree_;
};

}  // namespace kvasir
