// `x is name`.
#include <algorithm>
#include <cmath>

#include "model/templates/jinja/builtins.h"
#include "model/templates/jinja/operators.h"
#include "model/templates/jinja/text.h"

namespace kvasir::jinja {

namespace {

using Predicate = bool (*)(const Value&);

struct NamedPredicate {
  std::string_view name;
  Predicate holds;
};

bool is_iterable(const Value& v) {
  return v.is_list() || v.is_string() || v.is_dict() || v.is_undefined();
}

constexpr NamedPredicate kPredicates[] = {
    {"defined", [](const Value& v) { return !v.is_undefined(); }},
    {"undefined", [](const Value& v) { return v.is_undefined(); }},
    {"none", [](const Value& v) { return v.is_none(); }},
    {"boolean", [](const Value& v) { return v.is_bool(); }},
    {"true", [](const Value& v) { return v.is_bool() && v.as_bool(); }},
    {"false", [](const Value& v) { return v.is_bool() && !v.as_bool(); }},
    {"integer", [](const Value& v) { return v.is_int(); }},
    {"float", [](const Value& v) { return v.is_float(); }},
    {"number", [](const Value& v) { return v.is_number(); }},
    {"string", [](const Value& v) { return v.is_string(); }},
    {"mapping", [](const Value& v) { return v.is_dict(); }},
    {"iterable", is_iterable},
    {"sequence", is_iterable},
    {"callable", [](const Value& v) { return v.is_macro(); }},
};

// Other names of the comparisons.
struct NamedComparison {
  std::string_view name;
  std::string_view op;
};
constexpr NamedComparison kComparisons[] = {
    {"eq", "=="},      {"equalto", "=="},    {"==", "=="}, {"ne", "!="}, {"!=", "!="}, {"lt", "<"},
    {"lessthan", "<"}, {"<", "<"},           {"le", "<="}, {"<=", "<="}, {"gt", ">"},  {">", ">"},
    {"ge", ">="},      {"greaterthan", ">"}, {">=", ">="}, {"in", "in"},
};

constexpr std::string_view kOthers[] = {"odd", "even", "divisibleby", "sameas", "lower", "upper"};

Result<bool> call_other(Environment* env, std::string_view name, const Value& input,
                        const Arguments& arguments) {
  if (name == "sameas") {
    KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"other"}, 1));
    KV_RETURN_IF_ERROR(env->spend(std::min(input.weight(), bound[0].weight())));
    return input.same_as(bound[0]);
  }
  if (name == "lower" || name == "upper") {
    KV_RETURN_IF_ERROR(env->spend(input.weight()));
    KV_RETURN_IF_ERROR(env->spend(input.weight() * 8));
    const std::string text = to_text(input);
    const std::string opposite = name == "lower" ? to_upper(text) : to_lower(text);
    return (name == "lower" ? to_lower(text) : to_upper(text)) == text && opposite != text;
  }
  const bool by_two = name != "divisibleby";
  KV_ASSIGN_OR_RETURN(const auto bound,
                      by_two ? arguments.bind(name, {}, 0) : arguments.bind(name, {"num"}, 1));
  KV_ASSIGN_OR_RETURN(const Value rest, apply_binary(env, "%", input, by_two ? Value(int64_t{2}) : bound[0]));
  return equal(rest, Value(int64_t{name == "odd"}));
}

}  // namespace

bool is_known_test(std::string_view name) {
  auto named = [name](const auto& entry) { return entry.name == name; };
  return std::any_of(std::begin(kPredicates), std::end(kPredicates), named) ||
         std::any_of(std::begin(kComparisons), std::end(kComparisons), named) ||
         std::find(std::begin(kOthers), std::end(kOthers), name) != std::end(kOthers);
}

Result<bool> call_test(Environment* env, std::string_view name, const Value& input,
                       const Arguments& arguments) {
  KV_RETURN_IF_ERROR(env->spend(1));
  for (const auto& [known, holds] : kPredicates) {
    if (known != name) continue;
    KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
    return holds(input);
  }
  for (const auto& [known, op] : kComparisons) {
    if (known != name) continue;
    KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"other"}, 1));
    return apply_compare(env, op, input, bound[0]);
  }
  if (!is_known_test(name)) return error(ErrorCode::kUnsupported, "the test '{}' is not supported", name);
  return call_other(env, name, input, arguments);
}

}  // namespace kvasir::jinja
