// What the parsers of outputs write to: content, reasoning and calls, as pieces of a TextDelta.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "server/choice_stream.h"

namespace kvasir {

struct AnswerStyle {
  uint64_t id_seed = 0;            // the ids of calls are made of it
  bool short_ids = false;          // nine letters and digits, as Mistral's templates want them
  bool with_reasoning = true;      // false: it is dropped
  bool trims_around_calls = true;  // spaces between content and calls are dropped
};

// One per choice. What is written is the same however it is cut, because parsers write it byte by byte.
class AnswerParts {
 public:
  explicit AnswerParts(const AnswerStyle& style) : style_(style) {}

  // What follows goes there.
  void into(TextDelta* delta) { delta_ = delta; }

  // Spaces at its end wait until it is known that no call follows them.
  void content(std::string_view text);
  // Without the spaces at its beginning and end.
  void reasoning(std::string_view text);

  void begin_call(std::string_view name);
  // REQUIRES: a call has begun and not ended.
  void arguments(std::string_view text);
  // A call without arguments has an empty object.
  void end_call();
  // The call goes no further: its arguments stay as they are.
  void cut_call() {
    open_ = false;
    cut_ = true;
  }

  // Spaces that still wait are content, unless there was a call.
  void finish();

  uint32_t calls() const { return calls_; }  // that have begun
  bool in_call() const { return open_; }
  bool was_cut() const { return cut_; }  // the last call

 private:
  std::string call_id(uint32_t index) const;
  ToolCallDelta& call_delta();

  AnswerStyle style_;
  TextDelta* delta_ = nullptr;
  std::string spaces_, reasoning_spaces_;
  bool has_reasoning_ = false;
  bool open_ = false;
  bool has_arguments_ = false;
  bool cut_ = false;
  uint32_t calls_ = 0;
};

bool is_json_space(char c);

}  // namespace kvasir
