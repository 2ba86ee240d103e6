// White space beside a tag is stripped here, so the parser never sees white-space control.
#include "model/templates/jinja/lexer.h"

#include <algorithm>
#include <charconv>
#include <cmath>
#include <utility>

#include "model/templates/jinja/text.h"
#include "model/tokenizers/utf8.h"

namespace kvasir::jinja {

namespace {

bool is_digit(char c) {
  return c >= '0' && c <= '9';
}
bool is_name_start(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_';
}
bool is_name_char(char c) {
  return is_name_start(c) || is_digit(c);
}

class Lexer {
 public:
  explicit Lexer(std::string source) : source_(std::move(source)) {}
  Result<std::vector<Token>> run();

 private:
  size_t find_tag(size_t from) const;
  void emit_text(size_t end, char tag, char sign);
  Status lex_tag(char tag);
  Status skip_comment();
  bool at_raw_tag(size_t* end) const;
  Status lex_raw(size_t body);
  Status lex_expression(char tag);
  bool end_of_tag(char tag);
  Status lex_number();
  Status lex_string();
  Status lex_escape(std::string* out);
  Status lex_operator();

  bool starts_with(std::string_view what) const {
    return std::string_view(source_).substr(at_).starts_with(what);
  }
  void skip_space() {
    while (at_ < source_.size() && char_is_space()) advance(1);
  }
  bool char_is_space() const {
    const Utf8Step step = decode_utf8(source_, at_);
    return is_python_space(step.code_point);
  }
  void advance(size_t count) {
    line_ += static_cast<int>(std::count(source_.begin() + static_cast<std::ptrdiff_t>(at_),
                                         source_.begin() + static_cast<std::ptrdiff_t>(at_ + count), '\n'));
    at_ += count;
  }
  void push(TokenKind kind, std::string text = "") {
    tokens_.push_back({kind, line_, std::move(text), 0, 0});
  }
  Status fail(std::string_view what) const {
    return error(ErrorCode::kInvalidArgument, "chat template line {}: {}", line_, what);
  }

