#include "base/untrusted_text.h"

#include <fmt/format.h>

namespace kvasir {

std::string one_line(std::string_view text, size_t most) {
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (i == most) return out + "...";
    const auto c = static_cast<unsigned char>(text[i]);
    if (c >= 0x20 && c < 0x7f && c != '\'' && c != '\\') {
      out += text[i];
    } else {
      out += fmt::format("\\x{:02x}", c);
    }
  }
  return out;
}

bool nests_deeper(std::string_view json, int most) {
  int depth = 0;
  bool in_string = false;
  for (size_t i = 0; i < json.size(); ++i) {
    const char c = json[i];
    if (in_string && c == '\\') {
      ++i;
    } else if (c == '"') {
      in_string = !in_string;
    } else if (!in_string && (c == '{' || c == '[')) {
      if (++depth > most) return true;
    } else if (!in_string && (c == '}' || c == ']')) {
      --depth;
    }
  }
  return false;
}

}  // namespace kvasir
