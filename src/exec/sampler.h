// Chooses the next token from a row of logits.
#pragma once

#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "contract/step.h"
#include "ops/cpu/kernels.h"

namespace kvasir {

// What a call returns is a pure function of its arguments; a sampler only keeps memory from call to call.
// Used by one thread. A NaN counts as -infinity.
//
// The token for a position (the index that it will have in the sequence), in the order of docs/api.md:
//   1. the rules of the logits, in the order in which LogitRules has them; then tokens outside the mask of a
//      constraint have no probability, and if the others have none either, they have the model's own;
//   2. before params.forced_end the end token is left out, and at that position it comes;
//   3. at temperature 0 the largest logit; ties go to the smaller id;
//   4. otherwise w_i = exp((l_i - max) / T), of those the ones with w_i >= min_p; of those the most typical
//      set whose mass reaches typical_p (Meister et al. 2022, "Locally Typical Sampling", section 3: tokens
//      in ascending order of |-ln p_i - H|, H the entropy); of those the top_k most likely; of those the
//      smallest set whose mass reaches top_p; drawn by inverse transform at random_unit(seed, 0, position).
// Each step takes what the one before has left, with its probabilities made to sum to 1 again. Candidates are
// ordered by logit, ties by id. Where the rules leave no token any probability, it is token 0.
// Log-probabilities are those of the model: temperature 1, all tokens, no rules, whatever is forced.
class Sampler {
 public:
  explicit Sampler(const ops::Kernels& kernels) : kernels_(&kernels) {}

  // history: the tokens of the sequence before `position`; may be empty unless params.reads_history(). `seq`
  // is copied into the result. mask: of params.constraint. REQUIRES: logits is not empty; a forced end token
  // is one of at least two; one of them at least is in the mask.
  SampledToken sample(std::span<const float> logits, const SamplingParams& params, uint32_t position,
                      std::span<const Token> history, SeqId seq, const TokenMask* mask = nullptr);

  // The log-probability of a prompt's token for the row before it, and the `top` most likely ones.
  // REQUIRES: the token is one of the logits'.
  ScoredToken score(std::span<const float> logits, Token token, int32_t top);

 private:
  class Logprobs;
  std::span<const float> without_nan(std::span<const float> logits);
  // The logits after the rules, in adjusted_.
  std::span<const float> adjust(std::span<const float> logits, const SamplingParams& params,
                                uint32_t position, std::span<const Token> history);
  void penalise(const LogitRules& rules, uint32_t prompt_tokens, std::span<const Token> history);
  // `adjusted` without what is outside the mask, in adjusted_. logits: the model's.
  std::span<const float> keep_to(const TokenMask& mask, std::span<const float> adjusted,
                                 std::span<const float> logits);
  Token choose(std::span<const float> logits, const SamplingParams& params, uint32_t position);
  Token choose_before_end(std::span<const float> logits, const SamplingParams& params, uint32_t position);
  Token draw(std::span<const float> logits, const SamplingParams& params, float max, double u);
  // The one that `u` draws from the smallest set of all tokens whose mass reaches top_p.
  Token draw_from_nucleus(std::span<const float> logits, const SamplingParams& params, float max, double u);
  // w of all logits, in every_.
  void weigh_all(std::span<const float> logits, float max, float temperature);
  // Makes ids_ the first `count` in the order of candidates.
  void rank(std::span<const float> logits, size_t count);
  // Makes weights_ those of ids_.
  void weigh_ids(std::span<const float> logits, float max, float temperature);
  // Makes ids_ the candidates that min_p and typical_p leave, in their order, and weights_ theirs.
  void cut_by_probability(std::span<const float> logits, const SamplingParams& params, float max);
  void keep_typical(std::span<const float> logits, double typical_p);
  void add_top(std::span<const float> logits, int32_t count, const Logprobs& logprobs,
               std::vector<TokenLogprob>& out);

  const ops::Kernels* kernels_;
  std::vector<float> clean_, adjusted_, every_;
  std::vector<int32_t> ids_;    // candidates
  std::vector<float> weights_;  // theirs
  std::vector<Token> seen_;
  std::vector<uint32_t> counts_;  // by token; all 0 between calls
  std::vector<std::pair<double, size_t>> surprises_;
};

}  // namespace kvasir
