// Integers have 64 bits; an overflow is an error, where Python's integers would grow.
#include "model/templates/jinja/operators.h"

#include <algorithm>
#include <cmath>

#include "model/templates/jinja/text.h"
#include "model/tokenizers/utf8.h"

namespace kvasir::jinja {

namespace {

template <typename... Args>
Status wrong(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kInvalidArgument, format, std::forward<Args>(args)...);
}

Status overflow() {
  return wrong("an integer does not fit in 64 bits");
}

Result<Value> power(int64_t base, int64_t exponent) {
  if (exponent < 0) return Value(std::pow(static_cast<double>(base), static_cast<double>(exponent)));
  int64_t result = 1;
  while (exponent > 0) {
    if ((exponent & 1) && __builtin_mul_overflow(result, base, &result)) return overflow();
    exponent >>= 1;
    if (exponent > 0 && __builtin_mul_overflow(base, base, &base)) return overflow();
  }
  return Value(result);
}

Result<Value> integer_arithmetic(std::string_view op, int64_t a, int64_t b) {
  int64_t result = 0;
  if (op == "+") return __builtin_add_overflow(a, b, &result) ? Result<Value>(overflow()) : Value(result);
  if (op == "-") return __builtin_sub_overflow(a, b, &result) ? Result<Value>(overflow()) : Value(result);
  if (op == "*") return __builtin_mul_overflow(a, b, &result) ? Result<Value>(overflow()) : Value(result);
  if (op == "**") return power(a, b);
  if (b == 0) return wrong("division by zero");
  if (op == "/") return Value(static_cast<double>(a) / static_cast<double>(b));
  if (b == -1) return op == "%" ? Value(int64_t{0}) : integer_arithmetic("-", 0, a);
  // Python rounds towards minus infinity, and the remainder has the divisor's sign.
  const int64_t remainder = a % b;
  const bool adjust = remainder != 0 && (remainder < 0) != (b < 0);
  if (op == "%") return Value(adjust ? remainder + b : remainder);
  return Value(adjust ? a / b - 1 : a / b);
}

Result<Value> float_arithmetic(std::string_view op, double a, double b) {
  if (op == "+") return Value(a + b);
  if (op == "-") return Value(a - b);
  if (op == "*") return Value(a * b);
  if (op == "**") return Value(std::pow(a, b));
  if (b == 0) return wrong("division by zero");
  if (op == "/") return Value(a / b);
  double remainder = std::fmod(a, b);
  if (remainder != 0 && (remainder < 0) != (b < 0)) remainder += b;
  return Value(op == "%" ? remainder : std::floor((a - remainder) / b));
}

Result<Value> repeat(Environment* env, const MarkedText& text, int64_t times) {
  const auto count = static_cast<uint64_t>(std::max<int64_t>(times, 0));
  if (count > 0 && text.size() > env->limits().bytes / count) {
    return wrong("a string of {} bytes cannot be repeated {} times", text.size(), times);
  }
  KV_RETURN_IF_ERROR(env->spend_bytes((text.size() + text.mark_bytes()) * count));
  MarkedText out;
  for (uint64_t i = 0; i < count && text.size() > 0; ++i) out.append(text);
  return env->make_string(std::move(out));
}

Result<Value> concatenate_lists(Environment* env, const List& a, const List& b) {
  KV_RETURN_IF_ERROR(env->spend_bytes((a.items.size() + b.items.size()) * sizeof(Value)));
  std::vector<Value> items = a.items;
  items.insert(items.end(), b.items.begin(), b.items.end());
  return env->make_list(std::move(items), a.tuple);
}

Result<bool> less(Environment* env, const Value& a, const Value& b, bool or_equal);

Result<bool> less_lists(Environment* env, const List& a, const List& b, bool or_equal) {
  const size_t common = std::min(a.items.size(), b.items.size());
  for (size_t i = 0; i < common; ++i) {
    if (!equal(a.items[i], b.items[i])) return less(env, a.items[i], b.items[i], or_equal);
  }
  return a.items.size() < b.items.size() || (or_equal && a.items.size() == b.items.size());
}

Result<bool> less(Environment* env, const Value& a, const Value& b, bool or_equal) {
  if (a.is_integral() && b.is_integral())
    return or_equal ? a.as_int() <= b.as_int() : a.as_int() < b.as_int();
  if (a.is_number() && b.is_number()) {
    return or_equal ? a.as_float() <= b.as_float() : a.as_float() < b.as_float();
  }
  // UTF-8 orders like the code points that it spells.
  if (a.is_string() && b.is_string()) {
    const int order = a.as_string().compare(b.as_string());
    return or_equal ? order <= 0 : order < 0;
  }
  if (a.is_list() && b.is_list() && a.as_list().tuple == b.as_list().tuple) {
    return less_lists(env, a.as_list(), b.as_list(), or_equal);
  }
  return wrong("'{}' and '{}' have no order", a.type_name(), b.type_name());
}

Result<bool> contains(Environment* env, const Value& container, const Value& item) {
  KV_RETURN_IF_ERROR(env->spend(container.weight()));
  if (container.is_string()) {
    if (!item.is_string()) return wrong("'in' a string needs a string, not '{}'", item.type_name());
    return container.as_string().find(item.as_string()) != std::string::npos;
  }
  if (container.is_dict()) return container.as_dict().find_value(item) != nullptr;
  if (container.is_list()) {
    const auto& items = container.as_list().items;
    return std::any_of(items.begin(), items.end(), [&](const Value& x) { return equal(x, item); });
  }
  if (container.is_undefined()) return false;
  return wrong("'in' does not work on '{}'", container.type_name());
}

// Python's rules for the ends of a slice over `size` elements.
struct SliceRange {
  int64_t begin;
  int64_t end;
  int64_t step;
};

Result<SliceRange> slice_range(int64_t size, const Value& begin, const Value& end, const Value& step) {
  for (const Value* part : {&begin, &end, &step}) {
    if (!part->is_undefined() && !part->is_none() && !part->is_integral()) {
      return wrong("a slice needs integers, not '{}'", part->type_name());
    }
  }
  SliceRange range{0, 0, step.is_integral() ? step.as_int() : 1};
  if (range.step == 0) return wrong("the step of a slice is zero");
  const bool back = range.step < 0;
  auto place = [&](const Value& part, int64_t missing) {
    if (!part.is_integral()) return missing;
    int64_t at = part.as_int();
    if (at < 0)
      at = at < -size ? -1 : at + size;
    else if (at >= size)
      at = size;
    return back ? std::min(at, size - 1) : std::max<int64_t>(at, 0);
  };
  range.begin = place(begin, back ? size - 1 : 0);
  range.end = place(end, back ? -1 : size);
  return range;
}

std::vector<int64_t> slice_indices(const SliceRange& range, int64_t size) {
  std::vector<int64_t> out;
  for (int64_t i = range.begin; range.step > 0 ? i < range.end : i > range.end;) {
    out.push_back(i);
    // A step beyond the size ends the slice; adding it could overflow.
    if (range.step > size || range.step < -size) break;
    i += range.step;
  }
  return out;
}

// The text with the characters that are special in HTML escaped.
Result<MarkedText> escape_html(Environment* env, const Value& value) {
  constexpr std::pair<std::string_view, const char*> kEntities[] = {
      {"&", "&amp;"}, {">", "&gt;"}, {"<", "&lt;"}, {"'", "&#39;"}, {"\"", "&#34;"}};
  MarkedText out = value.as_marked();
  for (const auto& [character, entity] : kEntities) {
    KV_RETURN_IF_ERROR(env->spend_bytes(out.size() + out.mark_bytes()));
    out = replace(out, character, MarkedText(entity), -1);
  }
  KV_RETURN_IF_ERROR(env->spend_bytes(out.size() + out.mark_bytes()));
  return out;
}

Result<Value> add_markup(Environment* env, const Value& a, const Value& b) {
  KV_ASSIGN_OR_RETURN(MarkedText text,
                      a.is_markup() ? Result<MarkedText>(a.as_marked()) : escape_html(env, a));
  KV_ASSIGN_OR_RETURN(const MarkedText right,
                      b.is_markup() ? Result<MarkedText>(b.as_marked()) : escape_html(env, b));
  text.append(right);
  KV_ASSIGN_OR_RETURN(const Value sum, env->make_string(std::move(text)));
  return sum.as_markup();
}

Status reading_undefined(std::string_view what) {
  return wrong("'{}' of something undefined is read", what);
}

}  // namespace

