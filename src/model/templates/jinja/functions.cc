// Functions of the environment, and the binding of arguments to parameters.
#include <algorithm>
#include <ctime>

#include "model/templates/jinja/builtins.h"

namespace kvasir::jinja {

namespace {

constexpr std::string_view kFunctions[] = {"namespace", "range", "dict", "raise_exception", "strftime_now"};
constexpr uint64_t kLongestRange = 100'000;  // that of Jinja's sandbox

Status bad_call(std::string_view what) {
  return Status(ErrorCode::kInvalidArgument, std::string(what));
}

Result<Value> make_range(Environment* env, const Arguments& arguments) {
  int64_t parts[3] = {0, 0, 1};
  const size_t count = arguments.positional.size();
  if (count < 1 || count > 3 || !arguments.named.empty())
    return bad_call("range() takes one to three integers");
  for (size_t i = 0; i < count; ++i) {
    if (!arguments.positional[i].is_integral()) return bad_call("range() takes one to three integers");
    parts[count == 1 ? 1 : i] = arguments.positional[i].as_int();
  }
  const auto [begin, end, step] = parts;
  if (step == 0) return bad_call("the step of range() is zero");
  // In unsigned arithmetic no distance between two integers overflows.
  const bool empty = step > 0 ? begin >= end : begin <= end;
  const uint64_t distance = step > 0 ? static_cast<uint64_t>(end) - static_cast<uint64_t>(begin)
                                     : static_cast<uint64_t>(begin) - static_cast<uint64_t>(end);
  const uint64_t stride = step > 0 ? static_cast<uint64_t>(step) : uint64_t{0} - static_cast<uint64_t>(step);
  const uint64_t size = empty ? 0 : (distance - 1) / stride + 1;
  if (size > kLongestRange)
    return error(ErrorCode::kInvalidArgument, "range() is longer than {}", kLongestRange);
  std::vector<Value> items;
  items.reserve(size);
  for (uint64_t i = 0; i < size; ++i) {
    items.emplace_back(static_cast<int64_t>(static_cast<uint64_t>(begin) + i * static_cast<uint64_t>(step)));
  }
  return env->make_list(std::move(items));
}

// The entries of one dict, followed by the named arguments.
Result<Value> make_mapping(Environment* env, std::string_view name, const Arguments& arguments) {
  std::vector<std::pair<std::string, Value>> items;
  if (arguments.positional.size() > 1 ||
      (arguments.positional.size() == 1 && !arguments.positional[0].is_dict())) {
    return error(ErrorCode::kInvalidArgument, "{}() takes one dict and named arguments", name);
  }
  if (!arguments.positional.empty()) items = arguments.positional[0].as_dict().items;
  for (const auto& argument : arguments.named) items.push_back(argument);
  return env->make_dict(std::move(items));
}

Result<Value> format_now(Environment* env, const Arguments& arguments) {
  KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind("strftime_now", {"format"}, 1));
  if (!bound[0].is_string() || bound[0].as_string().size() > 256) {
    return bad_call("strftime_now() takes a string of at most 256 bytes");
  }
  if (!env->now_seconds()) return bad_call("strftime_now() is called, but no clock was given");
  const auto seconds = static_cast<std::time_t>(*env->now_seconds());
  std::tm utc{};
  if (gmtime_r(&seconds, &utc) == nullptr) return bad_call("strftime_now(): the clock is out of range");
  // The process keeps the locale "C", so names of days and months are English. strftime() returns 0 both for
  // an empty result and for one that does not fit; the buffer is larger than any format can fill.
  char buffer[8192];
  const size_t size = std::strftime(buffer, sizeof(buffer), bound[0].as_string().c_str(), &utc);
  return env->make_string(marked_as_whole(std::string(buffer, size), bound[0].as_marked()));
}

}  // namespace

bool is_known_function(std::string_view name) {
  return std::find(std::begin(kFunctions), std::end(kFunctions), name) != std::end(kFunctions);
}

Result<Value> call_function(Environment* env, std::string_view name, const Arguments& arguments) {
  KV_RETURN_IF_ERROR(env->spend(1));
  if (name == "range") return make_range(env, arguments);
  if (name == "dict") return make_mapping(env, name, arguments);
  if (name == "strftime_now") return format_now(env, arguments);
  if (name == "raise_exception") {
    KV_ASSIGN_OR_RETURN(const auto bound, arguments.bind(name, {"message"}, 1));
    KV_RETURN_IF_ERROR(env->spend(bound[0].weight()));
    return Status(ErrorCode::kInvalidArgument, to_text(bound[0]));
  }
  KV_ASSIGN_OR_RETURN(const Value attributes, make_mapping(env, name, arguments));
  auto space = std::make_shared<Namespace>();
  space->attributes = attributes.as_dict();
  return Value(Value::NamespacePtr(std::move(space)));
}

Result<std::vector<Value>> Arguments::bind(std::string_view callee,
                                           std::initializer_list<std::string_view> parameters,
                                           size_t required) const {
  if (positional.size() > parameters.size()) {
    return error(ErrorCode::kInvalidArgument, "'{}' takes at most {} arguments, not {}", callee,
                 parameters.size(), positional.size());
  }
  std::vector<Value> bound = positional;
  bound.resize(parameters.size());
  std::vector<bool> given(parameters.size(), false);
  std::fill_n(given.begin(), positional.size(), true);
  for (const auto& [name, value] : named) {
    const auto found = std::find(parameters.begin(), parameters.end(), name);
    const auto i = static_cast<size_t>(found - parameters.begin());
    if (found == parameters.end() || given[i]) {
      return error(ErrorCode::kInvalidArgument, "'{}' does not take the argument '{}'", callee, name);
    }
    bound[i] = value;
    given[i] = true;
  }
  for (size_t i = 0; i < required; ++i) {
    if (!given[i]) {
      return error(ErrorCode::kInvalidArgument, "'{}' needs the argument '{}'", callee,
                   *(parameters.begin() + i));
    }
  }
  return bound;
}

}  // namespace kvasir::jinja
