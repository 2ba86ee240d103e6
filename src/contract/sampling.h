// How the next token of a sequence is chosen from its logits.
#pragma once

#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "contract/ids.h"
#include "contract/token_constraint.h"

namespace kvasir {

// Changes of the logits, applied in the order of the fields. Immutable, and shared by all steps of a request.
// An *output token* is one at an index >= SamplingParams::prompt_tokens of the sequence. Ids that the model
// does not have are ignored.
struct LogitRules {
  // Lists of ids. The last id of a list has no probability where the output ends with the others.
  std::vector<std::vector<Token>> bad_words;
  // Before there are so many output tokens, these have no probability.
  uint32_t min_tokens = 0;
  std::vector<Token> ends;
  std::vector<std::pair<Token, float>> bias;  // is added
  // Of a token in prompt or output: l / r where l > 0, else l * r. (0, infinity)
  float repetition_penalty = 1.0F;
  // Of a token that is n > 0 times in the output: l - n * frequency - presence.
  float frequency_penalty = 0.0F;
  float presence_penalty = 0.0F;

  bool has_penalties() const {
    return repetition_penalty != 1 || frequency_penalty != 0 || presence_penalty != 0;
  }
  bool reads_history() const { return has_penalties() || !bad_words.empty(); }
  bool empty() const { return !reads_history() && (min_tokens == 0 || ends.empty()) && bias.empty(); }
};

// The draw at a position depends on (seed, position) only.
struct SamplingParams {
  float temperature = 1.0f;  // 0: the most likely token; ties go to the smaller id
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0: all
  float min_p = 0.0f;        // [0, 1]
  float typical_p = 1.0f;    // (0, 1]
  uint64_t seed = 0;
  std::shared_ptr<const LogitRules> rules;  // null: none
  // After the rules nothing else has any probability. Null: none.
  std::shared_ptr<TokenConstraint> constraint;
  // Where the output begins. The engine sets it.
  uint32_t prompt_tokens = 0;
  // The token at index forced_end of its sequence is end_token, and no token before it is. 0: nothing is
  // forced. For experiments that replay outputs of given lengths; only the sampler reads it.
  uint32_t forced_end = 0;
  Token end_token = 0;
  // -1: no log-probabilities; n >= 0: those of the chosen token and of the n most likely ones.
  int32_t logprobs = -1;
  // The same for each token of the prompt but the first.
  int32_t prompt_logprobs = -1;

  // The sampler needs the tokens of the sequence.
  bool reads_history() const { return constraint || (rules && rules->reads_history()); }
};

}  // namespace kvasir
