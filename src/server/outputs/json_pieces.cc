// State machines over single bytes, so that it does not matter where the text is cut.
#include "server/outputs/json_pieces.h"

#include <algorithm>
#include <utility>

#include "model/tokenizers/utf8.h"

namespace kvasir {

PieceStep JsonString::push(char c, std::string& out) {
  if (digits_ > 0) return hex(c, out);
  if (escaped_) return escape(c, out);
  if (c == '\\') {
    escaped_ = true;
    return PieceStep::kMore;
  }
  if (high_ != 0) append_utf8(0xFFFD, &out);
  high_ = 0;
  if (c == '"') return PieceStep::kEnd;
  out += c;
  return PieceStep::kMore;
}

PieceStep JsonString::escape(char c, std::string& out) {
  escaped_ = false;
  if (c == 'u') {
    digits_ = 4;
    unit_ = 0;
    return PieceStep::kMore;
  }
  if (high_ != 0) append_utf8(0xFFFD, &out);
  high_ = 0;
  constexpr std::string_view kNames = "\"\\/nrtbf", kMeant = "\"\\/\n\r\t\b\f";
  const size_t which = kNames.find(c);
  if (which == std::string_view::npos) return PieceStep::kBad;
  out += kMeant[which];
  return PieceStep::kMore;
}

PieceStep JsonString::hex(char c, std::string& out) {
  const int value = c >= '0' && c <= '9'   ? c - '0'
                    : c >= 'a' && c <= 'f' ? c - 'a' + 10
                    : c >= 'A' && c <= 'F' ? c - 'A' + 10
                                           : -1;
  if (value < 0) return PieceStep::kBad;
  unit_ = unit_ * 16 + static_cast<uint32_t>(value);
  if (--digits_ > 0) return PieceStep::kMore;
  const bool first = unit_ >= 0xD800 && unit_ < 0xDC00, second = unit_ >= 0xDC00 && unit_ < 0xE000;
  if (second && high_ != 0) {
    append_utf8(static_cast<char32_t>(0x10000 + ((high_ - 0xD800) << 10) + (unit_ - 0xDC00)), &out);
    high_ = 0;
    return PieceStep::kMore;
  }
  if (high_ != 0) append_utf8(0xFFFD, &out);
  high_ = first ? unit_ : 0;
  if (!first) append_utf8(second ? 0xFFFD : static_cast<char32_t>(unit_), &out);
  return PieceStep::kMore;
}

bool JsonNest::push(char c) {
  if (string_) {
    if (escaped_) {
      escaped_ = false;
    } else if (c == '\\') {
      escaped_ = true;
    } else if (c == '"') {
      string_ = false;
    }
    return false;
  }
  if (c == '"') string_ = true;
  if (c == '{' || c == '[') ++depth_;
  return (c == '}' || c == ']') && --depth_ == 0;
}

PieceStep CallObject::push(char c, AnswerParts& parts) {
  switch (state_) {
    case State::kOpen:
      state_ = State::kKeyOrEnd;
      return c == '{' ? PieceStep::kMore : PieceStep::kBad;
    case State::kKeyOrEnd:
    case State::kNext:
      return between(c, parts);
    case State::kKey:
    case State::kName:
    case State::kText:
      return in_text(c, parts);
    case State::kColon:
      if (c == ':') state_ = State::kValue;
      return c == ':' || is_json_space(c) ? PieceStep::kMore : PieceStep::kBad;
    case State::kValue:
      return is_json_space(c) ? PieceStep::kMore : begin_value(c, parts);
    case State::kNest:
      if (nest_.push(c)) state_ = State::kNext;
      if (member_ == Member::kArguments && !add_arguments({&c, 1}, parts)) return PieceStep::kBad;
      return PieceStep::kMore;
    case State::kScalar:
      if (c != ',' && c != '}' && !is_json_space(c)) return PieceStep::kMore;
      state_ = State::kNext;
      return between(c, parts);
  }
  return PieceStep::kBad;
}

// Between members: a comma at the end is forgiven.
PieceStep CallObject::between(char c, AnswerParts& parts) {
  if (is_json_space(c)) return PieceStep::kMore;
  if (c == '}') return close(parts);
  if (state_ == State::kNext) {
    state_ = State::kKeyOrEnd;
    return c == ',' ? PieceStep::kMore : PieceStep::kBad;
  }
  key_.clear();
  string_ = JsonString();
  state_ = State::kKey;
  return c == '"' ? PieceStep::kMore : PieceStep::kBad;
}

PieceStep CallObject::in_text(char c, AnswerParts& parts) {
  std::string text;
  const PieceStep step = string_.push(c, text);
  if (step == PieceStep::kBad) return step;
  if (state_ == State::kKey) {
    if (key_.size() < 64) key_ += text;  // longer ones are none that matter
  } else if (state_ == State::kName) {
    name_ += text;
    if (name_.size() > 256 || text.find('\n') != std::string::npos) return PieceStep::kBad;
  } else if (member_ == Member::kArguments && !add_arguments(text, parts)) {
    return PieceStep::kBad;
  }
  if (step == PieceStep::kMore) return step;
  if (state_ == State::kName) return end_name(parts);
  if (state_ != State::kKey) {
    state_ = State::kNext;
    return PieceStep::kMore;
  }
  state_ = State::kColon;
  const bool arguments = key_ == "arguments" || key_ == "parameters";
  member_ = key_ == "name" && !named_ ? Member::kName
            : arguments && !argued_   ? Member::kArguments
                                      : Member::kOther;
  return PieceStep::kMore;
}

PieceStep CallObject::begin_value(char c, AnswerParts& parts) {
  if (c == '"') {
    string_ = JsonString();
    state_ = member_ == Member::kName ? State::kName : State::kText;
    if (member_ == Member::kArguments) argued_ = true;
    return PieceStep::kMore;
  }
  if (member_ == Member::kName) return PieceStep::kBad;
  if (c == '{' || c == '[') {
    nest_ = JsonNest();
    state_ = State::kNest;
    if (member_ != Member::kArguments) return PieceStep::kMore;
    argued_ = true;
    return add_arguments({&c, 1}, parts) ? PieceStep::kMore : PieceStep::kBad;
  }
  // No arguments are null, and cannot be a number.
  if (member_ == Member::kArguments && c != 'n') return PieceStep::kBad;
  if (c == ',' || c == '}' || c == ']' || c == ':') return PieceStep::kBad;
  if (member_ == Member::kArguments) argued_ = true;
  state_ = State::kScalar;
  return PieceStep::kMore;
}

PieceStep CallObject::end_name(AnswerParts& parts) {
  state_ = State::kNext;
  named_ = true;
  if (name_.empty()) return PieceStep::kBad;
  if (known_ != nullptr && std::find(known_->begin(), known_->end(), name_) == known_->end()) {
    return PieceStep::kBad;
  }
  if (early_.empty()) return PieceStep::kMore;
  const std::string early = std::exchange(early_, std::string());
  return add_arguments(early, parts) ? PieceStep::kMore : PieceStep::kBad;
}

bool CallObject::add_arguments(std::string_view text, AnswerParts& parts) {
  if (!named_) {
    early_ += text;
    return early_.size() <= kMostWaiting;
  }
  if (!begun_) parts.begin_call(name_);
  begun_ = true;
  parts.arguments(text);
  return true;
}

PieceStep CallObject::close(AnswerParts& parts) {
  if (!named_ || (known_ != nullptr && !argued_)) return PieceStep::kBad;
  if (!begun_) parts.begin_call(name_);
  begun_ = true;
  parts.end_call();
  return PieceStep::kEnd;
}

}  // namespace kvasir
