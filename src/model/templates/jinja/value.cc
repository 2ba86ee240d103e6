// Truth, equality and printing, as Python has them.
#include "model/templates/jinja/value.h"

#include <fmt/format.h>
#include <unicode/uchar.h>

#include <algorithm>
#include <charconv>
#include <cmath>

#include "model/tokenizers/utf8.h"

namespace kvasir::jinja {

namespace {

void append_repr(const Value& value, std::string* out);

bool prints(char32_t c) {
  if (c == ' ') return true;
  const uint32_t category = U_GET_GC_MASK(static_cast<UChar32>(c));
  return (category & (U_GC_C_MASK | U_GC_Z_MASK)) == 0;
}

void append_string_repr(const std::string& text, std::string* out) {
  const bool single = text.find('\'') != std::string::npos;
  const bool dual = text.find('"') != std::string::npos;
  const char quote = single && !dual ? '"' : '\'';
  out->push_back(quote);
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text, i);
    const char32_t c = step.code_point;
    if (c == static_cast<char32_t>(quote) || c == '\\') {
      out->push_back('\\');
      out->push_back(static_cast<char>(c));
    } else if (c == '\n') {
      out->append("\\n");
    } else if (c == '\r') {
      out->append("\\r");
    } else if (c == '\t') {
      out->append("\\t");
    } else if (prints(c)) {
      append_utf8(c, out);
    } else {
      const auto number = static_cast<uint32_t>(c);
      out->append(c < 0x100     ? fmt::format("\\x{:02x}", number)
                  : c < 0x10000 ? fmt::format("\\u{:04x}", number)
                                : fmt::format("\\U{:08x}", number));
    }
    i += step.length;
  }
  out->push_back(quote);
}

void append_dict_repr(const Dict& dict, std::string* out) {
  out->push_back('{');
  for (size_t i = 0; i < dict.items.size(); ++i) {
    if (i > 0) out->append(", ");
    append_repr(dict.key(i), out);
    out->append(": ");
    append_repr(dict.items[i].second, out);
  }
  out->push_back('}');
}

void append_list_repr(const List& list, std::string* out) {
  out->push_back(list.tuple ? '(' : '[');
  for (size_t i = 0; i < list.items.size(); ++i) {
    if (i > 0) out->append(", ");
    append_repr(list.items[i], out);
  }
  if (list.tuple && list.items.size() == 1) out->push_back(',');
  out->push_back(list.tuple ? ')' : ']');
}

void append_repr(const Value& value, std::string* out) {
  if (value.is_string()) {
    append_string_repr(value.as_string(), out);
  } else if (value.is_undefined()) {
    out->append("Undefined");
  } else {
    append_text(value, out);
  }
}

bool equal_lists(const List& a, const List& b) {
  return a.tuple == b.tuple &&
         std::equal(a.items.begin(), a.items.end(), b.items.begin(), b.items.end(), equal);
}

bool equal_dicts(const Dict& a, const Dict& b) {
  if (a.items.size() != b.items.size()) return false;
  for (size_t i = 0; i < a.items.size(); ++i) {
    const Value* other = b.find_value(a.key(i));
    if (other == nullptr || !equal(a.items[i].second, *other)) return false;
  }
  return true;
}

}  // namespace

const Value* Dict::find(std::string_view key) const {
  if (integer_keys) return nullptr;
  for (const auto& [name, value] : items) {
    if (name == key) return &value;
  }
  return nullptr;
}

const Value* Dict::find_value(const Value& key) const {
  if (key.is_string()) return find(key.as_string());
  if (!integer_keys || !key.is_integral()) return nullptr;
  const std::string digits = fmt::format("{}", key.as_int());
  const auto found =
      std::find_if(items.begin(), items.end(), [&](const auto& item) { return item.first == digits; });
  return found == items.end() ? nullptr : &found->second;
}

Value Dict::key(size_t i) const {
  const std::string& text = items[i].first;
  if (!integer_keys) return Value(text);
  int64_t integer = 0;
  std::from_chars(text.data(), text.data() + text.size(), integer);
  return Value(integer);
}

