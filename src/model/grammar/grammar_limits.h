// How large a grammar may be, judged before anything is made of it: what follows cannot be interrupted.
#pragma once

#include <cstddef>
#include <string_view>

#include "base/status.h"
#include "model/grammar/output_grammar.h"

namespace kvasir {

struct GrammarLimits {
  size_t text_bytes = 64 * 1024;  // of the text, or of all choices together
  size_t choices = 1024;
  int depth = 64;             // of brackets within brackets
  size_t expanded = 16384;    // characters of a pattern when its repetitions are written out
  int64_t bound = 1'000'000;  // of a schema's minItems, maxLength and the like
};

// kInvalidArgument: it is beyond a limit, which the message names; or a schema that is no JSON, or that has a
// keyword which the output would not be held to.
Status check_size(const OutputGrammar& grammar, const GrammarLimits& limits = {});

// The characters of a regular expression (or, with `quoted`, of EBNF, whose literals are in quotes) when a{n}
// is written out as n times a; more than `most` counts as most + 1. Of ill-formed text it says something or
// other.
size_t expanded_size(std::string_view pattern, bool quoted, size_t most);

}  // namespace kvasir
