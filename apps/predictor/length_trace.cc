#include "apps/predictor/length_trace.h"

#include <fmt/format.h>

#include <fstream>
#include <nlohmann/json.hpp>

namespace kvasir {
namespace {

using Json = nlohmann::json;

constexpr uint32_t kLongestOutput = 1'000'000;
constexpr int kDeepest = 16;

// Takes fields from a line's object; the first that is not what it should be is named.
class TraceLine {
 public:
  TraceLine(Json object, std::string where) : object_(std::move(object)), where_(std::move(where)) {}

  std::string text(const char* key) {
    const Json value = take(key);
    if (value.is_string()) return value.get<std::string>();
    return fail(key, "a text", value), "";
  }
  double number(const char* key, double most, double otherwise) {
    const Json value = take(key);
    if (value.is_null()) return otherwise;
    if (value.is_number() && value.get<double>() >= 0 && value.get<double>() <= most)
      return value.get<double>();
    return fail(key, fmt::format("a number from 0 to {}", most), value), otherwise;
  }
  uint32_t tokens(const char* key) {
    const Json value = take(key);
    return value.is_null() ? 0 : tokens(key, value);
  }
  std::vector<uint32_t> list_of_tokens(const char* key) {
    const Json values = take(key);
    std::vector<uint32_t> out;
    if (!values.is_null() && !values.is_array()) fail(key, "a list", values);
    for (const Json& value : values) out.push_back(tokens(key, value));
    return out;
  }
  std::vector<std::pair<std::string, std::string>> messages(const char* key) {
    const Json values = take(key);
    std::vector<std::pair<std::string, std::string>> out;
    if (!values.is_array() || values.empty()) fail(key, "a list of messages", values);
    for (const Json& m : values) {
      if (!m.is_object() || !m.contains("role") || !m["role"].is_string() || !m.contains("content") ||
          !m["content"].is_string()) {
        fail(key, "a list of {\"role\": ..., \"content\": ...}", m);
        break;
      }
      out.emplace_back(m["role"].get<std::string>(), m["content"].get<std::string>());
    }
    return out;
  }
  bool has(const char* key) const { return object_.contains(key); }
  void fail(const char* key, std::string_view wanted, const Json& found) {
    if (!status_.ok()) return;
    status_ = error(ErrorCode::kInvalidArgument, "{}: \"{}\" is {} where {} is wanted", where_, key,
                    found.is_null() ? "missing" : found.type_name(), wanted);
  }
  const Status& status() const { return status_; }
  // The fields that were not taken.
  std::string rest() const {
    return object_.empty() ? "" : object_.dump(-1, ' ', false, Json::error_handler_t::replace);
  }

 private:
  Json take(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end()) return {};
    Json value = std::move(*found);
    object_.erase(found);
    return value;
  }
  uint32_t tokens(const char* key, const Json& value) {
    if (value.is_number_integer() && value.get<int64_t>() >= 1 &&
        value.get<int64_t>() <= int64_t{kLongestOutput}) {
      return value.get<uint32_t>();
    }
    return fail(key, fmt::format("a whole number from 1 to {}", kLongestOutput), value), 0;
  }

  Json object_;
  std::string where_;
  Status status_;
};

Result<TracedRequest> parse_traced(const std::string& text, const std::string& where) {
  bool deep = false;
  Json object = Json::parse(
      text,
      [&deep](int depth, Json::parse_event_t, Json&) {
        deep = deep || depth > kDeepest;
        return true;
      },
      false);
  if (deep) return error(ErrorCode::kInvalidArgument, "{}: nested deeper than {} levels", where, kDeepest);
  if (!object.is_object()) {
    return error(ErrorCode::kInvalidArgument, "{}: not a JSON object; write one request per line", where);
  }
  TraceLine line(std::move(object), where);
  TracedRequest out;
  if (line.has("messages")) {
    out.messages = line.messages("messages");
  } else {
    out.prompt = line.text("prompt");
  }
  out.temperature = line.number("temperature", 2, 1);
  out.top_p = line.number("top_p", 1, 1);
  out.output_tokens = line.tokens("output_tokens");
  out.again = line.list_of_tokens("again");
  if (line.has("finish_reason")) {
    const std::string reason = line.text("finish_reason");
    out.cut = reason == "length";
    if (reason != "stop" && reason != "length") line.fail("finish_reason", "\"stop\" or \"length\"", reason);
  }
  out.others = line.rest();
  if (!line.status().ok()) return line.status();
  return out;
}

Json to_json(const TracedRequest& r) {
  Json out = r.others.empty() ? Json::object() : Json::parse(r.others);
  if (r.messages.empty()) {
    out["prompt"] = r.prompt;
  } else {
    for (const auto& [role, content] : r.messages)
      out["messages"].push_back({{"role", role}, {"content", content}});
  }
  out["temperature"] = r.temperature;
  out["top_p"] = r.top_p;
  if (r.output_tokens > 0) {
    out["output_tokens"] = r.output_tokens;
    out["finish_reason"] = r.cut ? "length" : "stop";
  }
  if (!r.again.empty()) out["again"] = r.again;
  return out;
}

}  // namespace

Result<std::vector<TracedRequest>> parse_length_trace(std::istream& in, const std::string& name) {
  std::vector<TracedRequest> out;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    KV_ASSIGN_OR_RETURN(TracedRequest request, parse_traced(line, fmt::format("{}:{}", name, number)));
    out.push_back(std::move(request));
  }
  return out;
}

Result<std::vector<TracedRequest>> load_length_trace(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(ErrorCode::kNotFound, "{}: cannot be opened", path);
  KV_ASSIGN_OR_RETURN(std::vector<TracedRequest> out, parse_length_trace(in, path));
  if (in.bad()) return error(ErrorCode::kIo, "{}: cannot be read to its end", path);
  return out;
}

std::string length_trace_text(const std::vector<TracedRequest>& requests) {
  std::string out;
  for (const TracedRequest& r : requests)
    out += to_json(r).dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
  return out;
}

}  // namespace kvasir
