#include "apps/bench/prompts.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cmath>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string_view>

#include "base/random.h"

namespace kvasir {
namespace {

// Short and common, so that every usual vocabulary has " word" as one token.
constexpr std::array<std::string_view, 192> kWords = {
    "the",   "of",    "and",   "to",    "in",    "is",    "you",   "that",  "it",    "he",    "was",
    "for",   "on",    "are",   "as",    "with",  "his",   "they",  "at",    "be",    "this",  "have",
    "from",  "or",    "one",   "had",   "by",    "word",  "but",   "not",   "what",  "all",   "were",
    "we",    "when",  "your",  "can",   "said",  "there", "use",   "an",    "each",  "which", "she",
    "do",    "how",   "their", "if",    "will",  "up",    "other", "about", "out",   "many",  "then",
    "them",  "these", "so",    "some",  "her",   "would", "make",  "like",  "him",   "into",  "time",
    "has",   "look",  "two",   "more",  "write", "go",    "see",   "no",    "way",   "could", "my",
    "than",  "first", "water", "been",  "call",  "who",   "oil",   "its",   "now",   "find",  "long",
    "down",  "day",   "did",   "get",   "come",  "made",  "may",   "part",  "over",  "new",   "sound",
    "take",  "only",  "work",  "know",  "place", "year",  "live",  "me",    "back",  "give",  "most",
    "very",  "after", "thing", "our",   "just",  "name",  "good",  "man",   "think", "say",   "great",
    "where", "help",  "much",  "line",  "right", "too",   "mean",  "old",   "any",   "same",  "tell",
    "boy",   "came",  "want",  "show",  "also",  "form",  "three", "small", "set",   "put",   "end",
    "does",  "well",  "large", "must",  "big",   "even",  "such",  "here",  "why",   "ask",   "went",
    "men",   "read",  "need",  "land",  "home",  "us",    "move",  "try",   "kind",  "hand",  "again",
    "off",   "play",  "air",   "away",  "house", "point", "page",  "found", "study", "still", "should",
    "world", "high",  "every", "near",  "add",   "food",  "own",   "below", "last",  "never", "start",
    "city",  "earth", "eye",   "light", "head"};

int64_t draw_length(int64_t length, double ratio, uint64_t bits) {
  const double exact = static_cast<double>(length);
  const int64_t low = std::max<int64_t>(1, static_cast<int64_t>(std::floor(exact * (1 - ratio))));
  const int64_t high = std::max(low, static_cast<int64_t>(std::ceil(exact * (1 + ratio))));
  return low + static_cast<int64_t>(bits % static_cast<uint64_t>(high - low + 1));
}

Result<Prompt> parse_line(const std::string& line, const std::string& name, int64_t number,
                          int64_t default_output_len) {
  const nlohmann::json object = nlohmann::json::parse(line, nullptr, false);
  if (!object.is_object()) {
    return error(ErrorCode::kInvalidArgument,
                 "{}:{}: not a JSON object; write one {{\"prompt\": ...}} per line", name, number);
  }
  const auto text = object.find("prompt");
  if (text == object.end() || !text->is_string()) {
    return error(ErrorCode::kInvalidArgument, "{}:{}: no \"prompt\" that is a string", name, number);
  }
  Prompt prompt;
  prompt.text = text->get<std::string>();
  prompt.words = count_words(prompt.text);
  prompt.max_tokens = default_output_len;
  for (const char* key : {"output_tokens", "max_tokens"}) {
    const auto found = object.find(key);
    if (found == object.end() || found->is_null()) continue;
    if (!found->is_number_integer() || found->get<int64_t>() < 1) {
      return error(ErrorCode::kInvalidArgument, "{}:{}: \"{}\" must be a whole number of at least 1", name,
                   number, key);
    }
    prompt.max_tokens = found->get<int64_t>();
  }
  return prompt;
}

}  // namespace

int64_t count_words(std::string_view text) {
  int64_t words = 0;
  bool inside = false;
  for (unsigned char c : text) {
    const bool space = std::isspace(c) != 0;
    if (!space && !inside) ++words;
    inside = !space;
  }
  return words;
}

std::string random_words(uint64_t key, uint64_t stream, int64_t count) {
  KV_CHECK(count >= 1, "count={}", count);
  std::string text;
  for (int64_t w = 0; w < count; ++w) {
    if (w > 0) text.push_back(' ');
    text += kWords[random_bits(key, stream, static_cast<uint64_t>(w) + 2) % kWords.size()];
  }
  return text;
}

Lengths random_lengths(const RandomPromptSpec& spec, int64_t number) {
  const auto stream = static_cast<uint64_t>(number);
  return {draw_length(spec.input_len, spec.range_ratio, random_bits(spec.seed, stream, 0)),
          draw_length(spec.output_len, spec.range_ratio, random_bits(spec.seed, stream, 1))};
}

std::vector<Prompt> random_prompts(const RandomPromptSpec& spec, int64_t first, int64_t count) {
  KV_CHECK(count >= 0 && spec.input_len >= 1 && spec.output_len >= 1, "count={} input={} output={}", count,
           spec.input_len, spec.output_len);
  KV_CHECK(spec.range_ratio >= 0 && spec.range_ratio < 1, "range_ratio={}", spec.range_ratio);
  std::vector<Prompt> prompts(static_cast<size_t>(count));
  for (int64_t i = 0; i < count; ++i) {
    const uint64_t stream = static_cast<uint64_t>(first + i);
    Prompt& prompt = prompts[static_cast<size_t>(i)];
    const Lengths lengths = random_lengths(spec, first + i);
    prompt.words = lengths.prompt;
    prompt.max_tokens = lengths.output;
    prompt.text = random_words(spec.word_key.value_or(spec.seed), stream, prompt.words);
  }
  return prompts;
}

Result<std::vector<Prompt>> parse_custom_prompts(std::istream& in, const std::string& name,
                                                 int64_t default_output_len) {
  std::vector<Prompt> prompts;
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    KV_ASSIGN_OR_RETURN(Prompt prompt, parse_line(line, name, number, default_output_len));
    prompts.push_back(std::move(prompt));
  }
  if (in.bad()) return error(ErrorCode::kIo, "{}: reading failed", name);
  if (prompts.empty()) return error(ErrorCode::kInvalidArgument, "{}: no prompts in it", name);
  return prompts;
}

Result<std::vector<Prompt>> load_custom_prompts(const std::string& path, int64_t default_output_len) {
  std::ifstream in(path, std::ios::binary);
  if (!in) return error(ErrorCode::kNotFound, "--dataset-path {}: cannot be opened", path);
  return parse_custom_prompts(in, path, default_output_len);
}

}  // namespace kvasir