Result<Value> apply_binary(Environment* env, std::string_view op, const Value& a, const Value& b) {
  if (op == "~") {
    KV_RETURN_IF_ERROR(env->spend(add_weights(a.weight(), b.weight())));
    MarkedText text = to_marked(a);
    text.append(to_marked(b));
    return env->make_string(std::move(text));
  }
  if (a.is_integral() && b.is_integral()) return integer_arithmetic(op, a.as_int(), b.as_int());
  if (a.is_number() && b.is_number()) return float_arithmetic(op, a.as_float(), b.as_float());
  if (op == "+" && a.is_string() && b.is_string()) {
    if (a.is_markup() || b.is_markup()) return add_markup(env, a, b);
    KV_RETURN_IF_ERROR(env->spend_bytes(a.as_string().size() + b.as_string().size()));
    MarkedText text = a.as_marked();
    text.append(b.as_marked());
    KV_RETURN_IF_ERROR(env->spend_bytes(text.mark_bytes()));
    return Value(std::move(text));
  }
  if (op == "+" && a.is_list() && b.is_list() && a.as_list().tuple == b.as_list().tuple) {
    return concatenate_lists(env, a.as_list(), b.as_list());
  }
  if (op == "*" && a.is_string() && b.is_integral()) return repeat(env, a.as_marked(), b.as_int());
  if (op == "*" && a.is_integral() && b.is_string()) return repeat(env, b.as_marked(), a.as_int());
  return wrong("'{}' does not work on '{}' and '{}'", op, a.type_name(), b.type_name());
}

