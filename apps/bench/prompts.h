// What the requests ask: random words, or the lines of a file.
#pragma once

#include <cstdint>
#include <istream>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "apps/bench/goals.h"
#include "apps/bench/lengths.h"
#include "base/status.h"

namespace kvasir {

struct Prompt {
  std::string text;
  int64_t words = 0;           // stands in for the prompt's tokens where the server reports none
  int64_t max_tokens = 1;      // tokens of output: the most that the server may generate, or exactly as many
  std::vector<Goal> own = {};  // its own bounds, which are sent too; none: the run's
  int32_t priority = 0;        // sent, too, unless it is 0
};

struct RandomPromptSpec {
  int64_t input_len = 1024;  // words: common English ones, nearly always one token each
  int64_t output_len = 128;  // tokens
  double range_ratio = 0;    // lengths are uniform in [floor(len (1 - r)), ceil(len (1 + r))], and at least 1
  uint64_t seed = 0;         // of the lengths
  std::optional<uint64_t> word_key = std::nullopt;  // of the words; unset: the seed
};

// `count` common English words with spaces between, nearly always one token each. The same (key, stream)
// gives the same words. REQUIRES: count >= 1
std::string random_words(uint64_t key, uint64_t stream, int64_t count);

// Runs of characters between white space.
int64_t count_words(std::string_view text);

// The lengths of prompt number `number`, without its words.
Lengths random_lengths(const RandomPromptSpec& spec, int64_t number);

// Prompts number `first` to `first + count - 1`. A prompt depends on seed, word_key and its number alone.
// REQUIRES: count >= 0, input_len >= 1, output_len >= 1, 0 <= range_ratio < 1
std::vector<Prompt> random_prompts(const RandomPromptSpec& spec, int64_t first, int64_t count);

// JSON lines: {"prompt": "...", "max_tokens": 64}; "output_tokens" is another name for "max_tokens", and a
// line without either gets default_output_len. Empty lines are skipped. `name` is what the errors call the
// input: kInvalidArgument names the line at fault.
Result<std::vector<Prompt>> parse_custom_prompts(std::istream& in, const std::string& name,
                                                 int64_t default_output_len);

// As parse_custom_prompts, of the file at `path`; kNotFound or kIo when it cannot be read.
Result<std::vector<Prompt>> load_custom_prompts(const std::string& path, int64_t default_output_len);

}  // namespace kvasir
