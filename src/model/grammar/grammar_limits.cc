#include "model/grammar/grammar_limits.h"

#include <algorithm>
#include <array>
#include <cstdint>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/untrusted_text.h"
#include "model/grammar/schema_hold.h"

namespace kvasir {
namespace {

using nlohmann::json;

Status too_large(std::string_view what, size_t size, size_t most) {
  return error(ErrorCode::kInvalidArgument, "{}: {}, and at most {} are allowed", what, size, most);
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
  // Groups within groups, and repetitions of repetitions: what follows goes down a level of its stack for
  // each. Of what has been run.
  size_t depth() const { return deepest_; }

 private:
  struct Group {
    size_t before = 0;  // all but the last item
    size_t last = 0;    // to which a repetition applies
    size_t total() const { return before + last; }
  };

  static bool has(std::string_view set, char c) { return set.find(c) != std::string_view::npos; }
  size_t sum(size_t a, size_t b) const { return std::min(a + b, most_ + 1); }
  void add(size_t size) {
    repeated_ = 0;
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

  void go_down() { deepest_ = std::max(deepest_, groups_.size() - 1 + repeated_); }

  void step() {
    switch (const char c = text_[at_]) {
      case '(':
        groups_.emplace_back();
        repeated_ = 0;
        go_down();
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
        ++repeated_;
        go_down();
        return repeat();
      case '\\':
        at_ += 2;
        return add(1);
      case '"':
        if (quoted_) return add(until('"'));
        [[fallthrough]];
      default:
        ++at_;
        if (has("*+?", c)) {
          ++repeated_;
          go_down();
        } else if (c == '|') {
          repeated_ = 0;
        } else if (!(quoted_ && has(kSpaces, c))) {
          add(1);
        }
    }
  }

  static constexpr std::string_view kSpaces = " \n\t\r";
  const std::string_view text_;
  const bool quoted_;
  const size_t most_;
  size_t at_ = 0;
  size_t repeated_ = 0;  // repetitions of the last item so far, each of the one before
  size_t deepest_ = 0;
  std::vector<Group> groups_;
};

Status check_pattern(std::string_view text, bool quoted, const GrammarLimits& limits) {
  Expansion pattern(text, quoted, limits.expanded);
  const size_t expanded = pattern.run();
  if (pattern.depth() > static_cast<size_t>(limits.depth)) {
    return error(ErrorCode::kInvalidArgument, "it is nested deeper than {} levels", limits.depth);
  }
  if (expanded > limits.expanded) {
    return error(ErrorCode::kInvalidArgument,
                 "it has more than {} characters when repetitions are written out", limits.expanded);
  }
  return {};
}

// Whether a pattern names a control character outside of a set of characters, where it may have to be there.
bool asks_for_control(std::string_view pattern) {
  bool in_set = false;
  for (size_t i = 0; i < pattern.size(); ++i) {
    const char c = pattern[i];
    if (!in_set && static_cast<unsigned char>(c) < 0x20) return true;
    if (c == '[') in_set = true;
    if (c == ']') in_set = false;
    if (c != '\\') continue;
    const std::string_view escape = pattern.substr(++i, 4);
    const bool named = escape.find_first_of("tnrfvc0") == 0 || escape.starts_with("x0") ||
                       escape.starts_with("x1") || escape.starts_with("u000") || escape.starts_with("u001");
    if (!in_set && named) return true;
  }
  return false;
}

// Goes through a JSON schema. What only describes is left out; the rest must be something that an output can
// be held to.
class SchemaWalk {
 public:
  // REQUIRES: the root outlives this.
  SchemaWalk(const json& root, const GrammarLimits& limits) : root_(root), limits_(limits), hold_(root) {}

  Status run() { return schema(root_); }

 private:
  Status schema(const json& node, std::string_view implied_type = {}) {
    if (node.is_array()) {
      for (const json& item : node) KV_RETURN_IF_ERROR(schema(item));
    }
    if (!node.is_object()) return {};
    if (&node != &root_ && node.contains("$id")) {
      return error(ErrorCode::kInvalidArgument, "the schema has an '$id' within it; leave it out");
    }
    for (const auto& [key, value] : node.items()) KV_RETURN_IF_ERROR(keyword(key, value));
    return hold_.check(node, implied_type);
  }

  Status keyword(const std::string& key, const json& value) {
    const auto is_one_of = [&key = key](const auto& list) {
      return std::find(list.begin(), list.end(), key) != list.end();
    };
    if (is_one_of(kNotHeldTo) && !(key == "uniqueItems" && value == false)) {
      return error(ErrorCode::kInvalidArgument, "the schema's keyword '{}' is not supported; leave it out",
                   key);
    }
    if (is_one_of(kValues) || key.starts_with("x-")) return {};
    if (key == "$ref" && value.is_string()) return reference(value.get_ref<const std::string&>());
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
    return schema(value, key == "propertyNames" ? "string" : "");
  }

  // Only to what this walk sees.
  static Status reference(const std::string& to) {
    for (const std::string_view place : {"#/$defs/", "#/definitions/"}) {
      if (to.starts_with(place) && to.find('/', place.size()) == std::string::npos) return {};
    }
    if (to == "#") return {};
    return error(ErrorCode::kInvalidArgument,
                 "the schema's '$ref' must be '#' or name one of its '$defs' or 'definitions'");
  }

  Status pattern(const std::string& text) {
    Expansion pattern(text, /*quoted=*/false, limits_.expanded);
    expanded_ += pattern.run();
    if (pattern.depth() > static_cast<size_t>(limits_.depth)) {
      return error(ErrorCode::kInvalidArgument, "a pattern of the schema is nested deeper than {} levels",
                   limits_.depth);
    }
    if (asks_for_control(text)) {
      return error(
          ErrorCode::kInvalidArgument,
          "a pattern of the schema asks for a control character, which JSON's strings write in another way; "
          "leave it out");
    }
    if (expanded_ <= limits_.expanded) return {};
    return error(ErrorCode::kInvalidArgument,
                 "the schema's patterns have more than {} characters when repetitions are written out",
                 limits_.expanded);
  }

  static constexpr std::array kNotHeldTo = {
      "not",         "if",       "then",        "else",        "dependentRequired", "dependentSchemas",
      "uniqueItems", "contains", "minContains", "maxContains", "$dynamicRef",       "$recursiveRef",
      "dependencies"};
  static constexpr std::array kValues = {"enum",     "const",    "default",     "example",
                                         "examples", "required", "description", "discriminator"};
  static constexpr std::array kBounds = {"minItems",  "maxItems",      "minLength",
                                         "maxLength", "minProperties", "maxProperties"};
  static constexpr std::array kSchemasByName = {"properties", "patternProperties", "$defs", "definitions"};

  const json& root_;
  const GrammarLimits& limits_;
  const SchemaHold hold_;
  size_t expanded_ = 0;
};

// The schemas within a structural tag.
Status check_tag(const json& node, const GrammarLimits& limits) {
  if (!node.is_structured()) return {};
  for (const auto& [key, value] : node.items()) {
    KV_RETURN_IF_ERROR(key == "json_schema" ? SchemaWalk(value, limits).run() : check_tag(value, limits));
  }
  return {};
}

Status check_json(const OutputGrammar& grammar, const GrammarLimits& limits) {
  if (nests_deeper(grammar.text, limits.depth)) {
    return error(ErrorCode::kInvalidArgument, "it is nested deeper than {} levels", limits.depth);
  }
  const json parsed = json::parse(grammar.text, nullptr, /*allow_exceptions=*/false);
  if (parsed.is_discarded()) return error(ErrorCode::kInvalidArgument, "it is not valid JSON in UTF-8");
  if (!parsed.is_object()) return error(ErrorCode::kInvalidArgument, "it must be a JSON object");
  if (grammar.kind == OutputGrammar::Kind::kJsonSchema) return SchemaWalk(parsed, limits).run();
  return check_tag(parsed, limits);
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
      return check_pattern(grammar.text, grammar.kind == Kind::kGrammar, limits);
    }
  }
  return {};
}

}  // namespace kvasir
