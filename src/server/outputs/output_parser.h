// From the text of one choice to its content, reasoning and calls of tools.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizers/tokenizer.h"
#include "server/api_request.h"
#include "server/outputs/answer_parts.h"
#include "server/outputs/call_parser.h"
#include "server/outputs/output_format.h"

namespace kvasir {

struct OutputParserOptions {
  OutputPlan plan;
  std::vector<std::string> hidden = {};  // marks of the plan that are control tokens of the model
  bool include_reasoning = true;
  bool parallel_calls = true;  // false: what follows the first call is not read
  uint64_t id_seed = 0;        // the ids of calls follow from it
};

// Reads the text byte by byte: the deltas, joined, do not depend on how it is cut. Calls appear as soon as
// their names are known; text that looks like a call and is none is content. What waits for that decision is
// at most kMostWaiting bytes, except for one value of the XML form, which waits for its end. One per choice,
// used by one thread.
class OutputParser {
 public:
  // REQUIRES: the tools outlive this.
  OutputParser(const OutputParserOptions& options, const std::vector<ApiTool>& tools);

  // Adds to `delta` what becomes certain by the text.
  void push(std::string_view text, TextDelta& delta);
  // The end of the text.
  void finish(TextDelta& delta);

  // Calls that have begun.
  uint32_t calls() const { return parts_.calls(); }
  // Whether text that comes now is reasoning.
  bool thinks() const { return stage_ == Stage::kThinking || (calls_ && calls_->thinks()); }
  // The text has ended inside a call. REQUIRES: finish() was called.
  bool cut() const { return cut_; }
  // Without parallel calls: the one call is there, and more text changes nothing.
  bool complete() const { return !parallel_ && parts_.calls() > 0 && !parts_.in_call(); }

 private:
  enum class Stage : uint8_t {
    kBegin,     // the mark of the reasoning may come
    kThinking,  // inside
    kBehind,    // spaces between it and the answer
    kAnswer,
  };

  void push(char c);
  void begin(char c);
  void think(char c);
  void answer(char c);
  void answer_text(std::string_view text);

  const bool parallel_;
  const std::string open_;  // the mark that begins the reasoning
  const bool thinking_first_;
  Stage stage_;
  std::string waiting_;  // what may become open_
  size_t spaces_ = 0;    // that waiting_ begins with
  MarkFinder close_;
  MarkFinder stray_;  // control tokens of the reasoning where there is none: they have no text
  const bool strays_;
  const bool answer_is_marked_;  // once there was reasoning
  bool thought_ = false;
  bool cut_ = false;
  AnswerParts parts_;
  std::unique_ptr<CallParser> calls_;  // null: all of the answer is content
};

}  // namespace kvasir
