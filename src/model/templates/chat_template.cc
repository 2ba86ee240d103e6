// The variables that Hugging Face gives a template; tools and documents are there, and none.
#include "model/templates/chat_template.h"

#include <algorithm>
#include <iterator>

#include "model/templates/jinja/interpreter.h"
#include "model/templates/jinja/parser.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {

struct ChatTemplate::Tree {
  jinja::Block block;
};

namespace {

jinja::Value trusted_token(const std::string& text) {
  return jinja::Value(MarkedText::trusted(replace_invalid_utf8(text)));
}

jinja::Value to_value(const TemplateScalar& scalar) {
  if (const auto* boolean = std::get_if<bool>(&scalar)) return jinja::Value(*boolean);
  if (const auto* integer = std::get_if<int64_t>(&scalar)) return jinja::Value(*integer);
  if (const auto* real = std::get_if<double>(&scalar)) return jinja::Value(*real);
  if (const auto* text = std::get_if<std::string>(&scalar)) return jinja::Value(replace_invalid_utf8(*text));
  return jinja::Value::none();
}

// An unknown role is whatever a client wrote.
MarkedText marked_role(const std::string& role) {
  constexpr std::string_view kRoles[] = {"system", "developer", "user", "assistant", "tool", "function"};
  const bool known = std::find(std::begin(kRoles), std::end(kRoles), role) != std::end(kRoles);
  return known ? MarkedText::trusted(role) : MarkedText(replace_invalid_utf8(role));
}

Result<jinja::Value> make_messages(std::span<const ChatMessage> messages, jinja::Environment* env) {
  std::vector<jinja::Value> items;
  items.reserve(messages.size());
  for (const ChatMessage& message : messages) {
    KV_ASSIGN_OR_RETURN(jinja::Value role, env->make_string(marked_role(message.role)));
    KV_ASSIGN_OR_RETURN(jinja::Value content, env->make_string(replace_invalid_utf8(message.content)));
    KV_ASSIGN_OR_RETURN(jinja::Value item,
                        env->make_dict({{"role", std::move(role)}, {"content", std::move(content)}}));
    items.push_back(std::move(item));
  }
  return env->make_list(std::move(items));
}

}  // namespace

Result<ChatTemplate> ChatTemplate::parse(std::string_view source) {
  if (!is_valid_utf8(source)) {
    return error(ErrorCode::kInvalidArgument, "the chat template is not UTF-8; give it as UTF-8 text");
  }
  auto tree = std::make_shared<Tree>();
  KV_ASSIGN_OR_RETURN(tree->block, jinja::parse_template(source));
  return ChatTemplate(std::move(tree));
}

Result<MarkedText> ChatTemplate::render(const ChatTemplateInputs& inputs) const {
  jinja::Environment env(jinja::Limits{}, inputs.now_seconds);
  jinja::Variables variables;
  KV_ASSIGN_OR_RETURN(jinja::Value messages, make_messages(inputs.messages, &env));
  variables.emplace_back("messages", std::move(messages));
  variables.emplace_back("tools", jinja::Value::none());
  variables.emplace_back("documents", jinja::Value::none());
  variables.emplace_back("add_generation_prompt", jinja::Value(inputs.add_generation_prompt));
  if (inputs.bos_token) variables.emplace_back("bos_token", trusted_token(*inputs.bos_token));
  if (inputs.eos_token) variables.emplace_back("eos_token", trusted_token(*inputs.eos_token));
  for (const auto& [name, scalar] : inputs.variables) variables.emplace_back(name, to_value(scalar));
  return jinja::render(tree_->block, variables, &env);
}

}  // namespace kvasir
