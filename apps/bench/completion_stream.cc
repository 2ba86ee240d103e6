#include "apps/bench/completion_stream.h"

#include <algorithm>
#include <cctype>
#include <nlohmann/json.hpp>
#include <utility>

namespace kvasir {
namespace {

using Json = nlohmann::json;

constexpr size_t kMaxEventBytes = 4 << 20;
constexpr size_t kMaxOtherBodyBytes = 64 << 10;
constexpr size_t kMaxTextBytes = 16 << 20;
constexpr size_t kMaxMessageBytes = 300;

// The member when `object` has it and it is not null.
const Json* member(const Json& object, const char* key) {
  if (!object.is_object()) return nullptr;
  const auto found = object.find(key);
  return found == object.end() || found->is_null() ? nullptr : &*found;
}

std::string_view string_member(const Json* object, const char* key) {
  const Json* value = object == nullptr ? nullptr : member(*object, key);
  return value != nullptr && value->is_string() ? std::string_view(value->get_ref<const std::string&>())
                                                : std::string_view();
}

bool count_member(const Json& object, const char* key, int64_t* out) {
  const Json* value = member(object, key);
  if (value == nullptr || !value->is_number_integer() || value->get<int64_t>() < 0) return false;
  *out = value->get<int64_t>();
  return true;
}

std::string one_line(std::string_view text) {
  std::string line(text.substr(0, kMaxMessageBytes));
  for (char& c : line) {
    if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) c = ' ';
  }
  while (!line.empty() && line.back() == ' ') line.pop_back();
  return line;
}

bool is_event_stream(std::string_view content_type) {
  constexpr std::string_view kType = "text/event-stream";
  return content_type.size() >= kType.size() &&
         std::equal(kType.begin(), kType.end(), content_type.begin(),
                    [](char a, char b) { return a == std::tolower(static_cast<unsigned char>(b)); });
}

}  // namespace

bool is_json_object(std::string_view text) {
  return Json::parse(text, nullptr, false).is_object();
}

std::string completion_body(const CompletionRequest& request, const Prompt& prompt) {
  Json body;
  body["model"] = request.model;
  if (request.chat) {
    body["messages"] = Json::array({{{"role", "user"}, {"content", prompt.text}}});
  } else {
    body["prompt"] = prompt.text;
  }
  if (!request.force_output_length) {
    body["max_tokens"] = prompt.max_tokens;
  } else {
    body["forced_output_tokens"] = prompt.max_tokens;
    if (request.max_tokens > 0) body["max_tokens"] = request.max_tokens;
  }
  if (request.tell_output_length) body["output_tokens_hint"] = prompt.max_tokens;
  if (prompt.own.empty()) {
    for (const auto& [key, millis] : request.slo_ms) body["slo"][key + "_ms"] = millis;
  } else {
    const Slo slo = slo_of(prompt.own);
    for (const SloKey& key : kSloKeys) {
      if (slo.*key.millis > 0) body["slo"][std::string(key.name) + "_ms"] = slo.*key.millis;
    }
  }
  if (prompt.priority != 0) body["priority"] = prompt.priority;
  body["temperature"] = request.temperature;
  body["stream"] = true;
  body["stream_options"] = {{"include_usage", true}};
  if (request.ignore_eos) body["ignore_eos"] = true;
  if (!request.extra_body.empty()) body.update(Json::parse(request.extra_body));
  return body.dump(-1, ' ', false, Json::error_handler_t::replace);
}

std::string error_message_of(std::string_view body) {
  const Json json = Json::parse(body, nullptr, false);
  if (const Json* problem = member(json, "error")) {
    if (problem->is_string()) return one_line(problem->get_ref<const std::string&>());
    if (const auto text = string_member(problem, "message"); !text.empty()) return one_line(text);
  }
  if (const auto text = string_member(&json, "message"); !text.empty()) return one_line(text);
  return one_line(body);
}