Result<Value> apply_sign(std::string_view op, const Value& value) {
  if (value.is_integral()) return integer_arithmetic(op, 0, value.as_int());
  if (value.is_float()) return Value(op == "-" ? -value.as_float() : value.as_float());
  return wrong("the sign '{}' does not work on '{}'", op, value.type_name());
}

Result<bool> apply_compare(Environment* env, std::string_view op, const Value& a, const Value& b) {
  KV_RETURN_IF_ERROR(env->spend(std::min(a.weight(), b.weight())));
  if (op == "==") return equal(a, b);
  if (op == "!=") return !equal(a, b);
  if (op == "in") return contains(env, b, a);
  if (op == "not in") {
    KV_ASSIGN_OR_RETURN(const bool found, contains(env, b, a));
    return !found;
  }
  if (op == "<") return less(env, a, b, false);
  if (op == "<=") return less(env, a, b, true);
  if (op == ">") return less(env, b, a, false);
  return less(env, b, a, true);
}

Result<Value> get_attribute(Environment* env, const Value& object, std::string_view name) {
  if (object.is_undefined()) return reading_undefined(name);
  if (!object.is_dict() && !object.is_namespace()) return Value();
  const Dict& dict = object.is_dict() ? object.as_dict() : object.as_namespace().attributes;
  KV_RETURN_IF_ERROR(env->spend(dict.items.size() / 8));
  const Value* found = dict.find(name);
  return found ? *found : Value();
}

