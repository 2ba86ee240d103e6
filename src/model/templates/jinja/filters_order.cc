// Filters that compare items with each other.
#include <algorithm>
#include <numeric>

#include "model/templates/jinja/builtins.h"
#include "model/templates/jinja/operators.h"
#include "model/templates/jinja/text.h"

namespace kvasir::jinja {

namespace {

struct Order {
  bool case_sensitive = false;
  bool reverse = false;
  std::vector<std::string> attributes;  // none: the item itself
};

// What an item is compared by.
Result<Value> sort_key(Environment* env, const Value& item, const Order& order) {
  std::vector<Value> parts;
  for (const std::string& attribute : order.attributes) {
    KV_ASSIGN_OR_RETURN(Value part, get_path(env, item, attribute));
    parts.push_back(std::move(part));
  }
  if (order.attributes.empty()) parts.push_back(item);
  for (Value& part : parts) {
    if (order.case_sensitive || !part.is_string()) continue;
    KV_RETURN_IF_ERROR(env->spend(part.weight() * 8));
    part = Value(to_lower(part.as_string()));
  }
  return parts.size() == 1 ? Result<Value>(std::move(parts.front())) : env->make_list(std::move(parts));
}

Result<std::vector<Value>> sort_keys(Environment* env, const std::vector<Value>& items, const Order& order) {
  std::vector<Value> keys;
  keys.reserve(items.size());
  for (const Value& item : items) {
    KV_ASSIGN_OR_RETURN(Value key, sort_key(env, item, order));
    keys.push_back(std::move(key));
  }
  return keys;
}

// Stable, also in reverse. A comparison that fails ends it.
Result<std::vector<Value>> sorted(Environment* env, const std::vector<Value>& items, const Order& order) {
  KV_ASSIGN_OR_RETURN(const std::vector<Value> keys, sort_keys(env, items, order));
  std::vector<size_t> places(items.size());
  std::iota(places.begin(), places.end(), size_t{0});
  Status failed;
  std::stable_sort(places.begin(), places.end(), [&](size_t a, size_t b) {
    if (!failed.ok()) return false;
    const auto before =
        order.reverse ? apply_compare(env, "<", keys[b], keys[a]) : apply_compare(env, "<", keys[a], keys[b]);
    if (!before.ok()) failed = before.status();
    return before.ok() && *before;
  });
  KV_RETURN_IF_ERROR(failed);
  std::vector<Value> out;
  out.reserve(items.size());
  for (const size_t place : places) out.push_back(items[place]);
  return out;
}

Result<std::vector<Value>> distinct(Environment* env, const std::vector<Value>& items, const Order& order) {
  KV_ASSIGN_OR_RETURN(const std::vector<Value> keys, sort_keys(env, items, order));
  std::vector<Value> out;
  for (size_t i = 0; i < items.size(); ++i) {
    bool seen = false;
    for (size_t k = 0; k < i && !seen; ++k) {
      KV_ASSIGN_OR_RETURN(seen, apply_compare(env, "==", keys[k], keys[i]));
      KV_RETURN_IF_ERROR(env->spend(1));
    }
    if (!seen) out.push_back(items[i]);
  }
  return out;
}

// The pairs of a dict, by key or by value.
Result<Value> sort_dict(Environment* env, std::string_view name, const Value& input,
                        const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"case_sensitive", "by", "reverse"}, 0));
  const std::string by = bound[1].is_string() ? bound[1].as_string() : "key";
  if (!input.is_dict() || (by != "key" && by != "value")) {
    return error(ErrorCode::kInvalidArgument, "the filter '{}' needs a dict, and 'key' or 'value'", name);
  }
  KV_ASSIGN_OR_RETURN(const Value pairs, call_method(env, "items", input, {}));
  const Order order{bound[0].truthy(), bound[2].truthy(), {by == "key" ? "0" : "1"}};
  KV_ASSIGN_OR_RETURN(std::vector<Value> items, sorted(env, pairs.as_list().items, order));
  return env->make_list(std::move(items));
}

}  // namespace

Result<Value> order_filter(Environment* env, std::string_view name, const Value& input,
                           const Arguments& arguments) {
  if (name == "dictsort") return sort_dict(env, name, input, arguments);
  const bool sorts = name == "sort";
  KV_ASSIGN_OR_RETURN(const auto bound,
                      sorts ? arguments.bind(name, {"reverse", "case_sensitive", "attribute"}, 0)
                            : arguments.bind(name, {"case_sensitive", "attribute"}, 0));
  const size_t first = sorts ? 1 : 0;
  Order order{bound[first].truthy(), sorts && bound[0].truthy(), {}};
  if (const Value& attribute = bound[first + 1]; attribute.is_string() || attribute.is_int()) {
    const std::string paths = to_text(attribute);
    for (const std::string_view path : split(paths, ",", -1, false)) order.attributes.emplace_back(path);
  }
  KV_ASSIGN_OR_RETURN(const auto list, iterate(env, input));
  const std::vector<Value>& items = list->items;
  if (name == "unique") {
    KV_ASSIGN_OR_RETURN(std::vector<Value> out, distinct(env, items, order));
    return env->make_list(std::move(out));
  }
  KV_RETURN_IF_ERROR(env->spend_bytes(items.size() * sizeof(Value) * 2));
  // Of equals, the least and the greatest item is the first.
  order.reverse = order.reverse || name == "max";
  KV_ASSIGN_OR_RETURN(std::vector<Value> out, sorted(env, items, order));
  if (sorts) return env->make_list(std::move(out));
  return out.empty() ? Value() : out.front();
}

}  // namespace kvasir::jinja
