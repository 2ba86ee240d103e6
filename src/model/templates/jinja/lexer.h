// Template source to tokens, with the white-space rules that Hugging Face sets: trim_blocks and
// lstrip_blocks.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir::jinja {

enum class TokenKind {
  kText,         // text between tags, already stripped
  kOutputBegin,  // {{
  kOutputEnd,    // }}
  kBlockBegin,   // {%
  kBlockEnd,     // %}
  kName,
  kString,  // text: the string itself, escapes undone
  kInteger,
  kFloat,
  kOperator,  // text: + - * / // % ** ~ [ ] ( ) { } == != < > <= >= = . : , |
  kEnd,
};

struct Token {
  TokenKind kind = TokenKind::kEnd;
  int line = 1;
  std::string text;
  int64_t integer = 0;
  double real = 0;
};

// Ends with one kEnd token. kInvalidArgument: a tag, string or number that does not end or does not exist.
Result<std::vector<Token>> tokenize(std::string_view source);

}  // namespace kvasir::jinja
