// object.name(...): Python's methods of strings and dicts.
#include <algorithm>

#include "model/templates/jinja/builtins.h"
#include "model/templates/jinja/operators.h"
#include "model/templates/jinja/text.h"

namespace kvasir::jinja {

namespace {

using Method = Result<Value> (*)(Environment*, std::string_view, const Value&, const Arguments&);

Status needs(std::string_view method, std::string_view what) {
  return error(ErrorCode::kInvalidArgument, "{}() needs {}", method, what);
}

// A whole number, or `missing` if the argument was left out.
Result<int64_t> integer_or(const Value& value, int64_t missing, std::string_view method) {
  if (value.is_undefined()) return missing;
  if (!value.is_integral()) return needs(method, "an integer");
  return value.as_int();
}

// Of parts of `text`.
Result<Value> make_strings(Environment* env, const MarkedText& text,
                           const std::vector<std::string_view>& parts) {
  KV_RETURN_IF_ERROR(env->spend_bytes(parts.size() * 96 + text.mark_bytes()));
  std::vector<Value> items;
  items.reserve(parts.size());
  for (const std::string_view part : parts) items.emplace_back(text.slice(part));
  return env->make_list(std::move(items));
}

Result<Value> strip_method(Environment* env, std::string_view name, const Value& object,
                           const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"chars"}, 0));
  const bool left = name != "rstrip";
  const bool right = name != "lstrip";
  const std::string& text = object.as_string();
  if (bound[0].is_string()) {
    const std::string& characters = bound[0].as_string();
    KV_RETURN_IF_ERROR(env->spend(text.size() * (1 + characters.size() / 16)));
    return env->make_string(object.as_marked().slice(strip_characters(text, characters, left, right)));
  }
  if (!bound[0].is_undefined() && !bound[0].is_none()) return needs(name, "a string");
  KV_RETURN_IF_ERROR(env->spend(object.weight()));
  return env->make_string(object.as_marked().slice(strip(text, left, right)));
}

Result<Value> affix_test(Environment* env, std::string_view name, const Value& object,
                         const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"affix"}, 1));
  const std::string_view text = object.as_string();
  auto fits = [&](const Value& affix) {
    return name == "startswith" ? text.starts_with(affix.as_string()) : text.ends_with(affix.as_string());
  };
  if (bound[0].is_string()) return Value(fits(bound[0]));
  if (!bound[0].is_list() || !bound[0].as_list().tuple) return needs(name, "a string or a tuple of strings");
  KV_RETURN_IF_ERROR(env->spend(bound[0].weight()));
  for (const Value& affix : bound[0].as_list().items) {
    if (!affix.is_string()) return needs(name, "a string or a tuple of strings");
    if (fits(affix)) return Value(true);
  }
  return Value(false);
}

Result<Value> split_method(Environment* env, std::string_view name, const Value& object,
                           const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"sep", "maxsplit"}, 0));
  KV_ASSIGN_OR_RETURN(const int64_t limit, integer_or(bound[1], -1, name));
  const std::string& text = object.as_string();
  KV_RETURN_IF_ERROR(env->spend(text.size() / 4));
  const bool right = name == "rsplit";
  if (bound[0].is_undefined() || bound[0].is_none())
    return make_strings(env, object.as_marked(), split_space(text, limit, right));
  if (!bound[0].is_string() || bound[0].as_string().empty())
    return needs(name, "a separator that is not empty");
  return make_strings(env, object.as_marked(), split(text, bound[0].as_string(), limit, right));
}

Result<Value> splitlines_method(Environment* env, std::string_view name, const Value& object,
                                const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"keepends"}, 0));
  const std::string& text = object.as_string();
  KV_RETURN_IF_ERROR(env->spend(text.size() / 4));
  return make_strings(env, object.as_marked(), split_lines(text, bound[0].truthy()));
}

Result<Value> case_method(Environment* env, std::string_view name, const Value& object,
                          const Arguments& arguments) {
  KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
  const std::string& text = object.as_string();
  KV_RETURN_IF_ERROR(env->spend(object.weight() * 8));
  std::string mapped = name == "upper"   ? to_upper(text)
                       : name == "lower" ? to_lower(text)
                       : name == "title" ? title(text)
                                         : capitalize(text);
  return env->make_string(marked_as_whole(std::move(mapped), object.as_marked()));
}

Result<Value> replace_method(Environment* env, std::string_view name, const Value& object,
                             const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"old", "new", "count"}, 2));
  KV_ASSIGN_OR_RETURN(const int64_t limit, integer_or(bound[2], -1, name));
  if (!bound[0].is_string() || !bound[1].is_string()) return needs(name, "two strings");
  const std::string& text = object.as_string();
  const std::string& from = bound[0].as_string();
  const MarkedText& to = bound[1].as_marked();
  // Paid for before it is made: a short text can become very long.
  KV_RETURN_IF_ERROR(env->spend(text.size() * (from.empty() ? 1 : 2)));
  const auto found = static_cast<uint64_t>(count_of(text, from));
  const uint64_t count = limit < 0 ? found : std::min(found, static_cast<uint64_t>(limit));
  if (count > 0 && to.size() + to.mark_bytes() > env->limits().bytes / count)
    return needs(name, "a shorter replacement");
  KV_RETURN_IF_ERROR(env->spend_bytes(text.size() + count * (to.size() + to.mark_bytes())));
  return env->make_string(replace(object.as_marked(), from, to, limit));
}

