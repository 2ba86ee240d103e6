#include "model/grammar/grammar_limits.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/untrusted_text.h"

namespace kvasir {
namespace {

using nlohmann::json;

Status too_large(std::string_view what, size_t size, size_t most) {
  return error(ErrorCode::kInvalidArgument, "{}: {}, and at most {} are allowed", what, size, most);
}

// Brackets within brackets, whether or not they are in quotes or escaped.
int depth_of(std::string_view text) {
  int depth = 0, deepest = 0;
  for (const char c : text) {
    if (c == '(' || c == '[' || c == '{') deepest = std::max(deepest, ++depth);
    if (c == ')' || c == ']' || c == '}') --depth;
  }
  return deepest;
}

// Reads a pattern from left to right.
class Expansion {
 public:
  Expansion(std::string_view text, bool quoted, size_t most) : text_(text), quoted_(quoted), most_(most) {}

  size_t run() {
    groups_.assign(1, {});
    while (at_ < text_.size()) step();
    size_t all = 0;
    for (const Group& g : groups_) all = sum(all, g.total());
    return all;
  }

 private:
  struct Group {
    size_t before = 0;  // all but the last item
    size_t last = 0;    // to which a repetition applies
    size_t total() const { return before + last; }
  };

  static bool has(std::string_view set, char c) { return set.find(c) != std::string_view::npos; }
  size_t sum(size_t a, size_t b) const { return std::min(a + b, most_ + 1); }
  void add(size_t size) {
    Group& g = groups_.back();
    g.before = sum(g.before, g.last);
    g.last = size;
  }
  // What is between here and the closing mark, which is passed.
  size_t until(char close) {
    size_t count = 0;
    for (++at_; at_ < text_.size() && text_[at_] != close; ++at_, ++count) {
      if (text_[at_] == '\\') ++at_;
    }
    ++at_;
    return count;
  }
  // {n}, {n,} or {n,m}: the larger; 1 if it is none.
  void repeat() {
    size_t number = 0, largest = 1;
    for (++at_; at_ < text_.size() && text_[at_] != '}'; ++at_) {
      const char c = text_[at_];
      number = c >= '0' && c <= '9' ? std::min(10 * number + static_cast<size_t>(c - '0'), most_ + 1) : 0;
      largest = std::max(largest, number);
    }
    ++at_;
    size_t& last = groups_.back().last;
    last = last > 0 && largest > (most_ + 1) / last ? most_ + 1 : last * largest;
  }

  void step() {
    switch (const char c = text_[at_]) {
      case '(':
        groups_.emplace_back();
        ++at_;
        return;
      case ')':
        ++at_;
        if (groups_.size() > 1) {
          const size_t inner = groups_.back().total();
          groups_.pop_back();
          add(inner);
        }
        return;
      case '[':
        until(']');
        return add(1);
      case '{':
        return repeat();
      case '\\':
        at_ += 2;
        return add(1);
      case '"':
        if (quoted_) return add(until('"'));
        [[fallthrough]];
      default:
        ++at_;
        if (!has(kMarks, c) && !(quoted_ && has(kSpaces, c))) add(1);
    }
  }

  static constexpr std::string_view kMarks = "*+?|", kSpaces = " \n\t\r";
  const std::string_view text_;
  const bool quoted_;
  const size_t most_;
  size_t at_ = 0;
  std::vector<Group> groups_;
};

// Goes through a JSON schema. What only describes is left out; the rest must be something that an output can
// be held to.
class SchemaWalk {
 public:
  explicit SchemaWalk(const GrammarLimits& limits) : limits_(limits) {}

  Status schema(const json& node) {
    if (node.is_array()) {
      for (const json& item : node) KV_RETURN_IF_ERROR(schema(item));
    }
    if (!node.is_object()) return {};
    for (const auto& [key, value] : node.items()) KV_RETURN_IF_ERROR(keyword(key, value));
    return {};
  }

