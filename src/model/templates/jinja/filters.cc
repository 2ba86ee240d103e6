// `x | name`.
#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/templates/jinja/builtins.h"
#include "model/templates/jinja/operators.h"
#include "model/templates/jinja/text.h"
#include "model/tokenizers/utf8.h"

namespace kvasir::jinja {

namespace {

using Filter = Result<Value> (*)(Environment*, std::string_view, const Value&, const Arguments&);

Status bad_filter(std::string_view filter, std::string_view what) {
  return error(ErrorCode::kInvalidArgument, "the filter '{}' {}", filter, what);
}

// str() of the input, on the budget.
Result<Value> as_text(Environment* env, const Value& input) {
  if (input.is_string()) return input;
  KV_RETURN_IF_ERROR(env->spend(input.weight()));
  return env->make_string(to_text(input));
}

// The filters that are a method of str() of their input.
Result<Value> text_filter(Environment* env, std::string_view name, const Value& input,
                          const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const Value text, as_text(env, input));
  if (name == "trim") return call_method(env, "strip", text, arguments);
  if (name == "title") {
    KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
    KV_RETURN_IF_ERROR(env->spend(text.weight() * 16));
    return env->make_string(marked_as_whole(title_words(text.as_string()), text.as_marked()));
  }
  if (name != "replace") return call_method(env, name, text, arguments);
  KV_ASSIGN_OR_RETURN(auto bound, arguments.bind(name, {"old", "new", "count"}, 2));
  KV_ASSIGN_OR_RETURN(bound[0], as_text(env, bound[0]));
  KV_ASSIGN_OR_RETURN(bound[1], as_text(env, bound[1]));
  if (bound[2].is_none() || bound[2].is_undefined()) bound.pop_back();
  return call_method(env, name, text, Arguments{std::move(bound), {}});
}

Result<Value> string_filter(Environment* env, std::string_view name, const Value& input,
                            const Arguments& arguments) {
  KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
  return as_text(env, input);
}

Result<Value> length_filter(Environment* env, std::string_view name, const Value& input,
                            const Arguments& arguments) {
  KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
  KV_ASSIGN_OR_RETURN(const int64_t length, length_of_value(env, input));
  return Value(length);
}

Result<Value> default_filter(Environment*, std::string_view name, const Value& input,
                             const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"default_value", "boolean"}, 0));
  const bool replaced = input.is_undefined() || (bound[1].truthy() && !input.truthy());
  if (!replaced) return input;
  return bound[0].is_undefined() ? Value("") : bound[0];
}

Result<Value> join_filter(Environment* env, std::string_view name, const Value& input,
                          const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"d", "attribute"}, 0));
  KV_ASSIGN_OR_RETURN(const auto list, iterate(env, input));
  KV_ASSIGN_OR_RETURN(const Value separator_text, as_text(env, bound[0]));
  const MarkedText& separator = separator_text.as_marked();
  MarkedText out;
  for (size_t i = 0; i < list->items.size(); ++i) {
    Value item = list->items[i];
    if (bound[1].is_string()) {
      KV_ASSIGN_OR_RETURN(item, get_path(env, std::move(item), bound[1].as_string()));
    }
    KV_ASSIGN_OR_RETURN(const Value text, as_text(env, item));
    KV_RETURN_IF_ERROR(env->spend_bytes(text.as_string().size() + separator.size()));
    if (i > 0) out.append(separator);
    out.append(text.as_marked());
  }
  return env->make_string(std::move(out));
}

Result<Value> end_filter(Environment* env, std::string_view name, const Value& input,
                         const Arguments& arguments) {
  KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
  if (input.is_string()) return get_item(env, input, Value(int64_t{name == "first" ? 0 : -1}));
  KV_ASSIGN_OR_RETURN(const auto list, iterate(env, input));
  if (list->items.empty()) return Value();
  return name == "first" ? list->items.front() : list->items.back();
}

Result<Value> list_filter(Environment* env, std::string_view name, const Value& input,
                          const Arguments& arguments) {
  KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
  KV_ASSIGN_OR_RETURN(const auto list, iterate(env, input));
  KV_RETURN_IF_ERROR(env->spend_bytes(list->items.size() * sizeof(Value)));
  std::vector<Value> items = list->items;
  if (name == "reverse") std::reverse(items.begin(), items.end());
  KV_ASSIGN_OR_RETURN(Value result, env->make_list(std::move(items)));
  if (name == "list" || !input.is_string()) return result;
  return call_method(env, "join", Value(""), Arguments{{std::move(result)}, {}});
}

// Marks a string as HTML, for `+`: see Value::as_markup(). Chat templates need no other filter for HTML.
Result<Value> safe_filter(Environment* env, std::string_view name, const Value& input,
                          const Arguments& arguments) {
  KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
  KV_ASSIGN_OR_RETURN(const Value text, as_text(env, input));
  return text.as_markup();
}

