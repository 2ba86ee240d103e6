// The table of fields, of OpenAI's interface or of other servers that offer it, whose effect is not
// implemented here, and of their neutral values.
#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>

#include "server/handlers/openai.h"

namespace kvasir {
namespace {

using nlohmann::json;
using Neutral = bool (*)(const json&);

bool never(const json&) {
  return false;
}
bool zero(const json& v) {
  return v.is_number() && v.get<double>() == 0;
}
bool one(const json& v) {
  return v.is_number() && v.get<double>() == 1;
}
bool off(const json& v) {
  return v.is_boolean() && !v.get<bool>();
}
bool on(const json& v) {
  return v.is_boolean() && v.get<bool>();
}
bool empty_list(const json& v) {
  return v.is_array() && v.empty();
}
bool empty_object(const json& v) {
  return v.is_object() && v.empty();
}
bool empty_string(const json& v) {
  return v.is_string() && v.get_ref<const std::string&>().empty();
}
bool none(const json& v) {
  return v == "none";
}
bool text_format(const json& v) {
  return v.is_object() && v.value("type", json()) == "text";
}
bool text_only(const json& v) {
  return v == json::array({"text"});
}

bool medium(const json& v) {
  return v == "medium";
}
bool usual_tier(const json& v) {
  return v == "auto" || v == "default";
}

enum Where { kBoth, kChatOnly, kCompletionOnly };

struct Rule {
  const char* field;
  Neutral neutral;
  Where where;
};

constexpr Rule kRules[] = {
    // OpenAI's.
    {"n", one, kBoth},
    {"frequency_penalty", zero, kBoth},
    {"presence_penalty", zero, kBoth},
    {"logit_bias", empty_object, kBoth},
    {"tools", empty_list, kChatOnly},
    {"tool_choice", none, kChatOnly},
    {"functions", empty_list, kChatOnly},
    {"function_call", none, kChatOnly},
    {"response_format", text_format, kBoth},
    {"modalities", text_only, kChatOnly},
    {"audio", never, kChatOnly},
    {"prediction", never, kChatOnly},
    {"reasoning_effort", none, kChatOnly},
    {"web_search_options", never, kChatOnly},
    {"store", off, kBoth},
    {"verbosity", medium, kChatOnly},
    {"service_tier", usual_tier, kBoth},
    {"moderation", never, kBoth},
    {"parallel_tool_calls", on, kChatOnly},
    {"suffix", empty_string, kCompletionOnly},
    {"echo", off, kBoth},
    {"best_of", one, kBoth},
    // Of other servers that offer this interface.
    {"add_special_tokens", off, kChatOnly},
    {"add_special_tokens", on, kCompletionOnly},
    {"detokenize", on, kBoth},
    {"min_p", zero, kBoth},
    {"repetition_penalty", one, kBoth},
    {"length_penalty", one, kBoth},
    {"min_tokens", zero, kBoth},
    {"use_beam_search", off, kBoth},
    {"bad_words", empty_list, kBoth},
    {"allowed_token_ids", empty_list, kBoth},
    {"logits_processors", empty_list, kBoth},
    {"include_stop_str_in_output", off, kBoth},
    {"skip_special_tokens", on, kBoth},
    {"prompt_logprobs", never, kBoth},
    {"prompt_embeds", never, kCompletionOnly},
    {"truncate_prompt_tokens", never, kBoth},
    {"structured_outputs", never, kBoth},
    {"guided_json", never, kBoth},
    {"guided_regex", never, kBoth},
    {"guided_choice", never, kBoth},
    {"guided_grammar", never, kBoth},
    {"add_generation_prompt", on, kChatOnly},
    {"continue_final_message", off, kChatOnly},
    {"chat_template", never, kChatOnly},
    {"chat_template_kwargs", empty_object, kChatOnly},
    {"documents", empty_list, kChatOnly},
    {"return_token_ids", off, kBoth},
};

}  // namespace

std::optional<ApiError> find_unsupported_field(const json& body, ApiKind kind) {
  const Where other = kind == ApiKind::kChat ? kCompletionOnly : kChatOnly;
  for (const Rule& rule : kRules) {
    if (rule.where == other) continue;
    const auto it = body.find(rule.field);
    if (it == body.end() || it->is_null() || rule.neutral(*it)) continue;
    constexpr size_t kShown = 40;  // bytes of the value
    const std::string value = dump_json(*it);
    ApiError e = bad_field(rule.field,
                           fmt::format("'{}' with the value {}{} is not supported; leave it out", rule.field,
                                       value.substr(0, kShown), value.size() > kShown ? "..." : ""));
    e.code = "unsupported_parameter";
    return e;
  }
  return std::nullopt;
}

std::vector<std::string> unknown_fields(const json& body, const JsonFields& read) {
  constexpr size_t kMost = 8, kLongestName = 64;
  const std::set<std::string_view> no_effect = {"metadata", "user"};
  const auto is_known = [&](std::string_view name) {
    return read.was_read(name) || no_effect.contains(name) ||
           std::any_of(std::begin(kRules), std::end(kRules), [&](const Rule& r) { return name == r.field; });
  };
  std::vector<std::string> unknown;
  for (auto it = body.begin(); it != body.end() && unknown.size() < kMost; ++it) {
    if (!is_known(it.key())) unknown.push_back(it.key().substr(0, kLongestName));
  }
  return unknown;
}

}  // namespace kvasir
