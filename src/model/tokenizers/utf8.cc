// The well-formed byte sequences of Unicode, table 3-7.
#include "model/tokenizers/utf8.h"

#include "base/check.h"

namespace kvasir {

namespace {

// What a lead byte asks for: the sequence's length and the range of its second byte.
struct Lead {
  int length;
  unsigned char low;
  unsigned char high;
};

Lead classify_lead(unsigned char byte) {
  if (byte < 0xC2) return {0, 0, 0};
  if (byte < 0xE0) return {2, 0x80, 0xBF};
  if (byte == 0xE0) return {3, 0xA0, 0xBF};
  if (byte == 0xED) return {3, 0x80, 0x9F};
  if (byte < 0xF0) return {3, 0x80, 0xBF};
  if (byte == 0xF0) return {4, 0x90, 0xBF};
  if (byte < 0xF4) return {4, 0x80, 0xBF};
  if (byte == 0xF4) return {4, 0x80, 0x8F};
  return {0, 0, 0};
}

}  // namespace

Utf8Step decode_utf8(std::string_view text, size_t position) {
  const auto first = static_cast<unsigned char>(text[position]);
  if (first < 0x80) return {first, 1, Utf8State::kComplete};
  const Lead lead = classify_lead(first);
  if (lead.length == 0) return {kReplacementCharacter, 1, Utf8State::kInvalid};

  char32_t code_point = first & (0xFFu >> (lead.length + 1));
  for (int i = 1; i < lead.length; ++i) {
    const size_t at = position + static_cast<size_t>(i);
    if (at >= text.size()) return {kReplacementCharacter, static_cast<size_t>(i), Utf8State::kIncomplete};
    const auto byte = static_cast<unsigned char>(text[at]);
    const unsigned char low = i == 1 ? lead.low : 0x80;
    const unsigned char high = i == 1 ? lead.high : 0xBF;
    if (byte < low || byte > high) {
      return {kReplacementCharacter, static_cast<size_t>(i), Utf8State::kInvalid};
    }
    code_point = (code_point << 6) | (byte & 0x3Fu);
  }
  return {code_point, static_cast<size_t>(lead.length), Utf8State::kComplete};
}

void append_utf8(char32_t c, std::string* out) {
  KV_CHECK(c <= 0x10FFFF && (c < 0xD800 || c > 0xDFFF), "U+{:X} is no scalar value",
           static_cast<uint32_t>(c));
  auto put = [out](char32_t byte) { out->push_back(static_cast<char>(byte)); };
  if (c < 0x80) {
    put(c);
  } else if (c < 0x800) {
    put(0xC0 | (c >> 6));
    put(0x80 | (c & 0x3F));
  } else if (c < 0x10000) {
    put(0xE0 | (c >> 12));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  } else {
    put(0xF0 | (c >> 18));
    put(0x80 | ((c >> 12) & 0x3F));
    put(0x80 | ((c >> 6) & 0x3F));
    put(0x80 | (c & 0x3F));
  }
}

bool is_valid_utf8(std::string_view text) {
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text, i);
    if (step.state != Utf8State::kComplete) return false;
    i += step.length;
  }
  return true;
}

std::string replace_invalid_utf8(std::string_view text) {
  std::string out;
  out.reserve(text.size());
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text, i);
    if (step.state == Utf8State::kComplete) {
      out.append(text.substr(i, step.length));
    } else {
      append_utf8(kReplacementCharacter, &out);
    }
    i += step.length;
  }
  return out;
}

}  // namespace kvasir
