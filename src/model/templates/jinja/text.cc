// Case mapping is ICU's with the root locale; the rest is done on UTF-8 directly.
#include "model/templates/jinja/text.h"

#include <unicode/ucasemap.h>
#include <unicode/uchar.h>

#include <algorithm>

#include "base/check.h"
#include "model/tokenizers/utf8.h"

namespace kvasir::jinja {

namespace {

// The begin of the code point that ends at `end`.
size_t previous(std::string_view text, size_t end) {
  do {
    --end;
  } while (end > 0 && (static_cast<unsigned char>(text[end]) & 0xC0) == 0x80);
  return end;
}

template <typename Drop>
std::string_view strip_if(std::string_view text, bool left, bool right, Drop drop) {
  while (left && !text.empty()) {
    const Utf8Step step = decode_utf8(text, 0);
    if (!drop(step.code_point)) break;
    text.remove_prefix(step.length);
  }
  while (right && !text.empty()) {
    const size_t begin = previous(text, text.size());
    if (!drop(decode_utf8(text, begin).code_point)) break;
    text = text.substr(0, begin);
  }
  return text;
}

using CaseFunction = int32_t (*)(const UCaseMap*, char*, int32_t, const char*, int32_t, UErrorCode*);

std::string map_case(std::string_view text, CaseFunction function) {
  UErrorCode status = U_ZERO_ERROR;
  UCaseMap* map = ucasemap_open("", 0, &status);
  KV_CHECK(U_SUCCESS(status), "ICU has no root locale: {}", u_errorName(status));
  std::string out(text.size() + 16, '\0');
  for (int attempt = 0; attempt < 2; ++attempt) {
    status = U_ZERO_ERROR;
    const int32_t size = function(map, out.data(), static_cast<int32_t>(out.size()), text.data(),
                                  static_cast<int32_t>(text.size()), &status);
    const bool fits = static_cast<size_t>(size) <= out.size();
    out.resize(static_cast<size_t>(size));
    if (fits) break;
  }
  ucasemap_close(map);
  return out;
}

// ICU's title case of one code point. A few ASCII letters are most of the traffic.
std::string title_of(std::string_view character) {
  if (character.size() == 1) return to_upper(character);
  const auto c = static_cast<UChar32>(decode_utf8(character, 0).code_point);
  const UChar32 titled = u_totitle(c);
  std::string out;
  if (titled != c) {
    append_utf8(static_cast<char32_t>(titled), &out);
    return out;
  }
  // Characters such as sharp s have only a longer form: its first letter stays, the rest is in lower case.
  const std::string upper = to_upper(character);
  const size_t first = decode_utf8(upper, 0).length;
  return first == upper.size() ? std::string(character)
                               : upper.substr(0, first) + to_lower(upper.substr(first));
}

bool is_cased(char32_t c) {
  return u_hasBinaryProperty(static_cast<UChar32>(c), UCHAR_CASED);
}

bool is_line_end(char32_t c) {
  return (c >= '\n' && c <= '\r') || (c >= 0x1C && c <= 0x1E) || c == 0x85 || c == 0x2028 || c == 0x2029;
}

}  // namespace

bool is_python_space(char32_t c) {
  if (c < 0x80) return c == ' ' || (c >= '\t' && c <= '\r') || (c >= 0x1C && c <= 0x1F);
  return u_isUWhiteSpace(static_cast<UChar32>(c));
}

size_t length_of(std::string_view text) {
  return static_cast<size_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<unsigned char>(c) & 0xC0) != 0x80; }));
}

std::string_view strip(std::string_view text, bool left, bool right) {
  return strip_if(text, left, right, is_python_space);
}

std::string_view strip_characters(std::string_view text, std::string_view characters, bool left, bool right) {
  return strip_if(text, left, right, [characters](char32_t c) {
    std::string one;
    append_utf8(c, &one);
    return characters.find(one) != std::string_view::npos;
  });
}

std::string to_upper(std::string_view text) {
  return map_case(text, ucasemap_utf8ToUpper);
}

std::string to_lower(std::string_view text) {
  return map_case(text, ucasemap_utf8ToLower);
}

std::string capitalize(std::string_view text) {
  if (text.empty()) return std::string();
  const size_t first = decode_utf8(text, 0).length;
  return title_of(text.substr(0, first)) + to_lower(text.substr(first));
}

