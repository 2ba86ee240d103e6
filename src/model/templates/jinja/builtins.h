// The filters, tests, methods and functions that templates may use. Errors come without a line.
#pragma once

#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/templates/jinja/environment.h"
#include "model/templates/jinja/value.h"

namespace kvasir::jinja {

struct Arguments {
  std::vector<Value> positional;
  std::vector<std::pair<std::string, Value>> named;

  // The arguments in the order of `parameters`; undefined where none is given.
  // kInvalidArgument: too few (below `required`), too many, unknown or given twice.
  Result<std::vector<Value>> bind(std::string_view callee, std::initializer_list<std::string_view> parameters,
                                  size_t required) const;
};

// The parser calls these, so that a template with an unknown name is refused when it is loaded. Inside {% if
// %} and macros an unknown name fails only when it is reached: templates have branches for other engines.
bool is_known_filter(std::string_view name);
bool is_known_test(std::string_view name);
bool is_known_method(std::string_view name);
bool is_known_function(std::string_view name);

// kUnsupported: the filter or the test is not known. REQUIRES of call_function(): the name is known.
Result<Value> call_filter(Environment* env, std::string_view name, const Value& input,
                          const Arguments& arguments);
Result<bool> call_test(Environment* env, std::string_view name, const Value& input,
                       const Arguments& arguments);
Result<Value> call_method(Environment* env, std::string_view name, const Value& object,
                          const Arguments& arguments);
Result<Value> call_function(Environment* env, std::string_view name, const Arguments& arguments);

// "a.b.0" of a value: what the argument `attribute` of filters means.
Result<Value> get_path(Environment* env, Value value, std::string_view path);
// The filters that need an order or equality of items: dictsort, max, min, sort and unique
// (filters_order.cc).
Result<Value> order_filter(Environment* env, std::string_view name, const Value& input,
                           const Arguments& arguments);
// str.format() with {}, {0} and {name}; kInvalidArgument: anything else within braces (format.cc).
Result<Value> format_method(Environment* env, std::string_view name, const Value& object,
                            const Arguments& arguments);

// `text`, computed from all bytes of `from` together, such as their upper case: trusted if all of those
// bytes are.
MarkedText marked_as_whole(std::string text, const MarkedText& from);

struct JsonStyle {
  bool ascii = false;   // escape all other characters
  int64_t indent = -1;  // spaces per level; negative: all on one line
};
// json.dumps(value, ensure_ascii=style.ascii, indent=style.indent)
Result<std::string> to_json(Environment* env, const Value& value, const JsonStyle& style);

}  // namespace kvasir::jinja
