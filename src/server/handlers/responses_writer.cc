// Writes a response: items of reasoning, text and calls of tools, whole or as events.
#include <ctime>
#include <optional>
#include <utility>

#include "server/handlers/json_parts.h"
#include "server/handlers/responses.h"
#include "server/http_message.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr uint64_t kLastSequence = 1'000'000'000'000;

json response_usage(const Usage& usage) {
  return {{"input_tokens", usage.prompt_tokens},
          {"input_tokens_details", {{"cached_tokens", usage.cached_tokens}, {"cache_write_tokens", 0}}},
          {"output_tokens", usage.completion_tokens},
          {"output_tokens_details", {{"reasoning_tokens", usage.reasoning_tokens}}},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

// A whole answer is made as a stream is, and its events are dropped: so both say the same.
class ResponsesWriter final : public AnswerWriter {
 public:
  ResponsesWriter(const ApiRequest& request, std::shared_ptr<const ResponseContext> context)
      : context_(std::move(context)), model_(request.model) {}

  std::string whole(const std::vector<FinishedChoice>& choices, const Usage& usage) override {
    delta_event(0, choices.front().all, choices.front().finish_reason);
    std::string body = text_of(response(status(), response_usage(usage)));
    keep(body);
    return body;
  }

  std::string first_event(size_t, const Usage&) override {
    std::string out = event("response.created", {{"response", response("in_progress", nullptr)}});
    return out += event("response.in_progress", {{"response", response("in_progress", nullptr)}});
  }

  std::string delta_event(size_t, const TextDelta& delta, const std::string& finish_reason) override {
    std::string out;
    // The rest of the open call comes before what is behind it.
    const auto open_call = open_ == Item::kCall ? std::optional(call_) : std::nullopt;
    for (const ToolCallDelta& piece : delta.tool_calls) {
      if (piece.index == open_call) out += add_call(piece);
    }
    if (!delta.reasoning.empty()) {
      if (open_ != Item::kReasoning) out += begin(Item::kReasoning, "rs_");
      out += add("response.reasoning_text.delta", delta.reasoning);
      turn_.reasoning += delta.reasoning;
    }
    if (!delta.text.empty()) {
      if (open_ != Item::kMessage) out += begin(Item::kMessage, "msg_");
      out += add("response.output_text.delta", delta.text);
      turn_.content += delta.text;
    }
    for (const ToolCallDelta& piece : delta.tool_calls) {
      if (piece.index != open_call) out += add_call(piece);
    }
    if (!finish_reason.empty()) {
      cut_ = finish_reason == "length";
      out += end(status());
    }
    return out;
  }

  std::string usage_event(const Usage& usage) override {
    json done = response(status(), response_usage(usage));
    keep(dump_json(done));
    return event(cut_ ? "response.incomplete" : "response.completed", {{"response", std::move(done)}});
  }

  std::string error_event(const ApiError& error) override {
    json failed = response("failed", nullptr);
    failed["error"] = {{"code", "server_error"}, {"message", error.message}};
    return event("response.failed", {{"response", std::move(failed)}});
  }

  // The event that needs nothing of the response. Its number is behind all that were sent by then.
  std::string last_words(const ApiError& error) const override {
    const json event = {{"type", "error"},
                        {"code", error_name(error)},
                        {"message", error.message},
                        {"param", nullptr},
                        {"sequence_number", kLastSequence}};
    return server_sent_event("error", dump_json(event));
  }

  std::string last_event() override { return {}; }

 private:
  enum class Item { kNone, kReasoning, kMessage, kCall };

  const char* status() const { return cut_ ? "incomplete" : "completed"; }

  std::string event(const char* type, json data) {
    data["type"] = type;
    data["sequence_number"] = sequence_++;
    return server_sent_event(type, text_of(std::move(data)));
  }

  // It repeats what the client has sent, so that it may be large.
  static std::string text_of(json value) {
    std::string text = dump_json(value);
    clear_json(value);
    return text;
  }

  json response(const char* status, json usage) const {
    json out = context_->echo;
    const json members = {{"id", id_},
                          {"object", "response"},
                          {"created_at", created_},
                          {"model", model_},
                          {"status", status},
                          {"error", nullptr},
                          {"incomplete_details", nullptr},
                          {"output", output_},
                          {"usage", std::move(usage)}};
    out.update(members);
    if (cut_) out["incomplete_details"] = {{"reason", "max_output_tokens"}};
    return out;
  }

  // The part that holds the text of the open item.
  json part() const {
    if (open_ == Item::kReasoning) return {{"type", "reasoning_text"}, {"text", text_}};
    return {{"type", "output_text"},
            {"text", text_},
            {"annotations", json::array()},
            {"logprobs", json::array()}};
  }

  // The open item; with its text or without.
  json item(const char* status, bool with_text) const {
    json out = {{"id", item_id_}, {"status", status}};
    if (open_ == Item::kCall) {
      const ApiToolCall& call = turn_.tool_calls.back();
      out.update(
          {{"type", "function_call"}, {"call_id", call.id}, {"name", call.name}, {"arguments", text_}});
      return out;
    }
    out["content"] = with_text ? json::array({part()}) : json::array();
    if (open_ == Item::kReasoning) {
      out.update({{"type", "reasoning"}, {"summary", json::array()}});
    } else {
      out.update({{"type", "message"}, {"role", "assistant"}});
    }
    return out;
  }

  // What the events of the open item's text have.
  json place() const {
    json out = {{"item_id", item_id_}, {"output_index", output_.size()}};
    if (open_ != Item::kCall) out["content_index"] = 0;
    return out;
  }

  std::string begin(Item what, const char* id_prefix) {
    std::string out = end("completed");
    open_ = what;
    item_id_ = id_prefix + random_hex_id();
    text_.clear();
    out += event("response.output_item.added",
                 {{"output_index", output_.size()}, {"item", item("in_progress", /*with_text=*/false)}});
    if (what == Item::kCall) return out;
    json added = place();
    added["part"] = part();
    return out + event("response.content_part.added", std::move(added));
  }

  std::string add(const char* type, const std::string& piece) {
    text_ += piece;
    json data = place();
    data["delta"] = piece;
    if (open_ == Item::kMessage) data["logprobs"] = json::array();
    return event(type, std::move(data));
  }

  std::string add_call(const ToolCallDelta& piece) {
    std::string out;
    if (open_ != Item::kCall || call_ != piece.index) {
      out = end("completed");
      call_ = piece.index;
      turn_.tool_calls.push_back({piece.id.empty() ? "call_" + random_hex_id() : piece.id, piece.name, ""});
      out += begin(Item::kCall, "fc_");
    }
    if (piece.arguments.empty()) return out;
    turn_.tool_calls.back().arguments += piece.arguments;
    return out + add("response.function_call_arguments.delta", piece.arguments);
  }

  std::string end(const char* status) {
    if (open_ == Item::kNone) return {};
    json text = place();
    std::string out;
    if (open_ == Item::kCall) {
      text.update({{"arguments", text_}, {"name", turn_.tool_calls.back().name}});
      out = event("response.function_call_arguments.done", std::move(text));
    } else {
      json done = place();
      done["part"] = part();
      text["text"] = text_;
      if (open_ == Item::kMessage) text["logprobs"] = json::array();
      out = event(open_ == Item::kMessage ? "response.output_text.done" : "response.reasoning_text.done",
                  std::move(text));
      out += event("response.content_part.done", std::move(done));
    }
    const json finished = item(status, /*with_text=*/true);
    out += event("response.output_item.done", {{"output_index", output_.size()}, {"item", finished}});
    output_.push_back(finished);
    open_ = Item::kNone;
    return out;
  }

  void keep(std::string body) {
    if (!context_->keep) return;
    StoredResponse kept{context_->owner, std::move(body), context_->messages};
    kept.messages.push_back(std::move(turn_));
    context_->store->add(id_, std::move(kept));
  }

  const std::shared_ptr<const ResponseContext> context_;
  const std::string id_ = "resp_" + secret_hex_id();  // the answer can be read by it
  const std::string model_;
  const int64_t created_ = static_cast<int64_t>(std::time(nullptr));  // seconds since 1970
  uint64_t sequence_ = 0;
  json output_ = json::array();  // the items that are done
  Item open_ = Item::kNone;
  std::string item_id_;  // of the open item
  std::string text_;     // of the open item, or its arguments
  uint32_t call_ = 0;    // ToolCallDelta::index of the open call
  bool cut_ = false;     // by the length
  ApiMessage turn_{"assistant", ""};
};

}  // namespace

std::unique_ptr<AnswerWriter> make_responses_writer(const ApiRequest& request,
                                                    std::shared_ptr<const ResponseContext> context) {
  return std::make_unique<ResponsesWriter>(request, std::move(context));
}

}  // namespace kvasir
