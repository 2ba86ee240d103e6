// The table of fields for people.
#include <fmt/format.h>

#include <climits>
#include <iterator>
#include <nlohmann/json.hpp>

#include "server/handlers/request_fields.h"

namespace kvasir {
namespace {

using nlohmann::json;
using Use = RequestField::Use;

// The most that is no bound for people.
constexpr double kUnbounded = INT32_MAX;

template <typename T>
bool takes(const RequestField& f) {
  return std::holds_alternative<T>(f.set);
}

std::string endpoints_text(const RequestField& f) {
  using Where = RequestField::Where;
  if (f.where == Where::kAll) return "all";
  std::string out = (f.where | Where::kAnswers) == f.where ? "generating" : "";
  for (const ApiKindInfo& info : api_kinds()) {
    const bool said = !out.empty() && out.starts_with("generating") &&
                      (Where::kAnswers | where_of(info.kind)) == Where::kAnswers;
    if (f.is_of(info.kind) && !said) out += fmt::format("{}{}", out.empty() ? "" : ", ", info.name);
  }
  return out;
}

std::string range_text(const RequestField& f) {
  const auto& [low, high, open_low] = f.range;
  if (high == 0 && low == 0) return {};
  if (takes<RequestField::SetString>(f))
    return high < kUnbounded ? fmt::format(", at most {} bytes", high) : "";
  if (high >= kUnbounded) return low <= INT32_MIN ? "" : fmt::format(", at least {}", low);
  if (open_low) return fmt::format(", above {}, at most {}", low, high);
  return fmt::format(", {} to {}", low, high);
}

}  // namespace

std::span<const ApiKindInfo> api_kinds() {
  static constexpr ApiKindInfo kKinds[] = {
      {ApiKind::kChat, "chat", "/v1/chat/completions", "ChatCompletionRequest",
       "Messages through the chat template"},
      {ApiKind::kCompletion, "completions", "/v1/completions", "CompletionRequest",
       "Text that continues a prompt"},
      {ApiKind::kMessages, "messages", "/v1/messages", "MessagesRequest",
       "Messages through the chat template, as Anthropic's API has them"},
      {ApiKind::kCountTokens, "count_tokens", "/v1/messages/count_tokens", "CountTokensRequest",
       "The tokens of the prompt that such messages make"},
      {ApiKind::kResponses, "responses", "/v1/responses", "ResponsesRequest",
       "Items through the chat template, as OpenAI's newer API has them"},
      {ApiKind::kTokenize, "tokenize", "/tokenize", "TokenizeRequest", "The tokens of a text or of messages"},
      {ApiKind::kDetokenize, "detokenize", "/detokenize", "DetokenizeRequest", "The text of tokens"},
      {ApiKind::kEmbeddings, "embeddings", "/v1/embeddings", "EmbeddingsRequest",
       "Vectors that stand for texts"},
  };
  return kKinds;
}

std::string type_text(const RequestField& f) {
  const char* type = "";
  if (takes<RequestField::SetBoolean>(f)) type = "boolean";
  if (takes<RequestField::SetInteger>(f)) type = "integer";
  if (takes<RequestField::SetNumber>(f)) type = "number";
  if (takes<RequestField::SetString>(f)) type = "string";
  if (!takes<RequestField::SetAny>(f)) return type + range_text(f);
  const json shape = json::parse(f.shape);
  const auto type_of = [](const json& one) {
    return one["type"] == "array" ? std::string("list") : one["type"].get<std::string>();
  };
  if (!shape.contains("anyOf")) return type_of(shape);
  std::string types;
  for (const json& one : shape["anyOf"]) types += (types.empty() ? "" : " or ") + type_of(one);
  return types;
}

std::string request_fields_markdown() {
  std::string out = "| field | endpoints | type | default | |\n|---|---|---|---|---|\n";
  for (const RequestField& f : request_fields()) {
    if (f.use != Use::kRead) continue;
    fmt::format_to(std::back_inserter(out), "| `{}` | {} | {} | {} | {} |\n", f.name, endpoints_text(f),
                   type_text(f), f.otherwise, f.text);
  }
  out += "\nThese are read by others, and change nothing here:\n\n| field | why |\n|---|---|\n";
  for (const RequestField& f : request_fields()) {
    if (f.use != Use::kIgnored) continue;
    fmt::format_to(std::back_inserter(out), "| `{}` | {} |\n", f.name, f.text);
  }
  out += "\nThese are refused with 400, unless they have the value that changes nothing:\n\n";
  out += "| field | endpoints | value that passes | why it is refused |\n|---|---|---|---|\n";
  for (const RequestField& f : request_fields()) {
    if (f.use != Use::kRefused) continue;
    fmt::format_to(std::back_inserter(out), "| `{}` | {} | {} | {} |\n", f.name, endpoints_text(f),
                   f.otherwise.empty() ? "none" : fmt::format("`{}`", f.otherwise), f.text);
  }
  return out;
}

}  // namespace kvasir