// Lines but the first begin with `width` spaces, or with that string, unless they are empty.
Result<Value> indent_filter(Environment* env, std::string_view name, const Value& input,
                            const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"width", "first", "blank"}, 0));
  if (!input.is_string()) return bad_filter(name, "needs a string");
  const int64_t width = bound[0].is_integral() ? std::clamp<int64_t>(bound[0].as_int(), 0, 1000) : 4;
  const MarkedText space =
      bound[0].is_string() ? bound[0].as_marked() : MarkedText(std::string(static_cast<size_t>(width), ' '));
  const std::string& text = input.as_string();
  const auto lines = split_lines(text, false);
  KV_RETURN_IF_ERROR(
      env->spend_bytes(text.size() + (lines.size() + 2) * (space.size() + space.mark_bytes() + 1)));
  const MarkedText newline = MarkedText::trusted("\n");
  MarkedText out;
  if (bound[1].truthy()) out.append(space);
  // Jinja ends the text with a line end before it cuts it, so that one at the end begins a line.
  const size_t count =
      lines.size() + (text.empty() || split_lines(text, true).back().size() > lines.back().size());
  for (size_t i = 0; i < count; ++i) {
    const std::string_view line = i < lines.size() ? lines[i] : std::string_view();
    if (i > 0) out.append(newline);
    if (i > 0 && (!line.empty() || bound[2].truthy())) out.append(space);
    out.append(input.as_marked().slice(line));
  }
  return env->make_string(std::move(out));
}

Result<Value> items_filter(Environment* env, std::string_view name, const Value& input,
                           const Arguments& arguments) {
  if (input.is_undefined()) return env->make_list({});
  if (!input.is_dict()) return bad_filter(name, "needs a dict");
  return call_method(env, name, input, arguments);
}

Result<Value> json_filter(Environment* env, std::string_view name, const Value& input,
                          const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound,
                      arguments.bind(name, {"ensure_ascii", "indent", "separators", "sort_keys"}, 0));
  if (bound[2].truthy() || bound[3].truthy())
    return bad_filter(name, "supports ensure_ascii and indent alone");
  const Value& indent = bound[1];
  if (!indent.is_integral() && !indent.is_none() && !indent.is_undefined()) {
    return bad_filter(name, "needs an integer as indent");
  }
  JsonStyle style;
  style.ascii = bound[0].truthy();
  if (indent.is_integral()) style.indent = std::max<int64_t>(indent.as_int(), 0);
  KV_ASSIGN_OR_RETURN(std::string text, to_json(env, input, style));
  return env->make_string(std::move(text));
}

// Python's int(text) and float(text): white space around, one sign, single underscores between digits.
template <typename Number>
std::optional<Number> parse_number(std::string_view text) {
  text = strip(text, true, true);
  std::string digits;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool between = i > 0 && i + 1 < text.size() && text[i - 1] != '_' && text[i + 1] != '_';
    if (text[i] == '_' && between) continue;
    digits += text[i];
  }
  std::string_view rest = digits;
  if (rest.starts_with('+')) rest.remove_prefix(1);
  if (rest.starts_with('+') || (digits.starts_with('+') && rest.starts_with('-'))) return std::nullopt;
  Number value{};
  const auto parsed = std::from_chars(rest.data(), rest.data() + rest.size(), value);
  if (parsed.ec != std::errc() || parsed.ptr != rest.data() + rest.size()) return std::nullopt;
  return value;
}

Result<Value> number_filter(Environment* env, std::string_view name, const Value& input,
                            const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"default"}, 0));
  if (input.is_string()) KV_RETURN_IF_ERROR(env->spend(input.weight() * 4));
  const bool whole = name == "int";
  if (input.is_undefined()) return bad_filter(name, "is applied to something undefined");
  std::optional<double> real;
  if (input.is_number()) {
    if (whole && input.is_integral()) return Value(input.as_int());
    real = input.as_float();
  } else if (input.is_string()) {
    if (whole) {
      if (const auto integer = parse_number<int64_t>(input.as_string())) return Value(*integer);
    }
    real = parse_number<double>(input.as_string());
  }
  if (real && !whole) return Value(*real);
  // Beyond this the truncated value is no 64-bit integer.
  if (real && std::fabs(*real) < 9.2e18) return Value(static_cast<int64_t>(*real));
  if (!bound[0].is_undefined()) return bound[0];
  return whole ? Value(int64_t{0}) : Value(0.0);
}

Result<Value> abs_filter(Environment*, std::string_view name, const Value& input,
                         const Arguments& arguments) {
  KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
  if (!input.is_number()) return bad_filter(name, "needs a number");
  if (input.is_float()) return Value(std::fabs(input.as_float()));
  return input.as_int() < 0 ? apply_sign("-", input) : Result<Value>(Value(input.as_int()));
}