  const std::string source_;
  size_t at_ = 0;
  int line_ = 1;
  size_t text_begin_ = 0;
  bool line_starting_ = true;  // the last tag ended with a line's end, or there was none
  std::vector<Token> tokens_;
  std::string open_;  // brackets of the expression that wait for their partner
};

Result<std::vector<Token>> Lexer::run() {
  while (true) {
    const size_t tag_at = find_tag(at_);
    if (tag_at == std::string::npos) break;
    const char tag = source_[tag_at + 1];
    const char sign = tag_at + 2 < source_.size() ? source_[tag_at + 2] : '\0';
    advance(tag_at - at_);
    emit_text(tag_at, tag, sign);
    advance(sign == '-' || sign == '+' ? 3 : 2);
    KV_RETURN_IF_ERROR(lex_tag(tag));
    text_begin_ = at_;
    line_starting_ = at_ > 0 && source_[at_ - 1] == '\n';
  }
  if (text_begin_ < source_.size()) push(TokenKind::kText, source_.substr(text_begin_));
  advance(source_.size() - at_);
  push(TokenKind::kEnd);
  return std::move(tokens_);
}

size_t Lexer::find_tag(size_t from) const {
  for (size_t i = from; i + 1 < source_.size(); ++i) {
    const char next = source_[i + 1];
    if (source_[i] == '{' && (next == '{' || next == '%' || next == '#')) return i;
  }
  return std::string::npos;
}

// The text before a tag, stripped as the tag's sign and lstrip_blocks require.
void Lexer::emit_text(size_t end, char tag, char sign) {
  std::string_view text = std::string_view(source_).substr(text_begin_, end - text_begin_);
  if (sign == '-') {
    text = strip(text, false, true);
  } else if (sign != '+' && tag != '{') {
    const size_t newline = text.rfind('\n');
    const size_t line_begin = newline == std::string_view::npos ? 0 : newline + 1;
    if ((line_begin > 0 || line_starting_) && strip(text.substr(line_begin), true, true).empty()) {
      text = text.substr(0, line_begin);
    }
  }
  if (!text.empty()) push(TokenKind::kText, std::string(text));
}

Status Lexer::lex_tag(char tag) {
  if (tag == '#') return skip_comment();
  size_t raw_body = 0;
  if (tag == '%' && at_raw_tag(&raw_body)) return lex_raw(raw_body);
  push(tag == '{' ? TokenKind::kOutputBegin : TokenKind::kBlockBegin);
  return lex_expression(tag);
}

Status Lexer::skip_comment() {
  const size_t close = source_.find("#}", at_);
  if (close == std::string::npos) return fail("the comment {# has no end #}");
  const char sign = close > at_ ? source_[close - 1] : '\0';
  advance(close + 2 - at_);
  if (sign == '-') {
    skip_space();
  } else if (sign != '+' && starts_with("\n")) {
    advance(1);
  }
  return Status();
}

bool Lexer::at_raw_tag(size_t* end) const {
  std::string_view rest = std::string_view(source_).substr(at_);
  const size_t whole = rest.size();
  rest = strip(rest, true, false);
  if (!rest.starts_with("raw")) return false;
  rest = strip(rest.substr(3), true, false);
  const bool minus = rest.starts_with("-%}");
  if (!minus && !rest.starts_with("%}")) return false;
  rest = rest.substr(minus ? 3 : 2);
  if (minus) rest = strip(rest, true, false);
  *end = at_ + whole - rest.size();
  return true;
}

Status Lexer::lex_raw(size_t body) {
  advance(body - at_);
  text_begin_ = at_;
  line_starting_ = source_[at_ - 1] == '\n';
  for (size_t tag = source_.find("{%", at_); tag != std::string::npos; tag = source_.find("{%", tag + 2)) {
    const char sign = tag + 2 < source_.size() ? source_[tag + 2] : '\0';
    const size_t word = tag + (sign == '-' || sign == '+' ? 3 : 2);
    const std::string_view rest = strip(std::string_view(source_).substr(word), true, false);
    if (!rest.starts_with("endraw")) continue;
    const std::string_view close = strip(rest.substr(6), true, false);
    if (!close.starts_with("%}") && !close.starts_with("-%}") && !close.starts_with("+%}")) continue;
    emit_text(tag, '%', sign);
    advance(source_.size() - close.size() - at_);
    end_of_tag('%');
    return Status();
  }
  return fail("the block {% raw %} has no end {% endraw %}");
}

// Moves past the end of a tag, if it is here, and past the white space that it strips.
bool Lexer::end_of_tag(char tag) {
  const std::string_view close = tag == '{' ? "}}" : "%}";
  const bool minus = starts_with("-") && std::string_view(source_).substr(at_ + 1).starts_with(close);
  const bool plus = tag == '%' && starts_with("+%}");
  if (!minus && !plus && !starts_with(close)) return false;
  push(tag == '{' ? TokenKind::kOutputEnd : TokenKind::kBlockEnd);
  advance(minus || plus ? 3 : 2);
  if (minus) {
    skip_space();
  } else if (tag == '%' && !plus && starts_with("\n")) {
    advance(1);
  }
  return true;
}

Status Lexer::lex_expression(char tag) {
  open_.clear();
  while (true) {
    skip_space();
    if (at_ >= source_.size()) {
      return fail(tag == '{' ? "the output {{ has no end }}" : "the tag {% has no end %}");
    }
    if (open_.empty() && end_of_tag(tag)) return Status();
    const char c = source_[at_];
    if (is_name_start(c)) {
      size_t end = at_;
      while (end < source_.size() && is_name_char(source_[end])) ++end;
      push(TokenKind::kName, source_.substr(at_, end - at_));
      advance(end - at_);
    } else if (is_digit(c)) {
      KV_RETURN_IF_ERROR(lex_number());
    } else if (c == '\'' || c == '"') {
      KV_RETURN_IF_ERROR(lex_string());
    } else {
      KV_RETURN_IF_ERROR(lex_operator());
    }
  }
}

Status Lexer::lex_number() {
  std::string digits;
  size_t i = at_;
  auto take_digits = [&] {
    while (i < source_.size() && (is_digit(source_[i]) || source_[i] == '_')) {
      if (source_[i] != '_') digits += source_[i];
      ++i;
    }
  };
  take_digits();
  bool real = false;
  // After a dot a number is an index: x.0.1 is x[0][1].
  const bool index = at_ > 0 && source_[at_ - 1] == '.';
  if (!index && i + 1 < source_.size() && source_[i] == '.' && is_digit(source_[i + 1])) {
    real = true;
    digits += source_[i++];
    take_digits();
  }
  if (!index && i < source_.size() && (source_[i] == 'e' || source_[i] == 'E')) {
    size_t exponent = i + 1;
    if (exponent < source_.size() && (source_[exponent] == '+' || source_[exponent] == '-')) ++exponent;
    if (exponent < source_.size() && is_digit(source_[exponent])) {
      real = true;
      digits += 'e';
      if (source_[i + 1] == '-') digits += '-';
      i = exponent;
      take_digits();
    }
  }
  if (i < source_.size() && is_name_char(source_[i])) return fail("a number runs into a name");
  push(real ? TokenKind::kFloat : TokenKind::kInteger);
  const char* end = digits.data() + digits.size();
  const auto parsed = real ? std::from_chars(digits.data(), end, tokens_.back().real)
                           : std::from_chars(digits.data(), end, tokens_.back().integer);
  if (parsed.ec != std::errc() || parsed.ptr != end) return fail("a number is too large");
  if (!real && digits.size() > 1 && digits[0] == '0' && tokens_.back().integer != 0) {
    return fail("a number begins with 0");
  }
  advance(i - at_);
  return Status();
}

Status Lexer::lex_string() {
  const char quote = source_[at_];
  const size_t token = tokens_.size();
  push(TokenKind::kString);
  advance(1);
  std::string text;
  while (true) {
    if (at_ >= source_.size()) return fail("a string has no end");
    const char c = source_[at_];
    if (c == quote) break;
    if (c == '\\') {
      KV_RETURN_IF_ERROR(lex_escape(&text));
    } else {
      text += c;
      advance(1);
    }
  }
  advance(1);
  tokens_[token].text = std::move(text);
  return Status();
}

// One escape of a Python string; an unknown one stands for itself.
Status Lexer::lex_escape(std::string* out) {
  if (at_ + 1 >= source_.size()) return fail("a string has no end");
  const char c = source_[at_ + 1];
  constexpr std::string_view kNames = "abfnrtv\\'\"";
  constexpr std::string_view kMeanings = "\a\b\f\n\r\t\v\\'\"";
  if (const size_t i = kNames.find(c); i != std::string_view::npos) {
    out->push_back(kMeanings[i]);
    advance(2);
    return Status();
  }
  if (c == '\n') {
    advance(2);
    return Status();
  }
  const bool octal = c >= '0' && c <= '7';
  const size_t digits = octal ? 3 : c == 'x' ? 2 : c == 'u' ? 4 : c == 'U' ? 8 : 0;
  if (c == 'N') return fail("the escape \\N{name} is not supported");
  if (digits == 0) {
    out->push_back('\\');
    advance(1);
    return Status();
  }
  const size_t begin = at_ + (octal ? 1 : 2);
  const char* first = source_.data() + begin;
  const char* last = source_.data() + std::min(begin + digits, source_.size());
  uint32_t number = 0;
  const auto parsed = std::from_chars(first, last, number, octal ? 8 : 16);
  const auto taken = static_cast<size_t>(parsed.ptr - first);
  const bool scalar = number <= 0x10FFFF && (number < 0xD800 || number > 0xDFFF);
  if (parsed.ec != std::errc() || (!octal && taken != digits) || !scalar) {
    return fail("a string has a bad \\ escape");
  }
  append_utf8(number, out);
  advance(begin + taken - at_);
  return Status();
}

Status Lexer::lex_operator() {
  constexpr std::string_view kTwo[] = {"//", "**", "==", "!=", "<=", ">="};
  constexpr std::string_view kOne = "+-*/%~[](){}<>=.:,|";
  for (const std::string_view two : kTwo) {
    if (!starts_with(two)) continue;
    push(TokenKind::kOperator, std::string(two));
    advance(2);
    return Status();
  }
  const char c = source_[at_];
  if (kOne.find(c) == std::string_view::npos) {
    const size_t length = decode_utf8(source_, at_).length;
    return fail("the character '" + source_.substr(at_, length) + "' has no meaning in an expression");
  }
  if (c == '(' || c == '[' || c == '{') open_.push_back(c == '(' ? ')' : c == '[' ? ']' : '}');
  if (c == ')' || c == ']' || c == '}') {
    if (open_.empty() || open_.back() != c) return fail(std::string("'") + c + "' closes nothing");
    open_.pop_back();
  }
  push(TokenKind::kOperator, std::string(1, c));
  advance(1);
  return Status();
}

// Line ends become \n, and one at the very end is removed: Jinja's default.
std::string normalise(std::string_view source) {
  std::string out;
  out.reserve(source.size());
  for (size_t i = 0; i < source.size(); ++i) {
    if (source[i] != '\r') {
      out += source[i];
      continue;
    }
    out += '\n';
    if (i + 1 < source.size() && source[i + 1] == '\n') ++i;
  }
  if (out.ends_with('\n')) out.pop_back();
  return out;
}

}  // namespace

Result<std::vector<Token>> tokenize(std::string_view source) {
  return Lexer(normalise(source)).run();
}

}  // namespace kvasir::jinja