 private:
  Status keyword(const std::string& key, const json& value) {
    const auto is_one_of = [&key = key](const auto& list) {
      return std::find(list.begin(), list.end(), key) != list.end();
    };
    if (is_one_of(kNotHeldTo)) {
      return error(ErrorCode::kInvalidArgument, "the schema's keyword '{}' is not supported; leave it out",
                   key);
    }
    if (is_one_of(kValues)) return {};
    if (is_one_of(kBounds)) {
      if (value.is_number() && value.get<double>() > static_cast<double>(limits_.bound)) {
        return error(ErrorCode::kInvalidArgument, "the schema's '{}' is larger than {}", key, limits_.bound);
      }
      return {};
    }
    if (key == "pattern" && value.is_string()) return pattern(value.get_ref<const std::string&>());
    if (is_one_of(kSchemasByName) && value.is_object()) {
      for (const auto& [name, inner] : value.items()) {
        if (key == "patternProperties") KV_RETURN_IF_ERROR(pattern(name));
        KV_RETURN_IF_ERROR(schema(inner));
      }
      return {};
    }
    return schema(value);
  }

  Status pattern(const std::string& text) {
    expanded_ += expanded_size(text, /*quoted=*/false, limits_.expanded);
    if (expanded_ <= limits_.expanded) return {};
    return error(ErrorCode::kInvalidArgument,
                 "the schema's patterns have more than {} characters when repetitions are written out",
                 limits_.expanded);
  }

  static constexpr std::array kNotHeldTo = {
      "not",         "if",       "then",        "else",        "dependentRequired", "dependentSchemas",
      "uniqueItems", "contains", "minContains", "maxContains", "$dynamicRef",       "$recursiveRef"};
  static constexpr std::array kValues = {"enum", "const", "default", "examples", "required", "description"};
  static constexpr std::array kBounds = {"minItems",  "maxItems",      "minLength",
                                         "maxLength", "minProperties", "maxProperties"};
  static constexpr std::array kSchemasByName = {"properties", "patternProperties", "$defs", "definitions"};

  const GrammarLimits& limits_;
  size_t expanded_ = 0;
};

Status check_json(const OutputGrammar& grammar, const GrammarLimits& limits) {
  if (nests_deeper(grammar.text, limits.depth)) {
    return error(ErrorCode::kInvalidArgument, "it is nested deeper than {} levels", limits.depth);
  }
  const json parsed = json::parse(grammar.text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return error(ErrorCode::kInvalidArgument, "it is not valid JSON in UTF-8");
  if (!parsed.is_object()) return error(ErrorCode::kInvalidArgument, "it must be a JSON object");
  if (grammar.kind == OutputGrammar::Kind::kJsonSchema) return SchemaWalk(limits).schema(parsed);
  return {};
}

}  // namespace

size_t expanded_size(std::string_view pattern, bool quoted, size_t most) {
  return Expansion(pattern, quoted, most).run();
}

Status check_size(const OutputGrammar& grammar, const GrammarLimits& limits) {
  using Kind = OutputGrammar::Kind;
  size_t bytes = grammar.text.size();
  for (const std::string& choice : grammar.choices) bytes += choice.size();
  if (bytes > limits.text_bytes) return too_large("it is too large in bytes", bytes, limits.text_bytes);
  switch (grammar.kind) {
    case Kind::kNone:
    case Kind::kJson:
      return {};
    case Kind::kJsonSchema:
    case Kind::kStructuralTag:
      return check_json(grammar, limits);
    case Kind::kChoice: {
      const auto empty = [](const std::string& choice) { return choice.empty(); };
      if (grammar.choices.empty() || std::any_of(grammar.choices.begin(), grammar.choices.end(), empty)) {
        return error(ErrorCode::kInvalidArgument, "there must be a choice, and none may be empty");
      }
      if (grammar.choices.size() > limits.choices) {
        return too_large("there are too many choices", grammar.choices.size(), limits.choices);
      }
      return {};
    }
    case Kind::kRegex:
    case Kind::kGrammar: {
      if (grammar.text.empty()) return error(ErrorCode::kInvalidArgument, "it must not be empty");
      if (depth_of(grammar.text) > limits.depth) {
        return error(ErrorCode::kInvalidArgument, "it is nested deeper than {} levels", limits.depth);
      }
      if (expanded_size(grammar.text, grammar.kind == Kind::kGrammar, limits.expanded) > limits.expanded) {
        return error(ErrorCode::kInvalidArgument,
                     "it has more than {} characters when repetitions are written out", limits.expanded);
      }
      return {};
    }
  }
  return {};
}

}  // namespace kvasir
