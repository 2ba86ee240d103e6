// The variables that Hugging Face gives a template; `documents` is defined, as none.
#include "model/templates/chat_template.h"

#include <algorithm>
#include <iterator>

#include "model/templates/jinja/interpreter.h"
#include "model/templates/jinja/parser.h"
#include "model/tokenizers/utf8.h"

namespace kvasir {

struct ChatTemplate::Tree {
  std::string source;
  jinja::Block block;
};

namespace {

jinja::Value trusted_token(const std::string& text) {
  return jinja::Value(MarkedText::trusted(replace_invalid_utf8(text)));
}

Result<jinja::Value> to_value(const TemplateValue& value, jinja::Environment* env, int depth = 0);

Result<jinja::Value> to_list(const TemplateValue::List& list, jinja::Environment* env, int depth) {
  std::vector<jinja::Value> items;
  items.reserve(list.size());
  for (const TemplateValue& item : list) {
    KV_ASSIGN_OR_RETURN(jinja::Value made, to_value(item, env, depth + 1));
    items.push_back(std::move(made));
  }
  return env->make_list(std::move(items));
}

Result<jinja::Value> to_dict(const TemplateValue::Dict& dict, jinja::Environment* env, int depth) {
  std::vector<std::pair<std::string, jinja::Value>> items;
  items.reserve(dict.size());
  for (const auto& [key, item] : dict) {
    KV_ASSIGN_OR_RETURN(jinja::Value made, to_value(item, env, depth + 1));
    items.emplace_back(replace_invalid_utf8(key), std::move(made));
  }
  return env->make_dict(std::move(items));
}

Result<jinja::Value> to_value(const TemplateValue& value, jinja::Environment* env, int depth) {
  if (depth > jinja::kMaxValueDepth) {
    return error(ErrorCode::kInvalidArgument, "a value is nested deeper than {}", jinja::kMaxValueDepth);
  }
  if (const auto* boolean = std::get_if<bool>(&value.data)) return jinja::Value(*boolean);
  if (const auto* integer = std::get_if<int64_t>(&value.data)) return jinja::Value(*integer);
  if (const auto* real = std::get_if<double>(&value.data)) return jinja::Value(*real);
  if (const auto* text = std::get_if<std::string>(&value.data))
    return env->make_string(replace_invalid_utf8(*text));
  if (const auto* list = std::get_if<TemplateValue::List>(&value.data)) return to_list(*list, env, depth);
  if (const auto* dict = std::get_if<TemplateValue::Dict>(&value.data)) return to_dict(*dict, env, depth);
  return jinja::Value::none();
}

// An unknown role is text of the client.
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
    std::vector<std::pair<std::string, jinja::Value>> members;
    members.emplace_back("role", std::move(role));
    members.emplace_back("content", std::move(content));
    for (const auto& [name, member] : message.more) {
      KV_ASSIGN_OR_RETURN(jinja::Value made, to_value(member, env));
      members.emplace_back(replace_invalid_utf8(name), std::move(made));
    }
    KV_ASSIGN_OR_RETURN(jinja::Value item, env->make_dict(std::move(members)));
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
  tree->source = source;
  KV_ASSIGN_OR_RETURN(tree->block, jinja::parse_template(source));
  return ChatTemplate(std::move(tree));
}

const std::string& ChatTemplate::source() const {
  return tree_->source;
}

Result<MarkedText> ChatTemplate::render(const ChatTemplateInputs& inputs,
                                        const TemplateBudget& budget) const {
  jinja::Limits limits;
  limits.steps = budget.steps;
  limits.bytes = budget.bytes;
  limits.output_bytes = budget.output_bytes;
  jinja::Environment env(limits, inputs.now_seconds);
  jinja::Variables variables;
  KV_ASSIGN_OR_RETURN(jinja::Value messages, make_messages(inputs.messages, &env));
  variables.emplace_back("messages", std::move(messages));
  jinja::Value tools = jinja::Value::none();
  if (!inputs.tools.empty()) {
    KV_ASSIGN_OR_RETURN(tools, to_list(inputs.tools, &env, 0));
  }
  variables.emplace_back("tools", std::move(tools));
  variables.emplace_back("documents", jinja::Value::none());
  variables.emplace_back("add_generation_prompt", jinja::Value(inputs.add_generation_prompt));
  if (inputs.bos_token) variables.emplace_back("bos_token", trusted_token(*inputs.bos_token));
  if (inputs.eos_token) variables.emplace_back("eos_token", trusted_token(*inputs.eos_token));
  for (const auto& [name, value] : inputs.variables) {
    KV_ASSIGN_OR_RETURN(jinja::Value made, to_value(value, &env));
    variables.emplace_back(name, std::move(made));
  }
  return jinja::render(tree_->block, variables, &env);
}

}  // namespace kvasir
