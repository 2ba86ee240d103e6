// str.format(), as far as templates use it.
#include <charconv>

#include "model/templates/jinja/builtins.h"

namespace kvasir::jinja {

namespace {

Status bad_format(std::string_view what) {
  return error(ErrorCode::kInvalidArgument, "format() {}", what);
}

// The argument that the text within braces names; `automatic` counts those that are empty.
Result<Value> format_argument(std::string_view field, const Arguments& arguments, size_t* automatic) {
  for (const auto& [name, value] : arguments.named) {
    if (name == field) return value;
  }
  size_t index = 0;
  if (field.empty()) {
    index = (*automatic)++;
  } else {
    const auto parsed = std::from_chars(field.data(), field.data() + field.size(), index);
    if (parsed.ec != std::errc() || parsed.ptr != field.data() + field.size()) {
      return bad_format("supports {}, {0} and {name} alone");
    }
  }
  if (index >= arguments.positional.size()) return bad_format("has too few arguments");
  return arguments.positional[index];
}

}  // namespace

Result<Value> format_method(Environment* env, std::string_view, const Value& object,
                            const Arguments& arguments) {
  const std::string& text = object.as_string();
  KV_RETURN_IF_ERROR(env->spend_bytes(text.size()));
  MarkedText out;
  size_t automatic = 0;
  for (size_t i = 0; i < text.size();) {
    const size_t brace = std::min(text.find_first_of("{}", i), text.size());
    out.append(object.as_marked(), i, brace);
    if (brace == text.size()) break;
    if (brace + 1 < text.size() && text[brace + 1] == text[brace]) {
      out.append(object.as_marked(), brace, brace + 1);
      i = brace + 2;
      continue;
    }
    const size_t close = text.find('}', brace);
    if (text[brace] == '}' || close == std::string::npos)
      return bad_format("has a brace without its partner");
    const std::string_view field = std::string_view(text).substr(brace + 1, close - brace - 1);
    KV_ASSIGN_OR_RETURN(const Value value, format_argument(field, arguments, &automatic));
    KV_RETURN_IF_ERROR(env->spend(value.weight()));
    const MarkedText shown = to_marked(value);
    KV_RETURN_IF_ERROR(env->spend_bytes(shown.size() + shown.mark_bytes()));
    out.append(shown);
    i = close + 1;
  }
  return env->make_string(std::move(out));
}

}  // namespace kvasir::jinja
