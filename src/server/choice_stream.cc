// Detokenises, looks for stop strings, and releases log-probabilities with their text.
#include "server/choice_stream.h"

#include <algorithm>
#include <iterator>

namespace kvasir {
namespace {

uint64_t count_chars(const std::string& text) {
  return static_cast<uint64_t>(std::count_if(
      text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xC0) != 0x80; }));
}

}  // namespace

Result<ChoiceStream> ChoiceStream::create(const Tokenizer* tokenizer, std::vector<std::string> stops,
                                          std::vector<Token> stop_tokens, bool want_logprobs,
                                          uint32_t min_tokens, std::vector<Token> shown) {
  KV_ASSIGN_OR_RETURN(StopMatcher matcher, StopMatcher::create(stops));
  return ChoiceStream(tokenizer, std::move(matcher), std::move(stops), std::move(stop_tokens), want_logprobs,
                      min_tokens, std::move(shown));
}

void ChoiceStream::release(const std::string& text, bool searched, TextDelta& delta) {
  bytes_ += text.size();
  chars_ += count_chars(text);
  const std::string visible = searched ? matcher_.push(text) : text;
  released_ += visible.size();
  delta.text += visible;
  // A token becomes visible with the first byte of its text. If all of its text belongs to a stop string it
  // never does.
  auto end = std::find_if(waiting_.begin(), waiting_.end(),
                          [this](const LogprobEntry& e) { return e.byte_offset >= released_; });
  std::move(waiting_.begin(), end, std::back_inserter(delta.logprobs));
  waiting_.erase(waiting_.begin(), end);
}

Status ChoiceStream::echo(std::span<const Token> prompt, std::span<const PromptToken> scored, size_t top,
                          TextDelta& delta) {
  for (size_t i = 0; i < prompt.size(); ++i) {
    if (want_logprobs_) waiting_.push_back({prompt[i], std::nullopt, {}, bytes_, chars_});
    if (want_logprobs_ && i > 0 && i <= scored.size()) {
      waiting_.back().logprob = scored[i - 1].logprob;
      const std::vector<TokenLogprob>& all = scored[i - 1].top;
      waiting_.back().top.assign(all.begin(),
                                 all.begin() + static_cast<ptrdiff_t>(std::min(top, all.size())));
    }
    KV_ASSIGN_OR_RETURN(const std::string text, detokenizer_.push(prompt[i]));
    release(text, /*searched=*/false, delta);
  }
  // What follows may complete a character, but tokens without text are part of the prompt.
  std::move(waiting_.begin(), waiting_.end(), std::back_inserter(delta.logprobs));
  waiting_.clear();
  return {};
}

Status ChoiceStream::push(const OutputToken& token, TextDelta& delta) {
  if (stopped_by_string()) return {};
  ++completion_tokens_;
  if (std::find(stop_tokens_.begin(), stop_tokens_.end(), token.id) != stop_tokens_.end()) return {};
  if (want_logprobs_) waiting_.push_back({token.id, token.logprob, token.top, bytes_, chars_});
  KV_ASSIGN_OR_RETURN(const std::string text, detokenizer_.push(token.id));
  release(text, completion_tokens_ > min_tokens_, delta);
  return {};
}

void ChoiceStream::finish(TextDelta& delta) {
  if (!stopped_by_string()) release(detokenizer_.finish(), completion_tokens_ > min_tokens_, delta);
  if (stopped_by_string()) {
    waiting_.clear();
    return;
  }
  const std::string rest = matcher_.finish();
  released_ += rest.size();
  delta.text += rest;
  std::move(waiting_.begin(), waiting_.end(), std::back_inserter(delta.logprobs));
  waiting_.clear();
}

}  // namespace kvasir
