// Writes messages as Anthropic's API has them: blocks of thinking, text and calls of tools.
#include <algorithm>
#include <nlohmann/json.hpp>
#include <optional>
#include <utility>

#include "base/untrusted_text.h"
#include "server/handlers/anthropic.h"
#include "server/handlers/json_parts.h"
#include "server/http_message.h"
#include "server/json_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;

const char* anthropic_error_type(int status) {
  switch (status) {
    case 401:
      return "authentication_error";
    case 403:
      return "permission_error";
    case 404:
      return "not_found_error";
    case 413:
      return "request_too_large";
    case 429:
      return "rate_limit_error";
    case 500:
      return "api_error";
    case 503:
      return "overloaded_error";
    default:
      return "invalid_request_error";
  }
}

// Cached tokens of the prompt count apart, as theirs do.
json message_usage(const Usage& usage) {
  const uint64_t cached = std::min(usage.cached_tokens, usage.prompt_tokens);
  return {{"input_tokens", usage.prompt_tokens - cached},
          {"cache_creation_input_tokens", 0},
          {"cache_read_input_tokens", cached},
          {"output_tokens", usage.completion_tokens}};
}

// Arguments that are no object, or that are nested too deep for what recurses over them, are kept under the
// key that Anthropic's documentation proposes for the ill-formed.
json input_of(const std::string& arguments) {
  if (nests_deeper(arguments, kMaxJsonDepth)) return json{{"INVALID_JSON", arguments}};
  json input = json::parse(arguments.empty() ? "{}" : arguments, nullptr, /*allow_exceptions=*/false);
  return input.is_object() ? input : json{{"INVALID_JSON", arguments}};
}

std::string call_id(const std::string& id) {
  return id.empty() ? "toolu_" + random_hex_id() : id;
}

// {stop_reason, stop_sequence}
json stop_of(const std::string& finish_reason, bool called, const std::string& stop_string) {
  if (finish_reason == "length") return {{"stop_reason", "max_tokens"}, {"stop_sequence", nullptr}};
  if (finish_reason == "tool_calls" || (called && stop_string.empty())) {
    return {{"stop_reason", "tool_use"}, {"stop_sequence", nullptr}};
  }
  if (stop_string.empty()) return {{"stop_reason", "end_turn"}, {"stop_sequence", nullptr}};
  return {{"stop_reason", "stop_sequence"}, {"stop_sequence", stop_string}};
}

std::string message_event(const char* type, json data) {
  data["type"] = type;
  return server_sent_event(type, dump_json(data));
}

class MessagesWriter final : public AnswerWriter {
 public:
  explicit MessagesWriter(const ApiRequest& request) : model_(request.model) {}

  std::string whole(const std::vector<FinishedChoice>& choices, const Usage& usage) override {
    const TextDelta& all = choices.front().all;
    json content = json::array();
    if (!all.reasoning.empty()) {
      content.push_back({{"type", "thinking"}, {"thinking", all.reasoning}, {"signature", ""}});
    }
    if (!all.text.empty()) content.push_back({{"type", "text"}, {"text", all.text}});
    for (const ApiToolCall& call : joined_calls(all.tool_calls)) {
      content.push_back({{"type", "tool_use"},
                         {"id", call_id(call.id)},
                         {"name", call.name},
                         {"input", input_of(call.arguments)}});
    }
    json answer = message(std::move(content), usage);
    answer.update(stop_of(choices.front().finish_reason, !all.tool_calls.empty(), all.stop_string));
    return dump_json(answer);
  }

  std::string first_event(size_t, const Usage& usage) override {
    return message_event("message_start", {{"message", message(json::array(), usage)}}) +
           message_event("ping", json::object());
  }

  std::string delta_event(size_t, const TextDelta& delta, const std::string& finish_reason) override {
    std::string out;
    // The rest of the open call comes before what is behind it.
    const auto open_call = open_ == Block::kCall ? std::optional(call_) : std::nullopt;
    for (const ToolCallDelta& piece : delta.tool_calls) {
      if (piece.index == open_call) out += add_call(piece);
    }
    if (!delta.reasoning.empty()) {
      if (open_ != Block::kThinking) {
        out += begin(Block::kThinking, {{"type", "thinking"}, {"thinking", ""}, {"signature", ""}});
      }
      out += add({{"type", "thinking_delta"}, {"thinking", delta.reasoning}});
    }
    if (!delta.text.empty()) {
      if (open_ != Block::kText) out += begin(Block::kText, {{"type", "text"}, {"text", ""}});
      out += add({{"type", "text_delta"}, {"text", delta.text}});
    }
    for (const ToolCallDelta& piece : delta.tool_calls) {
      if (piece.index != open_call) out += add_call(piece);
    }
    if (!finish_reason.empty()) {
      out += end();
      stop_ = stop_of(finish_reason, called_, delta.stop_string);
    }
    return out;
  }

  std::string usage_event(const Usage& usage) override {
    return message_event("message_delta", {{"delta", stop_}, {"usage", message_usage(usage)}});
  }

  std::string error_event(const ApiError& error) override {
    failed_ = true;
    return server_sent_event("error", anthropic_error_json(error));
  }

  std::string last_words(const ApiError& error) const override {
    return server_sent_event("error", anthropic_error_json(error));
  }

  std::string last_event() override {
    return failed_ ? std::string() : message_event("message_stop", json::object());
  }

 private:
  enum class Block { kNone, kThinking, kText, kCall };

  json message(json content, const Usage& usage) const {
    return {{"id", id_},
            {"type", "message"},
            {"role", "assistant"},
            {"model", model_},
            {"content", std::move(content)},
            {"stop_reason", nullptr},
            {"stop_sequence", nullptr},
            {"usage", message_usage(usage)}};
  }
  std::string begin(Block block, json content) {
    std::string out = end();
    open_ = block;
    return out +
           message_event("content_block_start", {{"index", index_}, {"content_block", std::move(content)}});
  }
  std::string add(json delta) const {
    return message_event("content_block_delta", {{"index", index_}, {"delta", std::move(delta)}});
  }
  std::string add_call(const ToolCallDelta& piece) {
    std::string out;
    if (open_ != Block::kCall || call_ != piece.index) {
      out = begin(
          Block::kCall,
          {{"type", "tool_use"}, {"id", call_id(piece.id)}, {"name", piece.name}, {"input", json::object()}});
      call_ = piece.index;
      called_ = true;
    }
    if (piece.arguments.empty()) return out;
    return out + add({{"type", "input_json_delta"}, {"partial_json", piece.arguments}});
  }
  std::string end() {
    if (std::exchange(open_, Block::kNone) == Block::kNone) return {};
    return message_event("content_block_stop", {{"index", index_++}});
  }

  const std::string id_ = "msg_" + random_hex_id();
  const std::string model_;
  Block open_ = Block::kNone;
  size_t index_ = 0;   // of the open block, or of the next one
  uint32_t call_ = 0;  // ToolCallDelta::index of the open call
  bool called_ = false;
  bool failed_ = false;
  json stop_;
};

}  // namespace

std::string anthropic_error_json(const ApiError& error) {
  return dump_json({{"type", "error"},
                    {"error", {{"type", anthropic_error_type(error.status)}, {"message", error.message}}}});
}

std::unique_ptr<AnswerWriter> make_messages_writer(const Tokenizer&, const ApiRequest& request) {
  return std::make_unique<MessagesWriter>(request);
}

}  // namespace kvasir