Result<Value> get_item(Environment* env, const Value& object, const Value& key) {
  if (key.is_string()) return get_attribute(env, object, key.as_string());
  if (object.is_undefined()) return reading_undefined(key.is_int() ? to_text(key) : key.type_name());
  if (!key.is_integral()) return Value();
  if (object.is_dict()) {
    KV_RETURN_IF_ERROR(env->spend(object.as_dict().items.size() / 8));
    const Value* found = object.as_dict().find_value(key);
    return found ? *found : Value();
  }
  const int64_t index = key.as_int();
  auto place = [index](size_t size) {
    const auto signed_size = static_cast<int64_t>(size);
    const int64_t at = index < 0 && index >= -signed_size ? index + signed_size : index;
    return at < 0 || at >= signed_size ? -1 : at;
  };
  if (object.is_list()) {
    const auto& items = object.as_list().items;
    const int64_t at = place(items.size());
    return at < 0 ? Value() : items[static_cast<size_t>(at)];
  }
  if (object.is_string()) {
    const std::string& text = object.as_string();
    KV_RETURN_IF_ERROR(env->spend(object.weight() * 2));
    int64_t at = place(length_of(text));
    if (at < 0) return Value();
    size_t begin = 0;
    for (; at > 0; --at) begin += decode_utf8(text, begin).length;
    const std::string_view character = std::string_view(text).substr(begin, decode_utf8(text, begin).length);
    return env->make_string(object.as_marked().slice(character));
  }
  return Value();
}

Result<Value> get_slice(Environment* env, const Value& object, const Value& begin, const Value& end,
                        const Value& step) {
  if (object.is_list()) {
    const List& list = object.as_list();
    const auto size = static_cast<int64_t>(list.items.size());
    KV_ASSIGN_OR_RETURN(const SliceRange range, slice_range(size, begin, end, step));
    KV_RETURN_IF_ERROR(env->spend(list.items.size() / 4));
    std::vector<Value> items;
    for (const int64_t i : slice_indices(range, size)) items.push_back(list.items[static_cast<size_t>(i)]);
    return env->make_list(std::move(items), list.tuple);
  }
  if (object.is_string()) {
    const std::string& text = object.as_string();
    KV_RETURN_IF_ERROR(env->spend(text.size() / 4));
    const std::vector<size_t> offsets = offsets_of(text);
    const auto size = static_cast<int64_t>(offsets.size() - 1);
    KV_ASSIGN_OR_RETURN(const SliceRange range, slice_range(size, begin, end, step));
    MarkedText out;
    for (const int64_t i : slice_indices(range, size)) {
      const auto at = static_cast<size_t>(i);
      out.append(object.as_marked(), offsets[at], offsets[at + 1]);
    }
    return env->make_string(std::move(out));
  }
  if (object.is_undefined()) return reading_undefined("[:]");
  return Value();
}

Result<std::shared_ptr<const List>> iterate(Environment* env, const Value& value) {
  std::vector<Value> items;
  if (value.is_list()) {
    KV_RETURN_IF_ERROR(env->spend(1));
    return value.list_pointer();
  }
  if (value.is_string()) {
    const std::string& text = value.as_string();
    KV_RETURN_IF_ERROR(env->spend_bytes(text.size() * (sizeof(Value) + 112)));
    for (size_t i = 0; i < text.size();) {
      const size_t length = decode_utf8(text, i).length;
      items.emplace_back(value.as_marked().slice(std::string_view(text).substr(i, length)));
      i += length;
    }
  } else if (value.is_dict()) {
    const Dict& dict = value.as_dict();
    for (size_t i = 0; i < dict.items.size(); ++i) {
      KV_RETURN_IF_ERROR(env->spend_bytes(dict.items[i].first.size() + 32));
      items.push_back(dict.key(i));
    }
  } else if (!value.is_undefined()) {
    return wrong("'{}' has no items", value.type_name());
  }
  KV_ASSIGN_OR_RETURN(const Value list, env->make_list(std::move(items)));
  return list.list_pointer();
}

Result<int64_t> length_of_value(Environment* env, const Value& value) {
  if (value.is_string()) {
    KV_RETURN_IF_ERROR(env->spend(value.weight()));
    return static_cast<int64_t>(length_of(value.as_string()));
  }
  if (value.is_list()) return static_cast<int64_t>(value.as_list().items.size());
  if (value.is_dict()) return static_cast<int64_t>(value.as_dict().items.size());
  if (value.is_undefined()) return int64_t{0};
  return wrong("'{}' has no length", value.type_name());
}

}  // namespace kvasir::jinja
