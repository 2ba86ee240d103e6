// Reads Anthropic's messages, tools and choices of tools.
#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <utility>

#include "server/handlers/anthropic.h"
#include "server/handlers/grammar_fields.h"
#include "server/handlers/json_parts.h"
#include "server/handlers/openai.h"
#include "server/handlers/request_fields.h"
#include "server/handlers/tool_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;

// The text of a string or of a list of text blocks. False: the error is set.
bool read_text_blocks(const json& content, const std::string& name, JsonFields& errors, std::string& out) {
  if (content.is_string()) {
    out = content.get<std::string>();
    return true;
  }
  if (!content.is_array()) {
    errors.fail(bad_field(name, fmt::format("'{}' must be a string or a list of text blocks", name)));
    return false;
  }
  for (size_t i = 0; i < content.size(); ++i) {
    const std::string at = fmt::format("{}[{}]", name, i);
    const std::optional<std::string> type = text_member(content[i], "type");
    const std::optional<std::string> text = text_member(content[i], "text");
    if (type && *type != "text") {
      errors.fail(bad_field(
          at + ".type", fmt::format("'{}.type' is '{}': this server takes text only", at, clipped(*type))));
      return false;
    }
    if (!type || !text) {
      errors.fail(bad_field(at, fmt::format("'{}' must be a block with 'type' and 'text'", at)));
      return false;
    }
    add_line(out, *text);
  }
  return true;
}

// Makes messages of the roles that chat templates have. Results of tools become messages of their own, and
// neighbouring messages of the user become one, as Anthropic joins them.
class Conversation {
 public:
  Conversation(std::vector<ApiMessage>& out, JsonFields& errors) : out_(out), errors_(errors) {}

  void read(const json& message, const std::string& name) {
    const std::optional<std::string> role = text_member(message, "role");
    const bool user = role == "user";
    if (!user && role != "assistant") {
      return fail(name + ".role", "must be 'user' or 'assistant'; a system prompt goes into 'system'");
    }
    const json& content = member(message, "content");
    const std::string at = name + ".content";
    if (content.is_string()) {
      if (user) return add_user(content.get<std::string>());
      return out_.push_back({"assistant", content.get<std::string>()});
    }
    if (!content.is_array() || content.empty()) {
      return fail(at, "must be a string or a list of at least one block");
    }
    if (!user) out_.push_back({"assistant", ""});
    for (size_t i = 0; i < content.size() && !errors_.error(); ++i) {
      const std::string block_name = fmt::format("{}[{}]", at, i);
      const std::optional<std::string> type = text_member(content[i], "type");
      if (!type) return fail(block_name, "must be an object with a 'type'");
      const bool read =
          user ? user_block(content[i], *type, block_name) : assistant_block(content[i], *type, block_name);
      if (!read) {
        return fail(block_name + ".type",
                    fmt::format("is '{}': this server takes {}", clipped(*type),
                                user ? "'text' and 'tool_result' of the user"
                                     : "'text', 'thinking' and 'tool_use' of the assistant"));
      }
    }
  }

 private:
  void fail(const std::string& field, std::string_view message) {
    errors_.fail(bad_field(field, fmt::format("'{}' {}", field, message)));
  }

  void add_user(std::string text) {
    if (!out_.empty() && out_.back().role == "user") return add_line(out_.back().content, text);
    out_.push_back({"user", std::move(text)});
  }

  // The text of a block's member; the error is set if it has none.
  std::string text_of(const json& block, const char* name, const std::string& at) {
    std::optional<std::string> text = text_member(block, name);
    if (!text) fail(fmt::format("{}.{}", at, name), "must be a string");
    return std::move(text).value_or("");
  }

  // False: a block of this type is not taken.
  bool user_block(const json& block, const std::string& type, const std::string& at) {
    if (type == "text") {
      add_user(text_of(block, "text", at));
      return true;
    }
    if (type != "tool_result") return false;
    ApiMessage result{"tool", ""};
    result.tool_call_id = text_of(block, "tool_use_id", at);
    const json& content = member(block, "content");
    if (!content.is_null()) read_text_blocks(content, at + ".content", errors_, result.content);
    out_.push_back(std::move(result));
    return true;
  }

  bool assistant_block(const json& block, const std::string& type, const std::string& at) {
    ApiMessage& message = out_.back();
    if (type == "text") {
      add_line(message.content, text_of(block, "text", at));
    } else if (type == "thinking") {
      add_line(message.reasoning, text_of(block, "thinking", at));
    } else if (type == "tool_use") {
      ApiToolCall call{text_of(block, "id", at), text_of(block, "name", at), ""};
      const json& input = member(block, "input");
      if (!input.is_object()) fail(at + ".input", "must be an object");
      call.arguments = dump_json(input);
      message.tool_calls.push_back(std::move(call));
    } else {
      return type == "redacted_thinking";  // only its maker can read it
    }
    return true;
  }