Result<Value> map_filter(Environment* env, std::string_view name, const Value& input,
                         const Arguments& arguments) {
  if (!input.truthy()) return env->make_list({});  // whatever it is
  KV_ASSIGN_OR_RETURN(const auto list, iterate(env, input));
  std::vector<Value> out;
  const bool by_filter = !arguments.positional.empty();
  if (by_filter && !arguments.positional[0].is_string())
    return bad_filter(name, "needs the name of a filter");
  Arguments rest;
  Value path;
  Value fallback;
  if (by_filter) {
    rest.positional.assign(arguments.positional.begin() + 1, arguments.positional.end());
    rest.named = arguments.named;
  } else {
    KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"attribute", "default"}, 1));
    if (!bound[0].is_string() && !bound[0].is_int())
      return bad_filter(name, "needs the name of an attribute");
    path = to_text(bound[0]);
    fallback = bound[1];
  }
  for (const Value& item : list->items) {
    KV_RETURN_IF_ERROR(env->spend(1));
    Value mapped;
    if (by_filter) {
      KV_ASSIGN_OR_RETURN(mapped, call_filter(env, arguments.positional[0].as_string(), item, rest));
    } else {
      KV_ASSIGN_OR_RETURN(mapped, get_path(env, item, path.as_string()));
      if (mapped.is_undefined()) mapped = fallback;
    }
    out.push_back(std::move(mapped));
  }
  return env->make_list(std::move(out));
}

// select, reject, selectattr and rejectattr: the items for which a test holds, or does not.
Result<Value> select_filter(Environment* env, std::string_view name, const Value& input,
                            const Arguments& arguments) {
  if (!input.truthy()) return env->make_list({});  // whatever it is
  KV_ASSIGN_OR_RETURN(const auto list, iterate(env, input));
  const bool by_attribute = name.ends_with("attr");
  const bool wanted = name.starts_with("select");
  const auto& given = arguments.positional;
  const size_t test_at = by_attribute ? 1 : 0;
  if (!arguments.named.empty()) return bad_filter(name, "takes no named arguments");
  if (by_attribute && (given.empty() || !given[0].is_string()))
    return bad_filter(name, "needs the name of an attribute");
  if (given.size() > test_at && !given[test_at].is_string())
    return bad_filter(name, "needs the name of a test");
  Arguments rest;
  if (given.size() > test_at) {
    rest.positional.assign(given.begin() + static_cast<std::ptrdiff_t>(test_at) + 1, given.end());
  }
  std::vector<Value> out;
  for (const Value& item : list->items) {
    KV_RETURN_IF_ERROR(env->spend(1));
    Value subject = item;
    if (by_attribute) {
      KV_ASSIGN_OR_RETURN(subject, get_path(env, item, given[0].as_string()));
    }
    bool holds = subject.truthy();
    if (given.size() > test_at) {
      KV_ASSIGN_OR_RETURN(holds, call_test(env, given[test_at].as_string(), subject, rest));
    }
    if (holds == wanted) out.push_back(item);
  }
  return env->make_list(std::move(out));
}

struct NamedFilter {
  std::string_view name;
  Filter call;
};

constexpr NamedFilter kFilters[] = {
    {"dictsort", order_filter},    {"indent", indent_filter}, {"max", order_filter},
    {"min", order_filter},         {"safe", safe_filter},     {"sort", order_filter},
    {"unique", order_filter},      {"abs", abs_filter},       {"capitalize", text_filter},
    {"count", length_filter},      {"d", default_filter},     {"default", default_filter},
    {"first", end_filter},         {"float", number_filter},  {"int", number_filter},
    {"items", items_filter},       {"join", join_filter},     {"last", end_filter},
    {"length", length_filter},     {"list", list_filter},     {"lower", text_filter},
    {"map", map_filter},           {"reject", select_filter}, {"rejectattr", select_filter},
    {"replace", text_filter},      {"reverse", list_filter},  {"select", select_filter},
    {"selectattr", select_filter}, {"string", string_filter}, {"title", text_filter},
    {"tojson", json_filter},       {"trim", text_filter},     {"upper", text_filter},
};

}  // namespace

Result<Value> get_path(Environment* env, Value value, std::string_view path) {
  for (const std::string_view part : split(path, ".", -1, false)) {
    int64_t index = 0;
    const char* end = part.data() + part.size();
    const auto parsed = std::from_chars(part.data(), end, index);
    const bool number = parsed.ec == std::errc() && parsed.ptr == end;
    KV_ASSIGN_OR_RETURN(value, number ? get_item(env, value, Value(index)) : get_attribute(env, value, part));
  }
  return value;
}

bool is_known_filter(std::string_view name) {
  return std::any_of(std::begin(kFilters), std::end(kFilters),
                     [name](const auto& f) { return f.name == name; });
}

Result<Value> call_filter(Environment* env, std::string_view name, const Value& input,
                          const Arguments& arguments) {
  KV_RETURN_IF_ERROR(env->spend(1));
  for (const NamedFilter& filter : kFilters) {
    if (filter.name == name) return filter.call(env, name, input, arguments);
  }
  return error(ErrorCode::kUnsupported, "the filter '{}' is not supported", name);
}

}  // namespace kvasir::jinja
