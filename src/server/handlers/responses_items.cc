// Reads the items of an input: messages, calls of tools and their results, reasoning.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/handlers/json_parts.h"
#include "server/handlers/responses.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Makes messages of the roles that chat templates have. The reasoning, the text and the calls of one turn of
// the assistant are items of their own, and become one message.
class Items {
 public:
  Items(std::vector<ApiMessage>& out, JsonFields& errors) : out_(out), errors_(errors) {}

  void read(const json& item, const std::string& at) {
    if (!item.is_object()) return fail(at, "must be an object");
    const std::string type = text_member(item, "type").value_or("message");
    if (type == "message") return message(item, at);
    if (type == "function_call") return call(item, at);
    if (type == "function_call_output") return result(item, at);
    if (type == "reasoning") return reasoning(item, at);
    fail(at + ".type", fmt::format("is '{}': this server takes message, function_call, function_call_output "
                                   "and reasoning",
                                   clipped(type)));
  }

 private:
  void fail(const std::string& field, std::string_view what) {
    errors_.fail(bad_field(field, fmt::format("'{}' {}", field, what)));
  }

  // A string, or parts of the types that begin their names so; others are refused.
  std::string text_of(const json& content, const std::string& at) {
    if (content.is_string()) return content.get<std::string>();
    std::string text;
    if (!content.is_array()) {
      fail(at, "must be a string or a list of text parts");
      return text;
    }
    for (size_t i = 0; i < content.size(); ++i) {
      const std::string name = fmt::format("{}[{}]", at, i);
      const std::string type = text_member(content[i], "type").value_or("");
      const bool known = type == "input_text" || type == "output_text" || type == "text" ||
                         type == "reasoning_text" || type == "summary_text";
      if (!known && type != "refusal") {
        fail(name + ".type", fmt::format("is '{}': this server takes text only", clipped(type)));
        return text;
      }
      const std::optional<std::string> piece = text_member(content[i], known ? "text" : "refusal");
      if (!piece) fail(name + (known ? ".text" : ".refusal"), "must be a string");
      add_line(text, piece.value_or(""));
    }
    return text;
  }

  std::string string_of(const json& item, const char* name, const std::string& at) {
    std::optional<std::string> text = text_member(item, name);
    if (!text) fail(fmt::format("{}.{}", at, name), "must be a string");
    return std::move(text).value_or("");
  }

  void message(const json& item, const std::string& at) {
    std::string role = text_member(item, "role").value_or("");
    if (role == "developer") role = "system";  // no chat template has it
    std::string text = text_of(member(item, "content"), at + ".content");
    if (role == "assistant") {
      // Reasoning that came before belongs to it.
      if (!in_turn() || !out_.back().content.empty() || !out_.back().tool_calls.empty()) {
        out_.push_back({"assistant", ""});
      }
      out_.back().content = std::move(text);
    } else if (role == "user" || role == "system") {
      out_.push_back({std::move(role), std::move(text)});
    } else {
      fail(at + ".role", "must be user, assistant, system or developer");
    }
  }

  void call(const json& item, const std::string& at) {
    if (!in_turn()) out_.push_back({"assistant", ""});
    out_.back().tool_calls.push_back(
        {string_of(item, "call_id", at), string_of(item, "name", at), string_of(item, "arguments", at)});
  }

  void result(const json& item, const std::string& at) {
    ApiMessage message{"tool", text_of(member(item, "output"), at + ".output")};
    message.tool_call_id = string_of(item, "call_id", at);
    out_.push_back(std::move(message));
  }

  void reasoning(const json& item, const std::string& at) {
    const json& content = member(item, "content");
    const bool whole = content.is_array() && !content.empty();
    const json& summary = member(item, "summary");
    std::string text;
    if (whole) {
      text = text_of(content, at + ".content");
    } else if (!summary.is_null()) {
      text = text_of(summary, at + ".summary");
    }
    out_.push_back({"assistant", ""});
    out_.back().reasoning = std::move(text);
  }

  bool in_turn() const { return !out_.empty() && out_.back().role == "assistant"; }

  std::vector<ApiMessage>& out_;
  JsonFields& errors_;
};

}  // namespace

void set_input(ApiRequest& r, const json& input, JsonFields& errors) {
  if (input.is_string()) return r.messages.push_back({"user", input.get<std::string>()});
  if (!input.is_array() || input.empty()) {
    return errors.fail("input", "'input' must be a string or a list of at least one item");
  }
  Items items(r.messages, errors);
  for (size_t i = 0; i < input.size() && !errors.error(); ++i)
    items.read(input[i], fmt::format("input[{}]", i));
}

}  // namespace kvasir
