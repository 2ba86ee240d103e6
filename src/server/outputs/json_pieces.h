// JSON that arrives byte by byte: strings, nested values, and the object of a call.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "server/outputs/answer_parts.h"

namespace kvasir {

// The most bytes that wait for the decision whether they are a call.
inline constexpr size_t kMostWaiting = 64 * 1024;

enum class PieceStep : uint8_t { kMore, kEnd, kBad };

// A string behind its first quotation mark.
class JsonString {
 public:
  // Appends the text of what `c` completes. Line breaks and the like are taken as they are. kBad: an escape
  // that there is not; half of a surrogate pair is U+FFFD.
  PieceStep push(char c, std::string& out);

 private:
  PieceStep escape(char c, std::string& out);
  PieceStep hex(char c, std::string& out);

  bool escaped_ = false;
  int digits_ = 0;     // that are missing of \uXXXX
  uint32_t unit_ = 0;  // of these digits
  uint32_t high_ = 0;  // the first half of a surrogate pair; 0: none
};

// An object or list behind its first bracket. Looks at brackets and strings only.
class JsonNest {
 public:
  // True: `c` has closed it.
  bool push(char c);

 private:
  size_t depth_ = 1;
  bool string_ = false, escaped_ = false;
};

// {"name": NAME, "arguments": ARGUMENTS}: "parameters" is another name of the latter, in any order, among
// other members. Arguments that are an object go to `parts` as they are written, those that are a string as
// its text, once the name is known.
class CallObject {
 public:
  // `known`: only these names are calls, and only with arguments; null: all are.
  explicit CallObject(const std::vector<std::string>* known) : known_(known) {}

  // From its first bracket on. kBad: it is no call; what has begun is not ended.
  PieceStep push(char c, AnswerParts& parts);
  // The call has been written to parts.begin_call().
  bool begun() const { return begun_; }

 private:
  enum class State : uint8_t { kOpen, kKeyOrEnd, kKey, kColon, kValue, kName, kText, kNest, kScalar, kNext };
  enum class Member : uint8_t { kOther, kName, kArguments };

  PieceStep begin_value(char c, AnswerParts& parts);
  PieceStep in_text(char c, AnswerParts& parts);
  PieceStep end_name(AnswerParts& parts);
  PieceStep between(char c, AnswerParts& parts);
  PieceStep close(AnswerParts& parts);
  bool add_arguments(std::string_view text, AnswerParts& parts);

  const std::vector<std::string>* known_;
  State state_ = State::kOpen;
  Member member_ = Member::kOther;
  JsonString string_;
  JsonNest nest_;
  std::string key_, name_, early_;  // early_: arguments before the name
  bool named_ = false, begun_ = false, argued_ = false;
};

}  // namespace kvasir