bool Value::same_as(const Value& other) const {
  if (data_.index() != other.data_.index()) return false;
  if (is_string()) return std::get<Text>(data_) == std::get<Text>(other.data_);
  if (is_list()) return std::get<ListPtr>(data_) == std::get<ListPtr>(other.data_);
  if (is_dict()) return std::get<DictPtr>(data_) == std::get<DictPtr>(other.data_);
  return equal(*this, other);
}

bool Value::truthy() const {
  if (is_bool()) return as_bool();
  if (is_int()) return as_int() != 0;
  if (is_float()) return as_float() != 0;
  if (is_string()) return !as_string().empty();
  if (is_list()) return !as_list().items.empty();
  if (is_dict()) return !as_dict().items.empty();
  return is_namespace() || is_macro();
}

std::string_view Value::type_name() const {
  if (is_undefined()) return "Undefined";
  if (is_none()) return "NoneType";
  if (is_bool()) return "bool";
  if (is_int()) return "int";
  if (is_float()) return "float";
  if (is_string()) return "str";
  if (is_list()) return as_list().tuple ? "tuple" : "list";
  if (is_dict()) return "dict";
  return is_namespace() ? "namespace" : "macro";
}

int Value::depth() const {
  if (is_list()) return as_list().depth;
  if (is_dict()) return as_dict().depth;
  return 0;
}

uint64_t Value::weight() const {
  if (is_list()) return as_list().weight;
  if (is_dict()) return as_dict().weight;
  if (is_string()) return 1 + as_string().size() / 16;
  if (is_namespace()) {
    uint64_t sum = 1;
    for (const auto& [name, value] : as_namespace().attributes.items) sum = add_weights(sum, value.weight());
    return sum;
  }
  return 1;
}

uint64_t add_weights(uint64_t a, uint64_t b) {
  // Far above every budget, and two of them still do not overflow.
  constexpr uint64_t kHeaviest = uint64_t{1} << 62;
  return std::min(kHeaviest, a + b);
}

bool equal(const Value& a, const Value& b) {
  if (a.is_number() && b.is_number()) {
    if (a.is_integral() && b.is_integral()) return a.as_int() == b.as_int();
    return a.as_float() == b.as_float();
  }
  if (a.is_undefined() || a.is_none()) return a.is_undefined() ? b.is_undefined() : b.is_none();
  if (a.is_string()) return b.is_string() && a.as_string() == b.as_string();
  if (a.is_list()) return b.is_list() && equal_lists(a.as_list(), b.as_list());
  if (a.is_dict()) return b.is_dict() && equal_dicts(a.as_dict(), b.as_dict());
  if (a.is_namespace()) return b.is_namespace() && &a.as_namespace() == &b.as_namespace();
  if (a.is_macro()) return b.is_macro() && a.as_macro() == b.as_macro();
  return false;
}

std::string format_float(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value > 0 ? "inf" : "-inf";
  char buffer[64];
  // Python switches to an exponent at 1e16 and below 1e-4; to_chars would choose by length.
  const double size = std::fabs(value);
  const bool plain = size == 0 || (size >= 1e-4 && size < 1e16);
  const auto style = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto end = std::to_chars(buffer, buffer + sizeof(buffer), value, style);
  std::string out(buffer, end.ptr);
  if (plain && out.find('.') == std::string::npos) out += ".0";
  return out;
}

void append_text(const Value& value, std::string* out) {
  if (value.is_string()) {
    out->append(value.as_string());
  } else if (value.is_none()) {
    out->append("None");
  } else if (value.is_bool()) {
    out->append(value.as_bool() ? "True" : "False");
  } else if (value.is_int()) {
    out->append(fmt::format("{}", value.as_int()));
  } else if (value.is_float()) {
    out->append(format_float(value.as_float()));
  } else if (value.is_list()) {
    append_list_repr(value.as_list(), out);
  } else if (value.is_dict()) {
    append_dict_repr(value.as_dict(), out);
  } else if (value.is_namespace()) {
    out->append("<Namespace ");
    append_dict_repr(value.as_namespace().attributes, out);
    out->push_back('>');
  } else if (value.is_macro()) {
    out->append("<Macro>");
  }
}

std::string to_text(const Value& value) {
  std::string out;
  append_text(value, &out);
  return out;
}

MarkedText to_marked(const Value& value) {
  return value.is_string() ? value.as_marked() : MarkedText(to_text(value));
}

}  // namespace kvasir::jinja
