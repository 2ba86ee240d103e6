// Every value that can grow is made here, so that the budget counts all of them.
#include "model/templates/jinja/environment.h"

#include <algorithm>

namespace kvasir::jinja {

namespace {

Status check_element(const Value& item) {
  if (item.is_namespace()) {
    return error(ErrorCode::kInvalidArgument,
                 "a namespace cannot be stored in a list, a dict or a namespace");
  }
  if (item.depth() >= kMaxValueDepth) {
    return error(ErrorCode::kInvalidArgument, "a list or dict is nested deeper than {}", kMaxValueDepth);
  }
  return Status();
}

}  // namespace

Status Environment::spend(uint64_t steps) {
  if (steps > limits_.steps - steps_) {
    return error(ErrorCode::kExhausted, "the chat template takes more than {} steps; use another template",
                 limits_.steps);
  }
  steps_ += steps;
  return Status();
}

Status Environment::spend_bytes(uint64_t bytes) {
  if (bytes > limits_.bytes - bytes_) {
    return error(ErrorCode::kExhausted,
                 "the chat template makes more than {} bytes of values; use another template", limits_.bytes);
  }
  bytes_ += bytes;
  return spend(1 + bytes / 64);
}

Result<Value> Environment::make_string(MarkedText text) {
  KV_RETURN_IF_ERROR(spend_bytes(text.size() + text.mark_bytes() + 32));
  return Value(std::move(text));
}

Result<Value> Environment::make_list(std::vector<Value> items, bool tuple) {
  KV_RETURN_IF_ERROR(spend_bytes(items.size() * sizeof(Value) + 64));
  List list{std::move(items), tuple, 1, 1};
  for (const Value& item : list.items) {
    KV_RETURN_IF_ERROR(check_element(item));
    list.depth = std::max(list.depth, item.depth() + 1);
    list.weight = add_weights(list.weight, item.weight());
  }
  return Value(std::make_shared<const List>(std::move(list)));
}

Result<Value> Environment::make_dict(std::vector<std::pair<std::string, Value>> items, bool integer_keys) {
  KV_RETURN_IF_ERROR(spend_bytes(items.size() * (sizeof(Value) + 48) + 64));
  // Comparing two dicts looks up every key.
  Dict dict{{}, 1, 1 + items.size() * items.size() / 8, integer_keys};
  for (auto& [key, item] : items) {
    KV_RETURN_IF_ERROR(check_element(item));
    // A key that comes twice keeps its first place and its last value.
    KV_RETURN_IF_ERROR(spend(1 + dict.items.size() / 8));
    dict.depth = std::max(dict.depth, item.depth() + 1);
    dict.weight = add_weights(dict.weight, 1 + key.size() / 16 + item.weight());
    const auto same = std::find_if(dict.items.begin(), dict.items.end(),
                                   [&name = key](const auto& x) { return x.first == name; });
    if (same != dict.items.end()) {
      same->second = std::move(item);
    } else {
      dict.items.emplace_back(std::move(key), std::move(item));
    }
  }
  return Value(std::make_shared<const Dict>(std::move(dict)));
}

}  // namespace kvasir::jinja