Result<Value> find_method(Environment* env, std::string_view name, const Value& object,
                          const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"sub"}, 1));
  if (!bound[0].is_string()) return needs(name, "a string");
  const std::string& text = object.as_string();
  const std::string& what = bound[0].as_string();
  KV_RETURN_IF_ERROR(env->spend(text.size() + 1));
  if (name == "count") return Value(count_of(text, what));
  const size_t at = name == "find" ? text.find(what) : text.rfind(what);
  if (at == std::string::npos) return Value(int64_t{-1});
  return Value::from_size(length_of(std::string_view(text).substr(0, at)));
}

Result<Value> remove_affix(Environment* env, std::string_view name, const Value& object,
                           const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"affix"}, 1));
  if (!bound[0].is_string()) return needs(name, "a string");
  std::string_view text = object.as_string();
  const std::string& affix = bound[0].as_string();
  if (name == "removeprefix" && text.starts_with(affix)) text.remove_prefix(affix.size());
  if (name == "removesuffix" && text.ends_with(affix)) text.remove_suffix(affix.size());
  return env->make_string(object.as_marked().slice(text));
}

Result<Value> join_method(Environment* env, std::string_view name, const Value& object,
                          const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"iterable"}, 1));
  KV_ASSIGN_OR_RETURN(const auto list, iterate(env, bound[0]));
  MarkedText out;
  for (size_t i = 0; i < list->items.size(); ++i) {
    if (!list->items[i].is_string()) return needs(name, "strings");
    KV_RETURN_IF_ERROR(env->spend_bytes(list->items[i].as_string().size() + object.as_string().size()));
    if (i > 0) out.append(object.as_marked());
    out.append(list->items[i].as_marked());
  }
  return env->make_string(std::move(out));
}

Result<Value> dict_method(Environment* env, std::string_view name, const Value& object,
                          const Arguments& arguments) {
  const Dict& dict = object.as_dict();
  if (name == "get") {
    KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"key", "default"}, 1));
    KV_RETURN_IF_ERROR(env->spend(1 + dict.items.size() / 8));
    const Value* found = dict.find_value(bound[0]);
    if (found) return *found;
    return arguments.positional.size() + arguments.named.size() > 1 ? bound[1] : Value::none();
  }
  KV_RETURN_IF_ERROR(arguments.bind(name, {}, 0).status());
  std::vector<Value> out;
  for (size_t i = 0; i < dict.items.size(); ++i) {
    const Value& value = dict.items[i].second;
    if (name == "values") {
      out.push_back(value);
      continue;
    }
    KV_RETURN_IF_ERROR(env->spend_bytes(dict.items[i].first.size() + 32));
    Value item = dict.key(i);
    if (name == "items") {
      KV_ASSIGN_OR_RETURN(item, env->make_list({item, value}, true));
    }
    out.push_back(std::move(item));
  }
  return env->make_list(std::move(out));
}

struct NamedMethod {
  std::string_view name;
  bool of_dict;
  Method call;
};

constexpr NamedMethod kMethods[] = {
    {"strip", false, strip_method},
    {"lstrip", false, strip_method},
    {"rstrip", false, strip_method},
    {"startswith", false, affix_test},
    {"endswith", false, affix_test},
    {"split", false, split_method},
    {"rsplit", false, split_method},
    {"splitlines", false, splitlines_method},
    {"upper", false, case_method},
    {"lower", false, case_method},
    {"title", false, case_method},
    {"capitalize", false, case_method},
    {"replace", false, replace_method},
    {"find", false, find_method},
    {"rfind", false, find_method},
    {"count", false, find_method},
    {"removeprefix", false, remove_affix},
    {"removesuffix", false, remove_affix},
    {"format", false, format_method},
    {"join", false, join_method},
    {"get", true, dict_method},
    {"items", true, dict_method},
    {"keys", true, dict_method},
    {"values", true, dict_method},
};

}  // namespace

MarkedText marked_as_whole(std::string text, const MarkedText& from) {
  return from.all_trusted() ? MarkedText::trusted(std::move(text)) : MarkedText(std::move(text));
}

bool is_known_method(std::string_view name) {
  return std::any_of(std::begin(kMethods), std::end(kMethods),
                     [name](const auto& m) { return m.name == name; });
}

Result<Value> call_method(Environment* env, std::string_view name, const Value& object,
                          const Arguments& arguments) {
  KV_RETURN_IF_ERROR(env->spend(1));
  for (const NamedMethod& method : kMethods) {
    if (method.name != name) continue;
    const bool fits = method.of_dict ? object.is_dict() : object.is_string();
    if (fits) return method.call(env, name, object, arguments);
  }
  if (object.is_undefined()) {
    return error(ErrorCode::kInvalidArgument, "'{}' of something undefined is called", name);
  }
  return error(ErrorCode::kInvalidArgument, "'{}' has no method '{}'", object.type_name(), name);
}

}  // namespace kvasir::jinja
