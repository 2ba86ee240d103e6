// A sink that keeps what it hears.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace kvasir::test {

// Written by the engine's thread; read when the engine has stopped, or between steps.
class CollectingSink final : public OutputSink {
 public:
  void on_output(OutputEvent event) override {
    ++events;
    if (finish) ++events_after_finish;
    for (const OutputToken& t : event.tokens) tokens.push_back(t.id);
    if (!event.embedding.empty()) embedding = std::move(event.embedding);
    if (event.finish) finish = event.finish;
    if (!event.error.empty()) error = std::move(event.error);
    try_again = event.try_again;
    cached_prompt_tokens = event.cached_prompt_tokens;
  }

  std::vector<Token> tokens;
  std::vector<float> embedding;
  std::optional<FinishReason> finish;
  std::string error;
  bool try_again = false;
  uint32_t cached_prompt_tokens = 0;
  int events = 0;
  int events_after_finish = 0;
};

}  // namespace kvasir::test