std::string title(std::string_view text) {
  std::string out;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    const bool cased = is_cased(decode_utf8(text, i).code_point);
    while (end < text.size()) {
      const Utf8Step step = decode_utf8(text, end);
      if (is_cased(step.code_point) != cased) break;
      end += step.length;
    }
    const std::string_view run = text.substr(i, end - i);
    out += cased ? capitalize(run) : std::string(run);
    i = end;
  }
  return out;
}

std::string title_words(std::string_view text) {
  auto separates = [](char32_t c) {
    return is_python_space(c) || c == '-' || c == '(' || c == '{' || c == '[' || c == '<';
  };
  std::string out;
  for (size_t i = 0; i < text.size();) {
    size_t end = i;
    const bool separator = separates(decode_utf8(text, i).code_point);
    while (end < text.size()) {
      const Utf8Step step = decode_utf8(text, end);
      if (separates(step.code_point) != separator) break;
      end += step.length;
    }
    const std::string_view run = text.substr(i, end - i);
    const size_t first = decode_utf8(run, 0).length;
    out += separator ? std::string(run) : to_upper(run.substr(0, first)) + to_lower(run.substr(first));
    i = end;
  }
  return out;
}

std::vector<std::string_view> split_space(std::string_view text, int64_t limit, bool from_right) {
  std::vector<std::string_view> out;
  text = strip(text, !from_right, from_right);
  while (!text.empty()) {
    if (limit >= 0 && static_cast<int64_t>(out.size()) == limit) {
      out.push_back(text);
      break;
    }
    size_t begin = from_right ? text.size() : 0;
    size_t end = begin;
    while (from_right ? begin > 0 : end < text.size()) {
      const size_t at = from_right ? previous(text, begin) : end;
      const Utf8Step step = decode_utf8(text, at);
      if (is_python_space(step.code_point)) break;
      (from_right ? begin : end) = from_right ? at : end + step.length;
    }
    out.push_back(text.substr(begin, end - begin));
    text = from_right ? text.substr(0, begin) : text.substr(end);
    text = strip(text, !from_right, from_right);
  }
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string_view> split(std::string_view text, std::string_view separator, int64_t limit,
                                    bool from_right) {
  std::vector<std::string_view> out;
  while (limit < 0 || static_cast<int64_t>(out.size()) < limit) {
    const size_t at = from_right ? text.rfind(separator) : text.find(separator);
    if (at == std::string_view::npos) break;
    const std::string_view before = text.substr(0, at);
    const std::string_view after = text.substr(at + separator.size());
    out.push_back(from_right ? after : before);
    text = from_right ? before : after;
  }
  out.push_back(text);
  if (from_right) std::reverse(out.begin(), out.end());
  return out;
}

std::vector<std::string_view> split_lines(std::string_view text, bool keep_ends) {
  std::vector<std::string_view> out;
  size_t begin = 0;
  for (size_t i = 0; i < text.size();) {
    const Utf8Step step = decode_utf8(text, i);
    size_t end = i + step.length;
    if (is_line_end(step.code_point)) {
      if (step.code_point == '\r' && end < text.size() && text[end] == '\n') ++end;
      out.push_back(text.substr(begin, (keep_ends ? end : i) - begin));
      begin = end;
    }
    i = end;
  }
  if (begin < text.size()) out.push_back(text.substr(begin));
  return out;
}

MarkedText replace(const MarkedText& text, std::string_view from, const MarkedText& to, int64_t limit) {
  MarkedText out;
  size_t begin = 0;
  for (int64_t done = 0; limit < 0 || done < limit; ++done) {
    if (from.empty()) {
      // Python puts `to` before every character and at the end.
      out.append(to);
      if (begin >= text.size()) return out;
      const size_t length = decode_utf8(text.text(), begin).length;
      out.append(text, begin, begin + length);
      begin += length;
      continue;
    }
    const size_t at = text.text().find(from, begin);
    if (at == std::string::npos) break;
    out.append(text, begin, at);
    out.append(to);
    begin = at + from.size();
  }
  out.append(text, begin, text.size());
  return out;
}

int64_t count_of(std::string_view text, std::string_view what) {
  if (what.empty()) return static_cast<int64_t>(length_of(text)) + 1;
  int64_t count = 0;
  for (size_t at = text.find(what); at != std::string_view::npos; at = text.find(what, at + what.size()))
    ++count;
  return count;
}

std::vector<size_t> offsets_of(std::string_view text) {
  std::vector<size_t> out;
  out.reserve(text.size() + 1);
  for (size_t i = 0; i < text.size(); i += decode_utf8(text, i).length) out.push_back(i);
  out.push_back(text.size());
  return out;
}

}  // namespace kvasir::jinja
