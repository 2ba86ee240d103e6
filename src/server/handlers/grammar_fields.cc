#include "server/handlers/grammar_fields.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "model/grammar/grammar_limits.h"

namespace kvasir {
namespace {

using nlohmann::json;
using Kind = OutputGrammar::Kind;

// Gives the request its grammar, unless it has one.
void set(ApiRequest& r, const std::string& field, OutputGrammar grammar, JsonFields& errors) {
  if (r.grammar.kind != Kind::kNone) {
    return errors.fail(field.c_str(), fmt::format("'{}' and '{}' exclude each other; leave one of them out",
                                                  r.grammar_field, field));
  }
  r.grammar = std::move(grammar);
  r.grammar_field = field;
}

void set_schema(ApiRequest& r, const std::string& field, const json& value, JsonFields& errors) {
  if (!value.is_object() && !value.is_string()) {
    return errors.fail(field.c_str(), fmt::format("'{}' must be a JSON schema", field));
  }
  set(r, field, {Kind::kJsonSchema, value.is_string() ? value.get<std::string>() : dump_json(value)}, errors);
}

void set_text(ApiRequest& r, const std::string& field, Kind kind, const json& value, JsonFields& errors) {
  if (!value.is_string()) return errors.fail(field.c_str(), fmt::format("'{}' must be a string", field));
  set(r, field, {kind, value.get<std::string>()}, errors);
}

void set_choice(ApiRequest& r, const std::string& field, const json& value, JsonFields& errors) {
  OutputGrammar grammar{Kind::kChoice};
  const auto is_text = [](const json& item) { return item.is_string(); };
  if (!value.is_array() || !std::all_of(value.begin(), value.end(), is_text)) {
    return errors.fail(field.c_str(), fmt::format("'{}' must be a list of strings", field));
  }
  for (const json& item : value) grammar.choices.push_back(item.get<std::string>());
  set(r, field, std::move(grammar), errors);
}

}  // namespace

void set_response_format(ApiRequest& r, const json& value, JsonFields& errors) {
  const json type = value.is_object() ? value.value("type", json()) : json();
  if (type == "text") return;
  if (type == "json_object") return set(r, "response_format", {Kind::kJson}, errors);
  if (type != "json_schema") {
    return errors.fail("response_format",
                       "'response_format' must be an object whose 'type' is \"text\", \"json_object\" or "
                       "\"json_schema\"");
  }
  const json inner = value.value("json_schema", json());
  if (!inner.is_object()) {
    return errors.fail("response_format.json_schema", "'response_format.json_schema' must be an object");
  }
  const json name = inner.value("name", json("")), strict = inner.value("strict", json());
  if (!name.is_string()) {
    return errors.fail("response_format.json_schema.name",
                       "'response_format.json_schema.name' must be a string");
  }
  if (!strict.is_boolean() && !strict.is_null()) {
    return errors.fail("response_format.json_schema.strict",
                       "'response_format.json_schema.strict' must be true or false");
  }
  const json schema = inner.value("schema", json());
  if (!schema.is_object()) {
    return errors.fail("response_format.json_schema.schema",
                       "'response_format.json_schema.schema' must be an object");
  }
  set_schema(r, "response_format.json_schema.schema", schema, errors);
}

void set_structured_outputs(ApiRequest& r, const json& value, JsonFields& errors) {
  constexpr std::array kKinds = {"json", "regex", "choice", "grammar"};
  std::string given;
  size_t count = 0;
  bool known = value.is_object();
  for (auto it = value.begin(); known && it != value.end(); ++it) {
    if (it->is_null()) continue;
    known = std::find(kKinds.begin(), kKinds.end(), it.key()) != kKinds.end();
    given = it.key();
    ++count;
  }
  if (!known || count != 1) {
    return errors.fail("structured_outputs",
                       "'structured_outputs' must be an object with exactly one of 'json', 'regex', 'choice' "
                       "and 'grammar'");
  }
  const std::string field = "structured_outputs." + given;
  const json& inner = value.at(given);
  if (given == "json") return set_schema(r, field, inner, errors);
  if (given == "choice") return set_choice(r, field, inner, errors);
  set_text(r, field, given == "regex" ? Kind::kRegex : Kind::kGrammar, inner, errors);
}

void set_guided_json(ApiRequest& r, const json& value, JsonFields& errors) {
  set_schema(r, "guided_json", value, errors);
}

void set_guided_regex(ApiRequest& r, const json& value, JsonFields& errors) {
  set_text(r, "guided_regex", Kind::kRegex, value, errors);
}

void set_guided_choice(ApiRequest& r, const json& value, JsonFields& errors) {
  set_choice(r, "guided_choice", value, errors);
}

void set_guided_grammar(ApiRequest& r, const json& value, JsonFields& errors) {
  set_text(r, "guided_grammar", Kind::kGrammar, value, errors);
}

void keep_schema_order(std::string_view body, ApiRequest& request) {
  if (request.grammar.kind != Kind::kJsonSchema) return;
  std::string_view text = body;
  for (std::string_view path = request.grammar_field; !path.empty();) {
    const size_t dot = std::min(path.find('.'), path.size());
    const auto inner = member_text(text, path.substr(0, dot));
    if (!inner || !inner->starts_with('{')) return;
    text = *inner;
    path.remove_prefix(std::min(dot + 1, path.size()));
  }
  // The parser that keeps the order takes time quadratic in the members; a longer text is refused anyway.
  if (text.size() > GrammarLimits().text_bytes) {
    request.grammar.text = text;
    return;
  }
  auto schema = nlohmann::ordered_json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (schema.is_object()) {
    request.grammar.text = schema.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace);
  }
  clear_json(schema);
}

}  // namespace kvasir
