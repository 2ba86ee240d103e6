#include "base/base64.h"

#include <algorithm>
#include <cstddef>
#include <cstdint>

namespace kvasir {
namespace {

constexpr std::string_view kBase64Digits = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

}  // namespace

std::string to_base64(std::string_view bytes) {
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t at = 0; at < bytes.size(); at += 3) {
    const size_t have = std::min<size_t>(3, bytes.size() - at);
    uint32_t bits = 0;
    for (size_t i = 0; i < 3; ++i) {
      bits = bits << 8 | (i < have ? static_cast<uint8_t>(bytes[at + i]) : 0);
    }
    for (size_t i = 0; i < 4; ++i) {
      out += i <= have ? kBase64Digits[bits >> (18 - 6 * i) & 63] : '=';
    }
  }
  return out;
}

std::optional<std::string> from_base64(std::string_view text) {
  if (text.size() % 4 != 0) return std::nullopt;
  std::string out;
  out.reserve(text.size() / 4 * 3);
  for (size_t at = 0; at < text.size(); at += 4) {
    const std::string_view group = text.substr(at, 4);
    size_t digits = std::min(group.find('='), group.size());
    const bool last = at + 4 == text.size();
    if (digits < 2 || (digits < 4 && !last) || (digits == 2 && group[3] != '=')) return std::nullopt;
    uint32_t bits = 0;
    for (size_t i = 0; i < 4; ++i) {
      const size_t digit = i < digits ? kBase64Digits.find(group[i]) : 0;
      if (digit == std::string_view::npos) return std::nullopt;
      bits = bits << 6 | static_cast<uint32_t>(digit);
    }
    // Bits that no byte takes are 0.
    if ((digits == 2 && (bits & 0xffff)) || (digits == 3 && (bits & 0xff))) return std::nullopt;
    for (size_t i = 0; i + 1 < digits; ++i) out += static_cast<char>(bits >> (16 - 8 * i) & 0xff);
  }
  return out;
}

}  // namespace kvasir
