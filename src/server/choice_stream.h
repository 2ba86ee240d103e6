// From the tokens of one choice to the text that its client sees.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "engine/request.h"
#include "model/tokenizers/detokenizer.h"
#include "model/tokenizers/stop_matcher.h"
#include "model/tokenizers/tokenizer.h"

namespace kvasir {

struct LogprobEntry {
  Token id = 0;
  std::optional<float> logprob;  // none: of a prompt's first token
  std::vector<TokenLogprob> top;
  uint64_t byte_offset = 0;  // of its text in the text of the choice
  uint64_t char_offset = 0;  // the same in code points
};

// A piece of a call of a tool. The first piece of a call has its id and name.
struct ToolCallDelta {
  uint32_t index = 0;  // of the call in the choice
  std::string id;
  std::string name;
  std::string arguments;  // to be appended: JSON as the model wrote it
};

struct TextDelta {
  std::string text;
  std::string reasoning = {};                  // what the model thinks, before the text
  std::vector<ToolCallDelta> tool_calls = {};  // after the text
  std::vector<LogprobEntry> logprobs = {};     // of the tokens that begin in the text so far
  std::string stop_string = {};                // with the end: which one has ended the text, if any has
  bool empty() const { return text.empty() && reasoning.empty() && tool_calls.empty() && logprobs.empty(); }
};

// One per choice, used by one thread. Text comes in whole characters. Text that may still become a stop
// string is held back. A stop token has no text.
class ChoiceStream {
 public:
  // Text of the first `min_tokens` tokens is not searched for stop strings. Control tokens have no text but
  // those that are `shown`.
  // kInvalidArgument: an empty stop string. REQUIRES: the tokenizer outlives this.
  static Result<ChoiceStream> create(const Tokenizer* tokenizer, std::vector<std::string> stops,
                                     std::vector<Token> stop_tokens, bool want_logprobs,
                                     uint32_t min_tokens = 0, std::vector<Token> shown = {});

  // Adds the prompt to `delta`, before the first token. `scored`: all of it but the first token; empty if no
  // log-probabilities are wanted, of which so many of the `top` are kept. kInvalidArgument: an id outside the
  // vocabulary.
  Status echo(std::span<const Token> prompt, std::span<const PromptToken> scored, size_t top,
              TextDelta& delta);

  // Adds to `delta` the text that becomes visible by the token. After a stop string tokens are ignored.
  // kInvalidArgument: an id outside the vocabulary.
  Status push(const OutputToken& token, TextDelta& delta);

  // The end of the output: text that was held back becomes visible, unless a stop string has matched.
  void finish(TextDelta& delta);

  bool stopped_by_string() const { return matcher_.matched().has_value(); }
  // The stop string that ended the text; empty if none has.
  std::string stop_string() const {
    return stopped_by_string() ? stops_[*matcher_.matched()] : std::string();
  }
  // Tokens so far, including the one that completed a stop string.
  uint32_t completion_tokens() const { return completion_tokens_; }

 private:
  ChoiceStream(const Tokenizer* tokenizer, StopMatcher matcher, std::vector<std::string> stops,
               std::vector<Token> stop_tokens, bool want_logprobs, uint32_t min_tokens,
               std::vector<Token> shown)
      : detokenizer_(tokenizer, /*skip_special=*/true, std::move(shown)),
        matcher_(std::move(matcher)),
        stops_(std::move(stops)),
        stop_tokens_(std::move(stop_tokens)),
        want_logprobs_(want_logprobs),
        min_tokens_(min_tokens) {}

  void release(const std::string& text, bool searched, TextDelta& delta);

  StreamDetokenizer detokenizer_;
  StopMatcher matcher_;
  std::vector<std::string> stops_;
  std::vector<Token> stop_tokens_;
  bool want_logprobs_;
  uint32_t min_tokens_;
  std::vector<LogprobEntry> waiting_;  // their text is still held back
  uint64_t bytes_ = 0;                 // of detokenised text
  uint64_t chars_ = 0;
  uint64_t released_ = 0;  // bytes that are visible
  uint32_t completion_tokens_ = 0;
};

}  // namespace kvasir
