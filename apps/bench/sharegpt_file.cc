#include "apps/bench/sharegpt_file.h"

#include <fstream>
#include <nlohmann/json.hpp>
#include <optional>

namespace kvasir {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxWords = 2048;

// The text of a turn, or nothing when it is not one of `speaker`.
std::optional<std::string> text_of(const Json& turn, std::initializer_list<const char*> speakers) {
  for (const char* speaker : speakers) {
    if (turn["from"] == speaker) return turn["value"].get<std::string>();
  }
  return std::nullopt;
}

bool is_turn(const Json& turn) {
  return turn.is_object() && turn.contains("from") && turn["from"].is_string() && turn.contains("value") &&
         turn["value"].is_string();
}

}  // namespace

Result<std::vector<Prompt>> parse_sharegpt(std::istream& in, const std::string& name) {
  const Json list = Json::parse(in, nullptr, false);
  if (!list.is_array()) {
    return error(ErrorCode::kInvalidArgument, "{}: not a JSON list of conversations", name);
  }
  std::vector<Prompt> prompts;
  for (size_t i = 0; i < list.size(); ++i) {
    const Json& entry = list[i];
    const auto turns = entry.is_object() ? entry.find("conversations") : entry.end();
    if (!entry.is_object() || turns == entry.end() || !turns->is_array()) {
      return error(ErrorCode::kInvalidArgument, "{}: entry {}: no \"conversations\" that is a list", name,
                   i + 1);
    }
    if (turns->size() < 2) continue;
    for (size_t t = 0; t < 2; ++t) {
      if (is_turn((*turns)[t])) continue;
      return error(ErrorCode::kInvalidArgument,
                   "{}: entry {}: turn {} has no \"from\" and \"value\" that are strings", name, i + 1,
                   t + 1);
    }
    std::optional<std::string> asked = text_of((*turns)[0], {"human", "user"});
    const std::optional<std::string> answered = text_of((*turns)[1], {"gpt", "chatgpt", "assistant"});
    if (!asked.has_value() || !answered.has_value()) continue;
    Prompt prompt;
    prompt.words = count_words(*asked);
    prompt.max_tokens = count_words(*answered);
    if (prompt.words < 1 || prompt.max_tokens < 1 || prompt.words + prompt.max_tokens > kMaxWords) continue;
    prompt.text = std::move(*asked);
    prompts.push_back(std::move(prompt));
  }
  if (prompts.empty()) {
    return error(ErrorCode::kInvalidArgument, "{}: no conversation that begins with a human and a gpt turn",
                 name);
  }
  return prompts;
}

Result<std::vector<Prompt>> load_sharegpt(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(ErrorCode::kNotFound, "--dataset-path {}: cannot be opened", path);
  try {
    return parse_sharegpt(in, path);
  } catch (const std::ios_base::failure&) {  // of a folder, which can be opened
    return error(ErrorCode::kIo, "--dataset-path {}: cannot be read", path);
  }
}

}  // namespace kvasir
