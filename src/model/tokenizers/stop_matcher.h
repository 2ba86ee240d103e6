// Finds stop strings in text that arrives in pieces, and holds back what may still become one.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.h"

namespace kvasir {

// One per output stream. Not thread-safe. The result does not depend on how the text is cut into pieces: the
// stop string whose last byte comes first wins; of several that end there, the longest.
class StopMatcher {
 public:
  // kInvalidArgument: an empty stop string.
  static Result<StopMatcher> create(std::vector<std::string> stops);

  // The text that is safe to show now. Held back is exactly the longest end of the text that begins a stop
  // string, so less than the longest of them. After a match: the text before the match, and from then on
  // nothing. If every stop string and every piece is whole UTF-8 characters, so is what comes out.
  std::string push(std::string_view text);

  // The end of the text: what was held back, since no stop string can complete any more.
  std::string finish();

  // Which stop string has matched: an index into what create() was given.
  std::optional<size_t> matched() const { return matched_; }

 private:
  // Knuth, Morris and Pratt, once per stop string: `length` bytes of it end the text so far.
  struct Pattern {
    std::string text;
    std::vector<size_t> border;  // [size]: the longest proper border of text[0..i]
    size_t length = 0;
  };

  StopMatcher() = default;
  bool advance(char c);

  std::vector<Pattern> patterns_;
  std::string held_;
  std::optional<size_t> matched_;
};

}  // namespace kvasir