  std::vector<ApiMessage>& out_;
  JsonFields& errors_;
};

}  // namespace

std::variant<ApiRequest, ApiError> parse_messages_request(std::string_view body, const ApiRequest& defaults) {
  return read_request(body, ApiKind::kMessages, defaults);
}

std::variant<ApiRequest, ApiError> parse_count_tokens_request(std::string_view body) {
  return read_request(body, ApiKind::kCountTokens, {});
}

void set_system(ApiRequest& r, const json& system, JsonFields& errors) {
  ApiMessage message{"system", ""};
  if (read_text_blocks(system, "system", errors, message.content)) r.messages.push_back(std::move(message));
}

void set_anthropic_messages(ApiRequest& r, const json& messages, JsonFields& errors) {
  if (!messages.is_array() || messages.empty()) {
    return errors.fail("messages", "'messages' must be a list of at least one message");
  }
  Conversation conversation(r.messages, errors);
  for (size_t i = 0; i < messages.size() && !errors.error(); ++i) {
    conversation.read(messages[i], fmt::format("messages[{}]", i));
  }
  name_results(r.messages);
  if (!errors.error() && r.messages.back().role == "assistant") {
    errors.fail("messages",
                "the last of 'messages' must be of the user: an answer does not continue the assistant's "
                "message");
  }
}

void set_stop_sequences(ApiRequest& r, const json& list, JsonFields& errors) {
  if (read_texts(list, kMaxStops, kMaxStopBytes, r.stop)) return;
  errors.fail("stop_sequences", fmt::format("'stop_sequences' must be a list of at most {} strings, none of "
                                            "them empty or longer than {} bytes",
                                            kMaxStops, kMaxStopBytes));
}

void set_anthropic_tools(ApiRequest& r, const json& tools, JsonFields& errors) {
  set_flat_tools(r, tools, errors, "custom", "custom", "input_schema");
  for (size_t i = 0; i < r.tools.size() && !errors.error(); ++i) {
    if (!r.tools[i].parameters.empty()) continue;
    const std::string at = fmt::format("tools[{}].input_schema", i);
    errors.fail(bad_field(at, fmt::format("'{}' is required: a JSON schema of the input", at)));
  }
}

void set_anthropic_tool_choice(ApiRequest& r, const json& choice, JsonFields& errors) {
  const std::string type = text_member(choice, "type").value_or("");
  if (type == "none") {
    r.tool_choice = ToolChoice::kNone;
  } else if (type == "auto") {
    r.tool_choice = ToolChoice::kAuto;
  } else if (type == "any") {
    r.tool_choice = ToolChoice::kRequired;
  } else if (type == "tool") {
    r.tool_choice = ToolChoice::kNamed;
    r.named_tool = text_member(choice, "name").value_or("");
    if (find_tool(r, r.named_tool) == nullptr) {
      return errors.fail("tool_choice.name", "'tool_choice.name' must be the name of one of 'tools'");
    }
  } else {
    return errors.fail("tool_choice",
                       "'tool_choice' must be an object whose 'type' is auto, any, tool or none");
  }
  if (r.tools.empty() && (type == "any" || type == "tool")) {
    return errors.fail("tool_choice", "'tool_choice' asks for a call, but there are no 'tools'");
  }
  const json& one = member(choice, "disable_parallel_tool_use");
  if (one.is_boolean()) {
    r.parallel_tool_calls = !one.get<bool>();
  } else if (!one.is_null()) {
    errors.fail("tool_choice.disable_parallel_tool_use",
                "'tool_choice.disable_parallel_tool_use' must be true or false");
  }
}

void set_thinking(ApiRequest& r, const json& thinking, JsonFields& errors) {
  const std::string type = text_member(thinking, "type").value_or("");
  if (type != "enabled" && type != "adaptive" && type != "disabled") {
    return errors.fail("thinking",
                       "'thinking' must be an object whose 'type' is enabled, adaptive or disabled");
  }
  r.template_variables.emplace_back("enable_thinking", type != "disabled");
}

void set_output_config(ApiRequest& r, const json& config, JsonFields& errors) {
  if (!config.is_object()) return errors.fail("output_config", "'output_config' must be an object");
  const json& format = member(config, "format");
  if (format.is_null()) return;
  const json& schema = member(format, "schema");
  if (text_member(format, "type") != "json_schema" || !schema.is_object()) {
    return errors.fail("output_config.format",
                       "'output_config.format' must be an object with the 'type' json_schema and an object "
                       "'schema'");
  }
  r.grammar = {OutputGrammar::Kind::kJsonSchema, dump_json(schema)};
  r.grammar_field = "output_config.format.schema";
}

}  // namespace kvasir
