// What the text of an output must be.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvasir {

struct OutputGrammar {
  enum class Kind : uint8_t {
    kNone,           // anything
    kJson,           // any JSON object
    kJsonSchema,     // `text` is the schema
    kRegex,          // `text` matches the whole output
    kChoice,         // one of `choices`
    kGrammar,        // `text` is EBNF, as of llama.cpp's GBNF
    kStructuralTag,  // `text` is JSON: free text in which given tags begin constrained parts
  };
  Kind kind = Kind::kNone;
  std::string text = {};
  std::vector<std::string> choices = {};

  friend bool operator==(const OutputGrammar&, const OutputGrammar&) = default;
};

}  // namespace kvasir
