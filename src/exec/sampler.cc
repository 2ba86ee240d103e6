#include "exec/sampler.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <numeric>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "base/random.h"
#include "ops/det_math.h"

namespace kvasir {
namespace {

constexpr float kNone = -std::numeric_limits<float>::infinity();

// Larger logits first, ties by id.
struct Before {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

bool is_of(Token token, size_t vocab) {
  return token >= 0 && static_cast<size_t>(token) < vocab;
}

// Whether the output ends with all of the list but its last id.
bool would_complete(const std::vector<Token>& list, std::span<const Token> output) {
  const size_t before = list.size() - 1;
  return output.size() >= before &&
         std::equal(list.begin(), list.end() - 1, output.end() - static_cast<ptrdiff_t>(before));
}

// The first index whose running sum exceeds u times the total of the first `count` weights. By a rounding
// none may: then the last with a weight.
size_t inverse_transform(std::span<const float> weights, size_t count, double u) {
  double total = 0;
  for (size_t i = 0; i < count; ++i) total += weights[i];
  const double target = u * total;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += weights[i];
    if (sum > target) return i;
  }
  while (count > 1 && weights[count - 1] <= 0) --count;
  return count - 1;
}

// How many of the descending weights reach `top_p` of `mass`; 0: not even all of them.
size_t nucleus(std::span<const float> weights, double mass, double top_p) {
  double sum = 0;
  for (size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= top_p * mass) return i + 1;
  }
  return 0;
}

}  // namespace

// Of one row of logits.
class Sampler::Logprobs {
 public:
  Logprobs(const ops::Kernels& kernels, std::span<const float> logits) : logits_(logits) {
    float sum = 0;
    kernels.softmax_stats(logits.data(), static_cast<int64_t>(logits.size()), &max_, &sum);
    log_sum_ = ops::det_log(static_cast<double>(sum));
  }
  float of(Token t) const {
    return static_cast<float>(static_cast<double>(logits_[static_cast<size_t>(t)]) - max_ - log_sum_);
  }

 private:
  const std::span<const float> logits_;
  float max_ = 0;
  double log_sum_ = 0;
};

// ---------------------------------------------------------------- rules

std::span<const float> Sampler::without_nan(std::span<const float> logits) {
  if (std::none_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })) return logits;
  clean_.assign(logits.begin(), logits.end());
  std::replace_if(
      clean_.begin(), clean_.end(), [](float x) { return std::isnan(x); }, kNone);
  return clean_;
}

std::span<const float> Sampler::adjust(std::span<const float> logits, const SamplingParams& params,
                                       uint32_t position, std::span<const Token> history) {
  if (!params.rules) return logits;
  const LogitRules& rules = *params.rules;
  const uint32_t begin = std::min(params.prompt_tokens, position);
  adjusted_.assign(logits.begin(), logits.end());
  const auto forbid = [&](Token t) {
    if (is_of(t, adjusted_.size())) adjusted_[static_cast<size_t>(t)] = kNone;
  };
  if (rules.reads_history()) {
    KV_CHECK(history.size() == position, "history={} position={}", history.size(), position);
    for (const std::vector<Token>& list : rules.bad_words) {
      if (!list.empty() && would_complete(list, history.subspan(begin))) forbid(list.back());
    }
  }
  if (position - begin < rules.min_tokens) {
    for (const Token t : rules.ends) forbid(t);
  }
  for (const auto& [t, bias] : rules.bias) {
    if (is_of(t, adjusted_.size())) adjusted_[static_cast<size_t>(t)] += bias;
  }
  if (rules.has_penalties()) penalise(rules, begin, history);
  return adjusted_;
}

void Sampler::penalise(const LogitRules& rules, uint32_t prompt_tokens, std::span<const Token> history) {
  // The mark of a token that was met, beside the count of those in the output.
  constexpr uint32_t kSeen = uint32_t{1} << 31;
  counts_.resize(adjusted_.size());
  seen_.clear();
  seen_.reserve(std::min(history.size(), counts_.size()));  // from here on nothing throws: counts_ must be 0
  const size_t first = rules.repetition_penalty == 1 ? prompt_tokens : 0;
  for (size_t i = first; i < history.size(); ++i) {
    if (!is_of(history[i], counts_.size())) continue;
    uint32_t& count = counts_[static_cast<size_t>(history[i])];
    if (count == 0) seen_.push_back(history[i]);
    count |= kSeen;
    if (i >= prompt_tokens) ++count;
  }
  for (const Token t : seen_) {
    float& l = adjusted_[static_cast<size_t>(t)];
    uint32_t& count = counts_[static_cast<size_t>(t)];
    const uint32_t in_output = count & ~kSeen;
    if (!mutant(Mutant::kCountsKept)) count = 0;
    l = l > 0 ? l / rules.repetition_penalty : l * rules.repetition_penalty;
    if (in_output == 0) continue;
    l -= rules.frequency_penalty * static_cast<float>(in_output);
    l -= rules.presence_penalty;
  }
}

