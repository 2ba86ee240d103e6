// Grammars over a vocabulary, by the library xgrammar (Dong et al. 2024, "XGrammar: Flexible and Efficient
// Structured Generation Engine for Large Language Models"), whose headers only grammar_matcher.cc reads.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>

#include "base/clock.h"
#include "base/status.h"
#include "contract/ids.h"
#include "contract/token_constraint.h"
#include "model/grammar/output_grammar.h"
#include "model/tokenizers/tokenizer.h"

namespace kvasir {

// A grammar with what it says of each token. Immutable; copies share it.
class CompiledGrammar {
 public:
  struct Impl;
  explicit CompiledGrammar(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}
  size_t bytes() const;  // about
  // What an output may begin with, and how long a thread was busy to find out.
  const TokenMask& first_mask() const;
  Nanos first_mask_time() const;
  const Impl& impl() const { return *impl_; }

 private:
  std::shared_ptr<const Impl> impl_;
};

// How long this thread has been on a core.
Nanos busy_time();

// The tokens of a model, and grammars for them. Thread-safe.
class GrammarVocabulary {
 public:
  // Tokens are the bytes that they stand for, whatever the tokenizer is. Control tokens are in no output;
  // those that end one are wherever the grammar may end.
  // REQUIRES: the tokenizer has a token that ends an output.
  explicit GrammarVocabulary(const Tokenizer& tokenizer);
  ~GrammarVocabulary();

  // Takes milliseconds to seconds, and cannot be interrupted. kInvalidArgument, in one line: the text is no
  // grammar of its kind, or asks for something that the output would not be held to.
  Result<CompiledGrammar> compile(const OutputGrammar& grammar) const;

 private:
  struct Impl;
  const std::unique_ptr<Impl> impl_;
};

// Told what went wrong in the library.
using OnGrammarFault = std::function<void(std::string_view fault)>;

// Where an output is in its grammar. Used by one thread at a time.
class GrammarMatcher {
 public:
  explicit GrammarMatcher(CompiledGrammar grammar);
  ~GrammarMatcher();

  // The functions that follow may throw std::bad_alloc; then start_anew() comes first.
  void start_anew();

  // Brings it from the output that it was told of last to this one; what both begin with stays. False: the
  // grammar does not allow the output. Then mask() has only ends, until it follows an output that is allowed.
  bool follow(std::span<const Token> output);

  // The tokens that may come next. Where the grammar cannot go on with any token, those that end the output.
  void mask(TokenMask& out);

  // What went wrong in the library in the last follow() and in mask() since, for the log. That the grammar
  // does not allow an output is no fault.
  std::span<const std::string> faults() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace kvasir
