// The messages of a chat.
#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <nlohmann/json.hpp>
#include <utility>

#include "server/handlers/openai.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr size_t kMostCalls = 128;  // of a message
constexpr size_t kMostNameBytes = 256;

// One message, which is messages[index]. The first error ends the reading.
class MessageReader {
 public:
  MessageReader(const json& message, size_t index)
      : message_(message), name_(fmt::format("messages[{}]", index)) {}

  std::variant<ApiMessage, ApiError> read() {
    if (!message_.is_object()) return bad_field(name_, fmt::format("'{}' must be an object", name_));
    read_role();
    for (const char* field : {"function_call", "audio"}) {
      if (const json* value = find(field)) {
        const bool call = std::string_view(field) == "function_call";
        if (!value->empty()) fail(field, call ? "is not supported; send 'tool_calls'" : "is not supported");
      }
    }
    out_.name = short_text("name");
    out_.tool_call_id = short_text("tool_call_id");
    if (out_.role == "tool" && out_.tool_call_id.empty()) fail("tool_call_id", "must be a string");
    if (out_.role == "assistant") {
      read_calls();
      read_reasoning();
    }
    read_content();
    if (error_) return *std::move(error_);
    return std::move(out_);
  }

 private:
  // Null: not given.
  const json* find(const char* field) const {
    const auto it = message_.find(field);
    return it == message_.end() || it->is_null() ? nullptr : &*it;
  }
  void fail(const std::string& field, const std::string& what) {
    const std::string whole = name_ + "." + field;
    if (!error_) error_ = bad_field(whole, fmt::format("'{}' {}", whole, what));
  }

  void read_role() {
    const json* role = find("role");
    if (role == nullptr || !role->is_string()) return fail("role", "must be a string");
    out_.role = role->get<std::string>();
    // OpenAI's newer name of the system role. No chat template has it.
    if (out_.role == "developer") out_.role = "system";
    constexpr std::string_view kRoles[] = {"system", "user", "assistant", "tool"};
    if (std::find(std::begin(kRoles), std::end(kRoles), out_.role) != std::end(kRoles)) return;
    fail("role", fmt::format("is '{}': it must be system, developer, user, assistant or tool",
                             out_.role.substr(0, 40)));
  }

  std::string short_text(const char* field) {
    const json* value = find(field);
    if (value == nullptr) return {};
    if (value->is_string() && value->get_ref<const std::string&>().size() <= kMostNameBytes) {
      return value->get<std::string>();
    }
    fail(field, fmt::format("must be a string of at most {} bytes", kMostNameBytes));
    return {};
  }

  void read_reasoning() {
    // The first is the older name of the second.
    for (const char* field : {"reasoning_content", "reasoning"}) {
      const json* value = find(field);
      if (value == nullptr) continue;
      if (!value->is_string()) return fail(field, "must be a string");
      out_.reasoning = value->get<std::string>();
    }
  }

  void read_calls() {
    const json* calls = find("tool_calls");
    if (calls == nullptr) return;
    if (!calls->is_array() || calls->size() > kMostCalls) {
      return fail("tool_calls", fmt::format("must be a list of at most {} calls", kMostCalls));
    }
    for (size_t i = 0; i < calls->size() && !error_; ++i) {
      read_call((*calls)[i], fmt::format("tool_calls[{}]", i));
    }
  }

  void read_call(const json& call, const std::string& where) {
    if (!call.is_object()) return fail(where, "must be an object");
    if (call.value("type", json("function")) != "function")
      return fail(where + ".type", "must be 'function'");
    const json id = call.value("id", json()), function = call.value("function", json());
    if (!id.is_string()) return fail(where + ".id", "must be a string");
    if (!function.is_object()) return fail(where + ".function", "must be an object");
    const json name = function.value("name", json()), arguments = function.value("arguments", json());
    if (!name.is_string()) return fail(where + ".function.name", "must be a string");
    if (!arguments.is_string() && !arguments.is_object() && !arguments.is_null()) {
      return fail(where + ".function.arguments", "must be a string with a JSON object");
    }
    out_.tool_calls.push_back({id.get<std::string>(), name.get<std::string>(),
                               arguments.is_string()   ? arguments.get<std::string>()
                               : arguments.is_object() ? dump_json(arguments)
                                                       : std::string()});
  }

  // A string, or parts that are all text, one per line.
  void read_content() {
    const json* content = find("content");
    if (content != nullptr && content->is_string()) {
      out_.content = content->get<std::string>();
    } else if (content != nullptr && content->is_array()) {
      for (size_t p = 0; p < content->size() && !error_; ++p) {
        read_part((*content)[p], fmt::format("content[{}]", p), p > 0);
      }
    } else if (content != nullptr || (out_.tool_calls.empty() && out_.reasoning.empty())) {
      fail("content", "must be a string or a list of text parts");
    }
  }

  void read_part(const json& part, const std::string& where, bool behind) {
    if (behind) out_.content += '\n';
    if (part.is_string()) {
      out_.content += part.get<std::string>();
      return;
    }
    const json type = part.is_object() ? part.value("type", json()) : json();
    if (!type.is_string()) return fail(where, "must be an object with a 'type'");
    if (type != "text") {
      return fail(where + ".type", fmt::format("is '{}': only parts of type 'text' are supported",
                                               type.get<std::string>().substr(0, 40)));
    }
    const json value = part.value("text", json());
    if (!value.is_string()) return fail(where + ".text", "must be a string");
    out_.content += value.get<std::string>();
  }

  const json& message_;
  const std::string name_;
  ApiMessage out_;
  std::optional<ApiError> error_;
};

}  // namespace

void set_messages(ApiRequest& request, const json& messages, JsonFields& errors) {
  if (!messages.is_array() || messages.empty()) {
    return errors.fail("messages", "'messages' must be a list of at least one message");
  }
  for (size_t i = 0; i < messages.size(); ++i) {
    auto message = MessageReader(messages[i], i).read();
    if (auto* e = std::get_if<ApiError>(&message)) return errors.fail(std::move(*e));
    request.messages.push_back(std::get<ApiMessage>(std::move(message)));
  }
}

}  // namespace kvasir
