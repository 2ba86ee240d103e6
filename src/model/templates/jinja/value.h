// The values that a template computes with. They follow Python's, as far as chat templates can tell.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "model/tokenizers/marked_text.h"

namespace kvasir::jinja {

class Value;
struct Stmt;

struct List {
  std::vector<Value> items;
  bool tuple = false;   // differs from a list only in how it prints and compares
  int depth = 1;        // 1 + that of the deepest item
  uint64_t weight = 1;  // of all items together, counted as often as they are named: what printing it costs
};

// Few keys, in the order in which they were written: all strings, or all integers.
struct Dict {
  std::vector<std::pair<std::string, Value>> items;  // an integer as its decimal digits
  int depth = 1;
  uint64_t weight = 1;
  bool integer_keys = false;

  const Value* find(std::string_view key) const;  // null: no such string
  const Value* find_value(const Value& key) const;
  Value key(size_t i) const;
};

// The result of namespace(): the only value that a template can change.
struct Namespace {
  Dict attributes;
};

struct Undefined {};
struct None {};
// A macro, or with a null definition a function of the environment. The syntax tree outlives every value of a
// rendering.
struct Macro {
  const Stmt* definition;
};

// A small handle; strings, lists and dicts are shared and never change. A string is plain unless it is made
// of a MarkedText: only what a template spells out itself is trusted, and what is made of it byte for byte.
// Not thread-safe only in that a Namespace is not.
class Value {
 public:
  using Text = std::shared_ptr<const MarkedText>;
  using ListPtr = std::shared_ptr<const List>;
  using DictPtr = std::shared_ptr<const Dict>;
  using NamespacePtr = std::shared_ptr<Namespace>;

  Value() = default;  // undefined
  Value(bool value) : data_(value) {}
  Value(int64_t value) : data_(value) {}
  Value(double value) : data_(value) {}
  Value(MarkedText value) : data_(std::make_shared<const MarkedText>(std::move(value))) {}
  Value(std::string value) : Value(MarkedText(std::move(value))) {}
  Value(std::string_view value) : Value(std::string(value)) {}
  Value(const char* value) : Value(std::string(value)) {}
  Value(ListPtr value) : data_(std::move(value)) {}
  Value(DictPtr value) : data_(std::move(value)) {}
  Value(NamespacePtr value) : data_(std::move(value)) {}
  Value(Macro value) : data_(value) {}
  static Value none() {
    Value value;
    value.data_ = None{};
    return value;
  }
  static Value from_size(size_t size) { return Value(static_cast<int64_t>(size)); }

  bool is_undefined() const { return holds<Undefined>(); }
  bool is_none() const { return holds<None>(); }
  bool is_bool() const { return holds<bool>(); }
  bool is_int() const { return holds<int64_t>(); }
  bool is_float() const { return holds<double>(); }
  bool is_string() const { return holds<Text>(); }
  bool is_list() const { return holds<ListPtr>(); }
  bool is_dict() const { return holds<DictPtr>(); }
  bool is_namespace() const { return holds<NamespacePtr>(); }
  bool is_macro() const { return holds<Macro>(); }
  // A string that `+` treats as HTML: it escapes the other string. Only the filter `safe` makes one; all
  // other operations on it give an ordinary string.
  bool is_markup() const { return markup_; }
  Value as_markup() const {
    Value value = *this;
    value.markup_ = true;
    return value;
  }
  // Python counts truth values among the integers.
  bool is_integral() const { return is_int() || is_bool(); }
  bool is_number() const { return is_integral() || is_float(); }

  // REQUIRES of each: the value is of that kind.
  bool as_bool() const { return std::get<bool>(data_); }
  int64_t as_int() const { return is_bool() ? int64_t{as_bool()} : std::get<int64_t>(data_); }
  double as_float() const { return is_float() ? std::get<double>(data_) : static_cast<double>(as_int()); }
  const MarkedText& as_marked() const { return *std::get<Text>(data_); }  // a string with its marks
  const std::string& as_string() const { return as_marked().text(); }
  const List& as_list() const { return *std::get<ListPtr>(data_); }
  const ListPtr& list_pointer() const { return std::get<ListPtr>(data_); }
  const Dict& as_dict() const { return *std::get<DictPtr>(data_); }
  Namespace& as_namespace() const { return *std::get<NamespacePtr>(data_); }
  const Stmt* as_macro() const { return std::get<Macro>(data_).definition; }

  // Whether it is the very same object (Python's `is`).
  bool same_as(const Value& other) const;

  // Its truth value in `if`.
  bool truthy() const;
  // "str", "int", "list"...: Python's word, for messages.
  std::string_view type_name() const;
  // The depth of nesting: 0 for scalars, 1 for a container of scalars.
  int depth() const;
  // About how many steps it takes to walk or print the value; saturates.
  uint64_t weight() const;

 private:
  template <typename T>
  bool holds() const {
    return std::holds_alternative<T>(data_);
  }
  std::variant<Undefined, None, bool, int64_t, double, Text, ListPtr, DictPtr, NamespacePtr, Macro> data_;
  bool markup_ = false;
};

// A sum of weights that stops before it overflows.
uint64_t add_weights(uint64_t a, uint64_t b);

// Python's ==.
bool equal(const Value& a, const Value& b);

// A float as Python's repr() prints it: the shortest digits that read back the same.
std::string format_float(double value);

// Appends what {{ value }} prints.
void append_text(const Value& value, std::string* out);
std::string to_text(const Value& value);
// The same with the marks of a string; the text of any other value is plain.
MarkedText to_marked(const Value& value);

}  // namespace kvasir::jinja
