// Pieces of the same call in one delta become one piece.
#include "server/outputs/answer_parts.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/random.h"

namespace kvasir {
namespace {

constexpr std::string_view kSpaces = " \t\r\n";
constexpr size_t kMostSpaces = 1024;  // that wait; a model that writes only spaces is heard

// Appends spaces that waited and `text` up to its last other character; the rest waits.
void append_trimmed(std::string_view text, std::string& waiting, std::string& out) {
  const size_t last = text.find_last_not_of(kSpaces);
  if (last != std::string_view::npos) {
    out += waiting;
    out += text.substr(0, last + 1);
    waiting.clear();
    text.remove_prefix(last + 1);
  }
  waiting += text;
  if (waiting.size() <= kMostSpaces) return;
  out += waiting;
  waiting.clear();
}

}  // namespace

bool is_json_space(char c) {
  return kSpaces.find(c) != std::string_view::npos;
}

void AnswerParts::content(std::string_view text) {
  if (!style_.trims_around_calls) {
    delta_->text += text;
    return;
  }
  append_trimmed(text, spaces_, delta_->text);
}

void AnswerParts::reasoning(std::string_view text) {
  if (!style_.with_reasoning) return;
  if (!has_reasoning_) {
    text.remove_prefix(std::min(text.find_first_not_of(kSpaces), text.size()));
    if (text.empty()) return;
    has_reasoning_ = true;
  }
  append_trimmed(text, reasoning_spaces_, delta_->reasoning);
}

std::string AnswerParts::call_id(uint32_t index) const {
  const uint64_t high = random_bits(style_.id_seed, index, 0), low = random_bits(style_.id_seed, index, 1);
  const std::string digits = fmt::format("{:016x}{:08x}", high, static_cast<uint32_t>(low));
  return style_.short_ids ? digits.substr(0, 9) : "call_" + digits;
}

ToolCallDelta& AnswerParts::call_delta() {
  const uint32_t index = calls_ - 1;
  std::vector<ToolCallDelta>& all = delta_->tool_calls;
  if (all.empty() || all.back().index != index) {
    ToolCallDelta piece;
    piece.index = index;
    all.push_back(std::move(piece));
  }
  return all.back();
}

void AnswerParts::begin_call(std::string_view name) {
  spaces_.clear();
  open_ = true;
  has_arguments_ = cut_ = false;
  ++calls_;
  ToolCallDelta& piece = call_delta();
  piece.id = call_id(calls_ - 1);
  piece.name = name;
}

void AnswerParts::arguments(std::string_view text) {
  KV_CHECK(open_, "arguments of no call");
  if (text.empty()) return;
  has_arguments_ = true;
  call_delta().arguments += text;
}

void AnswerParts::end_call() {
  if (!has_arguments_) arguments("{}");
  open_ = false;
}

void AnswerParts::finish() {
  if (calls_ == 0) delta_->text += spaces_;
  spaces_.clear();
  reasoning_spaces_.clear();
}

}  // namespace kvasir