CompletionStream::CompletionStream(RequestRecord* record, bool keep_text)
    : record_(record), keep_text_(keep_text), parser_(kMaxEventBytes) {}

void CompletionStream::on_head(int status, std::string_view content_type) {
  status_ = status;
  content_type_ = content_type;
  kind_ = status == 200 && is_event_stream(content_type) ? Kind::kStream : Kind::kOther;
}

bool CompletionStream::on_body(std::string_view bytes, Nanos now) {
  if (kind_ != Kind::kStream) {
    other_body_.append(bytes.substr(0, kMaxOtherBodyBytes - other_body_.size()));
    return other_body_.size() < kMaxOtherBodyBytes;
  }
  const Status parsed = parser_.feed(bytes, [&](const SseEvent& event) {
    if (!done_ && !failed_) on_event(event.data, now);
  });
  if (!parsed.ok() && !done_) fail(parsed.message());
  return !done_ && !failed_;
}

void CompletionStream::on_event(std::string_view data, Nanos now) {
  if (data == "[DONE]") {
    done_ = true;
    return;
  }
  const Json chunk = Json::parse(data, nullptr, false);
  if (!chunk.is_object())
    return fail("the stream holds what is not a JSON object: " + one_line(data.substr(0, 80)));
  if (member(chunk, "error") != nullptr) return fail("error in the stream: " + error_message_of(data));

  const Json* choices = member(chunk, "choices");
  if (choices != nullptr && choices->is_array() && !choices->empty()) {
    const Json& choice = choices->front();
    std::string_view text = string_member(&choice, "text");
    const Json* delta = member(choice, "delta");
    // Servers that part a model's reasoning from its answer stream it under one of two names.
    for (const char* key : {"content", "reasoning_content", "reasoning"}) {
      if (text.empty()) text = string_member(delta, key);
    }
    if (!text.empty()) on_content(text, now);
    if (member(choice, "finish_reason") != nullptr) {
      finished_ = true;
      if (record_->first == 0) record_->first = now;
      record_->last = now;
    }
  }
  if (const Json* usage = member(chunk, "usage")) {
    int64_t prompt = 0;
    int64_t output = 0;
    if (count_member(*usage, "prompt_tokens", &prompt) &&
        count_member(*usage, "completion_tokens", &output)) {
      record_->prompt_tokens = prompt;
      record_->output_tokens = output;
      record_->usage_known = true;
    }
  }
}

void CompletionStream::on_content(std::string_view text, Nanos now) {
  if (record_->content_chunks == 0) {
    record_->first = now;
  } else {
    record_->gaps.push_back(now - record_->last);
  }
  record_->last = now;
  ++record_->content_chunks;
  if (keep_text_ && record_->text.size() + text.size() <= kMaxTextBytes) record_->text.append(text);
}

void CompletionStream::fail(std::string message) {
  failed_ = true;
  record_->error = std::move(message);
}

std::string CompletionStream::describe_other_answer() const {
  if (status_ != 200) {
    const std::string message = error_message_of(other_body_);
    return fmt::format("HTTP {}{}{}", status_, message.empty() ? "" : ": ", message);
  }
  return fmt::format("HTTP 200 with \"{}\" instead of an event stream: the server does not stream here",
                     one_line(content_type_));
}

void CompletionStream::on_end(const Status& transport) {
  if (!failed_ && kind_ == Kind::kOther) fail(describe_other_answer());
  if (!failed_ && !done_) {
    if (!transport.ok()) {
      fail(one_line(transport.message()));
    } else if (!finished_) {
      fail("the stream ended without a finish_reason or [DONE]");
    }
  }
  if (!failed_ && record_->first == 0) fail("the stream ended without any content");
  record_->refused = failed_ && status_ == 503;
  record_->state = failed_ ? RequestRecord::State::kFailed : RequestRecord::State::kCompleted;
  if (failed_ || record_->usage_known) return;
  record_->prompt_tokens = record_->prompt_words;
  record_->output_tokens = record_->content_chunks;
}

}  // namespace kvasir
