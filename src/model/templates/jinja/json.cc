// The filter tojson as Hugging Face redefines it: plain JSON, nothing escaped for HTML.
#include <fmt/format.h>

#include "model/templates/jinja/builtins.h"
#include "model/tokenizers/utf8.h"

namespace kvasir::jinja {

namespace {

void append_escape(uint32_t unit, std::string* out) {
  out->append(fmt::format("\\u{:04x}", unit));
}

void append_json_string(const std::string& text, bool ascii, std::string* out) {
  out->push_back('"');
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = decode_utf8(text, at);
    const auto code = static_cast<uint32_t>(step.code_point);
    const char c = text[at];
    constexpr std::string_view kEscaped = "\"\\\n\r\t\b\f";
    constexpr std::string_view kNames = "\"\\nrtbf";
    if (const size_t i = kEscaped.find(c); i != std::string_view::npos) {
      out->push_back('\\');
      out->push_back(kNames[i]);
    } else if (code < 0x20 || (ascii && code > 0x7E && code < 0x10000)) {
      append_escape(code, out);
    } else if (ascii && code >= 0x10000) {
      append_escape(0xD7C0 + (code >> 10), out);
      append_escape(0xDC00 + (code & 0x3FF), out);
    } else {
      out->append(text, at, step.length);
    }
    at += step.length;
  }
  out->push_back('"');
}

class JsonWriter {
 public:
  JsonWriter(Environment* env, const JsonStyle& style)
      : env_(env), ascii_(style.ascii), indent_(style.indent) {}

  Status write(const Value& value, int64_t level) {
    if (value.is_list()) return write_list(value.as_list(), level);
    if (value.is_dict()) return write_dict(value.as_dict(), level);
    if (value.is_string()) {
      append_json_string(value.as_string(), ascii_, &out);
    } else if (value.is_bool()) {
      out += value.as_bool() ? "true" : "false";
    } else if (value.is_none()) {
      out += "null";
    } else if (value.is_number()) {
      const std::string text = to_text(value);
      out += text == "nan" ? "NaN" : text == "inf" ? "Infinity" : text == "-inf" ? "-Infinity" : text;
    } else {
      return error(ErrorCode::kInvalidArgument, "'{}' cannot be written as JSON", value.type_name());
    }
    return Status();
  }

  std::string out;

 private:
  Status write_list(const List& list, int64_t level) {
    out += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      KV_RETURN_IF_ERROR(separate(i > 0, level + 1));
      KV_RETURN_IF_ERROR(write(list.items[i], level + 1));
    }
    if (!list.items.empty()) KV_RETURN_IF_ERROR(new_line(level));
    out += ']';
    return Status();
  }

  Status write_dict(const Dict& dict, int64_t level) {
    out += '{';
    for (size_t i = 0; i < dict.items.size(); ++i) {
      KV_RETURN_IF_ERROR(separate(i > 0, level + 1));
      append_json_string(dict.items[i].first, ascii_, &out);
      out += ": ";
      KV_RETURN_IF_ERROR(write(dict.items[i].second, level + 1));
    }
    if (!dict.items.empty()) KV_RETURN_IF_ERROR(new_line(level));
    out += '}';
    return Status();
  }

  Status separate(bool comma, int64_t level) {
    if (comma) out += indent_ < 0 ? ", " : ",";
    return new_line(level);
  }

  Status new_line(int64_t level) {
    if (indent_ < 0) return Status();
    const auto spaces = static_cast<uint64_t>(indent_ * level);
    KV_RETURN_IF_ERROR(env_->spend_bytes(spaces));
    out += '\n';
    out.append(spaces, ' ');
    return Status();
  }

  Environment* env_;
  const bool ascii_;
  const int64_t indent_;
};

}  // namespace

Result<std::string> to_json(Environment* env, const Value& value, const JsonStyle& style) {
  if (style.indent > 64) {
    return error(ErrorCode::kInvalidArgument, "an indent of {} is too wide", style.indent);
  }
  // A step of weight is at most 16 bytes of text, and JSON makes at most six of one.
  KV_RETURN_IF_ERROR(env->spend(value.weight()));
  JsonWriter writer(env, style);
  KV_RETURN_IF_ERROR(writer.write(value, 0));
  return std::move(writer.out);
}

}  // namespace kvasir::jinja
