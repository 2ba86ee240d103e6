// What the files of golden tokens have in common: escaped texts, and hashes of ids.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <charconv>
#include <cstdint>
#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizers/utf8.h"

namespace kvasir::test {

inline uint32_t parse_number(std::string_view text, int base) {
  uint32_t value = 0;
  const auto end = std::from_chars(text.data(), text.data() + text.size(), value, base);
  EXPECT_EQ(end.ptr, text.data() + text.size()) << text;
  return value;
}

// tests/golden/make_tokenizer_goldens.py says how texts are escaped.
inline std::string unescape(std::string_view text) {
  if (text.starts_with("\\x{")) {
    const size_t colon = text.find(':');
    const uint32_t count = parse_number(text.substr(3, colon - 3), 10);
    const std::string unit = unescape(text.substr(colon + 1, text.size() - colon - 2));
    std::string out;
    for (uint32_t i = 0; i < count; ++i) out += unit;
    return out;
  }
  std::string out;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      out += text[i];
      continue;
    }
    const char kind = text[++i];
    if (kind == 'u') {
      const size_t close = text.find('}', i);
      append_utf8(parse_number(text.substr(i + 2, close - i - 2), 16), &out);
      i = close;
    } else {
      out += kind == 'n' ? '\n' : kind == 't' ? '\t' : kind == 'r' ? '\r' : kind;
    }
  }
  return out;
}

inline uint64_t fnv1a(const std::vector<int32_t>& ids) {
  uint64_t hash = 0xCBF29CE484222325ull;
  for (const int32_t id : ids) {
    for (int shift = 0; shift < 32; shift += 8) {
      hash = (hash ^ ((static_cast<uint32_t>(id) >> shift) & 0xFF)) * 0x100000001B3ull;
    }
  }
  return hash;
}

// tests/golden/splits.txt: texts, and a hash of each pattern's cuts.
struct SplitGoldens {
  struct Line {
    std::vector<uint32_t> hashes;  // [pattern]
    std::string text;
  };
  std::vector<std::string> patterns;
  std::vector<Line> lines;
};

inline SplitGoldens read_split_goldens() {
  std::ifstream in(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/splits.txt");
  EXPECT_TRUE(in.good());
  SplitGoldens out;
  std::string line;
  std::getline(in, line);
  const auto cut = [](std::string_view text, char at) {
    std::vector<std::string> parts;
    for (size_t begin = 0; begin <= text.size();) {
      const size_t end = std::min(text.find(at, begin), text.size());
      parts.emplace_back(text.substr(begin, end - begin));
      begin = end + 1;
    }
    return parts;
  };
  out.patterns = cut(line, '\t');
  while (std::getline(in, line)) {
    const size_t tab = line.find('\t');
    SplitGoldens::Line golden;
    for (const std::string& hash : cut(std::string_view(line).substr(0, tab), ' ')) {
      golden.hashes.push_back(parse_number(hash, 16));
    }
    golden.text = unescape(std::string_view(line).substr(tab + 1));
    out.lines.push_back(std::move(golden));
  }
  return out;
}

}  // namespace kvasir::test
