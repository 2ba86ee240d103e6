// Which tokens an output may go on with, where it must follow a grammar.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "base/clock.h"
#include "contract/ids.h"

namespace kvasir {

// A set of tokens.
struct TokenMask {
  std::vector<uint32_t> words;  // token t: bit t % 32 of words[t / 32]; beyond them nothing is in the set

  bool has(Token t) const {
    const auto word = static_cast<size_t>(t) / 32;
    return t >= 0 && word < words.size() && ((words[word] >> (static_cast<uint32_t>(t) % 32)) & 1U) != 0;
  }
};

// One for each output, shared by its steps. What may follow depends on the output alone, so that neither the
// batch nor a preemption nor a step that failed can change it.
class TokenConstraint {
 public:
  virtual ~TokenConstraint() = default;

  // The output goes on with these tokens so far: after() will be asked about them. Returns at once; the work
  // is done on another thread. The engine's thread.
  virtual void expect(std::span<const Token> output) = 0;

  // The tokens that may follow; never an empty set. Waits for at most `patience` until they are known; null:
  // they are not yet. Valid until a call with another output. One thread at a time, any.
  virtual const TokenMask* after(std::span<const Token> output, Nanos patience) = 0;

  // The last answer of after() was null.
  virtual bool was_late() const { return false; }
};

}  // namespace kvasir