std::span<const float> Sampler::keep_to(const TokenMask& mask, std::span<const float> adjusted,
                                        std::span<const float> logits) {
  if (adjusted.data() != adjusted_.data()) adjusted_.assign(adjusted.begin(), adjusted.end());
  const size_t vocab = adjusted_.size();
  bool some = false;
  const auto each_allowed = [&](const auto& visit) {
    for (size_t w = 0; w < mask.words.size() && 32 * w < vocab; ++w) {
      for (uint32_t bits = mask.words[w]; bits != 0; bits &= bits - 1) {
        const size_t t = 32 * w + static_cast<size_t>(std::countr_zero(bits));
        if (t < vocab) visit(t);
      }
    }
  };
  for (size_t w = 0; 32 * w < vocab; ++w) {
    const uint32_t bits = w < mask.words.size() ? mask.words[w] : 0;
    if (bits == UINT32_MAX) continue;
    const size_t end = std::min(vocab, 32 * w + 32);
    for (size_t t = 32 * w; t < end; ++t) {
      if (((bits >> (t % 32)) & 1U) == 0) adjusted_[t] = kNone;
    }
  }
  for (size_t t = 0; t < vocab && !some; ++t) some = adjusted_[t] > kNone;
  if (some) return adjusted_;
  each_allowed([&](size_t t) {
    adjusted_[t] = logits[t];
    some = some || logits[t] > kNone;
  });
  if (!some) each_allowed([&](size_t t) { adjusted_[t] = 0; });
  return adjusted_;
}

// ---------------------------------------------------------------- the draw

void Sampler::weigh_all(std::span<const float> logits, float max, float temperature) {
  every_.resize(logits.size());
  for (size_t i = 0; i < logits.size(); ++i) every_[i] = (logits[i] - max) / temperature;
  kernels_->exp_shifted(every_.data(), 0.0f, static_cast<int64_t>(every_.size()), every_.data());
}

void Sampler::rank(std::span<const float> logits, size_t count) {
  ids_.resize(logits.size());
  std::iota(ids_.begin(), ids_.end(), 0);
  count = std::min(count, ids_.size());
  const Before before{logits};
  const auto end = ids_.begin() + static_cast<ptrdiff_t>(count);
  if (count < ids_.size()) std::nth_element(ids_.begin(), end, ids_.end(), before);
  std::sort(ids_.begin(), end, before);
  ids_.resize(count);
}

void Sampler::weigh_ids(std::span<const float> logits, float max, float temperature) {
  weights_.resize(ids_.size());
  for (size_t i = 0; i < ids_.size(); ++i) {
    weights_[i] = (logits[static_cast<size_t>(ids_[i])] - max) / temperature;
  }
  kernels_->exp_shifted(weights_.data(), 0.0f, static_cast<int64_t>(weights_.size()), weights_.data());
}

void Sampler::cut_by_probability(std::span<const float> logits, const SamplingParams& params, float max) {
  weigh_all(logits, max, params.temperature);
  ids_.clear();
  // The largest weight is 1.
  for (size_t i = 0; i < every_.size(); ++i) {
    if (every_[i] >= params.min_p) ids_.push_back(static_cast<int32_t>(i));
  }
  std::sort(ids_.begin(), ids_.end(), Before{logits});
  weigh_ids(logits, max, params.temperature);
  if (params.typical_p >= 1.0f) return;
  keep_typical(logits, params.typical_p);
  weigh_ids(logits, max, params.temperature);
}

// Ties by the order of candidates.
void Sampler::keep_typical(std::span<const float> logits, double typical_p) {
  const double mass = std::accumulate(weights_.begin(), weights_.end(), 0.0);
  const double log_mass = ops::det_log(mass);
  double entropy = 0;
  surprises_.clear();
  for (size_t i = 0; i < weights_.size(); ++i) {
    // Without probability: never typical.
    if (weights_[i] <= 0) break;
    const double surprise = log_mass - ops::det_log(static_cast<double>(weights_[i]));
    entropy += weights_[i] / mass * surprise;
    surprises_.emplace_back(surprise, i);
  }
  for (auto& [surprise, i] : surprises_) surprise = std::abs(surprise - entropy);
  std::sort(surprises_.begin(), surprises_.end());
  double held = 0;
  size_t kept = 0;
  while (kept < surprises_.size() && held < typical_p * mass) held += weights_[surprises_[kept++].second];
  seen_.clear();
  for (size_t k = 0; k < kept; ++k) seen_.push_back(ids_[surprises_[k].second]);
  std::sort(seen_.begin(), seen_.end(), Before{logits});
  ids_.assign(seen_.begin(), seen_.end());
}

Token Sampler::draw_from_nucleus(std::span<const float> logits, const SamplingParams& params, float max,
                                 double u) {
  // Few candidates usually hold the mass, so the list to sort grows only while it must. Each list is closed
  // upwards, hence begins with the nucleus as soon as it holds enough.
  weigh_all(logits, max, params.temperature);
  const double mass = std::accumulate(every_.begin(), every_.end(), 0.0);
  for (float least = 0x1p-6f;; least = least > 0x1p-60f ? least * 0x1p-6f : 0.0f) {
    ids_.clear();
    double held = 0;
    for (size_t i = 0; i < every_.size(); ++i) {
      if (every_[i] < least) continue;
      ids_.push_back(static_cast<int32_t>(i));
      held += every_[i];
    }
    if (held < params.top_p * mass && least > 0) continue;
    std::sort(ids_.begin(), ids_.end(), Before{logits});
    weigh_ids(logits, max, params.temperature);
    size_t n = nucleus(weights_, mass, params.top_p);
    if (n == 0 && least == 0.0f) n = ids_.size();  // the sum in this order falls short by its rounding
    if (n > 0) return ids_[inverse_transform(weights_, n, u)];
  }
}

Token Sampler::draw(std::span<const float> logits, const SamplingParams& params, float max, double u) {
  const bool cut_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size();
  const bool by_probability = params.min_p > 0 || params.typical_p < 1.0f;
  if (!cut_k && !by_probability) {
    if (params.top_p < 1.0f) return draw_from_nucleus(logits, params, max, u);
    weigh_all(logits, max, params.temperature);
    return static_cast<Token>(inverse_transform(every_, every_.size(), u));
  }
  if (by_probability) {
    cut_by_probability(logits, params, max);
  } else {
    rank(logits, static_cast<size_t>(params.top_k));
    weigh_ids(logits, max, params.temperature);
  }
  size_t count = cut_k ? std::min(ids_.size(), static_cast<size_t>(params.top_k)) : ids_.size();
  if (params.top_p < 1.0f) {
    const std::span<const float> left = std::span(weights_).first(count);
    const double mass = std::accumulate(left.begin(), left.end(), 0.0);
    const size_t n = nucleus(left, mass, params.top_p);
    if (n > 0) count = n;
  }
  return ids_[inverse_transform(weights_, count, u)];
}

// Of equal logits that are the largest, the first one counts.
Token Sampler::choose(std::span<const float> logits, const SamplingParams& params, uint32_t position) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (params.temperature <= 0.0f || !std::isfinite(*best)) return static_cast<Token>(best - logits.begin());
  uint64_t counter = position;
#if defined(KVASIR_MUTANTS)
  static std::atomic<uint64_t> calls{0};
  if (mutant(Mutant::kSamplerSeedByStep)) counter = calls.fetch_add(1);
#endif
  return draw(logits, params, *best, random_unit(params.seed, 0, counter));
}

// The same where the end is still to come: as if the model gave the end token no probability.
Token Sampler::choose_before_end(std::span<const float> logits, const SamplingParams& params,
                                 uint32_t position) {
  std::vector<float> banned(logits.begin(), logits.end());
  banned[static_cast<size_t>(params.end_token)] = kNone;
  const Token token = choose(banned, params, position);
  // Nothing else has any probability either.
  return token == params.end_token ? static_cast<Token>(token == 0 ? 1 : 0) : token;
}

SampledToken Sampler::sample(std::span<const float> logits, const SamplingParams& params, uint32_t position,
                             std::span<const Token> history, SeqId seq, const TokenMask* mask) {
  KV_CHECK(!logits.empty(), "seq={}", raw(seq));
  logits = without_nan(logits);
  std::span<const float> adjusted = adjust(logits, params, position, history);
  if (mask) adjusted = keep_to(*mask, adjusted, logits);
  SampledToken out;
  out.seq = seq;
  if (params.forced_end == 0 || position > params.forced_end) {
    out.token = choose(adjusted, params, position);
  } else {
    KV_CHECK(logits.size() > 1 && is_of(params.end_token, logits.size()), "end_token={} vocabulary={}",
             params.end_token, logits.size());
    out.token =
        position == params.forced_end ? params.end_token : choose_before_end(adjusted, params, position);
  }
  if (params.logprobs >= 0) {
    const Logprobs logprobs(*kernels_, logits);
    out.logprob = logprobs.of(out.token);
    add_top(logits, params.logprobs, logprobs, out.top);
  }
  return out;
}

ScoredToken Sampler::score(std::span<const float> logits, Token token, int32_t top) {
  KV_CHECK(is_of(token, logits.size()), "token={} vocabulary={}", token, logits.size());
  logits = without_nan(logits);
  const Logprobs logprobs(*kernels_, logits);
  ScoredToken out;
  out.token = token;
  out.logprob = logprobs.of(token);
  const float own = logits[static_cast<size_t>(token)];
  out.rank +=
      static_cast<uint32_t>(std::count_if(logits.begin(), logits.end(), [&](float l) { return l > own; }));
  add_top(logits, top, logprobs, out.top);
  return out;
}

void Sampler::add_top(std::span<const float> logits, int32_t count, const Logprobs& logprobs,
                      std::vector<TokenLogprob>& out) {
  if (count == 0) return;
  rank(logits, static_cast<size_t>(count));
  for (const int32_t id : ids_) out.push_back({id, logprobs.of(id)});
}

}  // namespace kvasir
