#include "exec/cpu/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "base/check.h"
#include "base/mutant.h"
#include "base/random.h"
#include "ops/det_math.h"

namespace kvasir {
namespace {

// Larger logits first, ties by id.
struct Before {
  std::span<const float> logits;
  bool operator()(int32_t a, int32_t b) const {
    const float x = logits[static_cast<size_t>(a)], y = logits[static_cast<size_t>(b)];
    return x != y ? x > y : a < b;
  }
};

// The `count` first ids in the order (logit descending, id ascending).
std::vector<int32_t> most_likely(std::span<const float> logits, size_t count) {
  std::vector<int32_t> ids(logits.size());
  std::iota(ids.begin(), ids.end(), 0);
  count = std::min(count, ids.size());
  const Before before{logits};
  const auto end = ids.begin() + static_cast<ptrdiff_t>(count);
  if (count < ids.size()) std::nth_element(ids.begin(), end, ids.end(), before);
  std::sort(ids.begin(), end, before);
  ids.resize(count);
  return ids;
}

// exp((logit - max) / T) of the candidates, in their order.
std::vector<float> weights_of(const ops::Kernels& kernels, std::span<const float> logits,
                              std::span<const int32_t> ids, float max, float temperature) {
  std::vector<float> w(ids.size());
  for (size_t i = 0; i < ids.size(); ++i) w[i] = (logits[static_cast<size_t>(ids[i])] - max) / temperature;
  kernels.exp_shifted(w.data(), 0.0f, static_cast<int64_t>(w.size()), w.data());
  return w;
}

// The first index whose running sum exceeds u times the total of the first `count` weights.
size_t inverse_transform(std::span<const float> weights, size_t count, double u) {
  double total = 0;
  for (size_t i = 0; i < count; ++i) total += weights[i];
  const double target = u * total;
  double sum = 0;
  for (size_t i = 0; i < count; ++i) {
    sum += weights[i];
    if (sum > target) return i;
  }
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

Token draw(const ops::Kernels& kernels, std::span<const float> logits, const SamplingParams& params,
           float max, double u) {
  const size_t vocab = logits.size();
  const bool cut_k = params.top_k > 0 && static_cast<size_t>(params.top_k) < vocab;
  if (!cut_k && params.top_p >= 1.0f) {
    std::vector<float> w(vocab);
    for (size_t i = 0; i < vocab; ++i) w[i] = (logits[i] - max) / params.temperature;
    kernels.exp_shifted(w.data(), 0.0f, static_cast<int64_t>(vocab), w.data());
    return static_cast<Token>(inverse_transform(w, vocab, u));
  }
  if (cut_k) {
    const auto ids = most_likely(logits, static_cast<size_t>(params.top_k));
    const auto w = weights_of(kernels, logits, ids, max, params.temperature);
    const double mass = std::accumulate(w.begin(), w.end(), 0.0);
    const size_t count =
        params.top_p < 1.0f ? std::max<size_t>(nucleus(w, mass, params.top_p), 1) : ids.size();
    return ids[inverse_transform(w, count, u)];
  }
  // top_p alone: few candidates usually hold the mass, so the list to sort grows only while it must. Each
  // list is closed upwards, hence begins with the nucleus as soon as it holds enough.
  std::vector<int32_t> all(vocab);
  std::iota(all.begin(), all.end(), 0);
  const auto every = weights_of(kernels, logits, all, max, params.temperature);
  const double mass = std::accumulate(every.begin(), every.end(), 0.0);
  for (float least = 0x1p-6f;; least = least > 0x1p-60f ? least * 0x1p-6f : 0.0f) {
    std::vector<int32_t> ids;
    double held = 0;
    for (size_t i = 0; i < vocab; ++i) {
      if (every[i] < least) continue;
      ids.push_back(static_cast<int32_t>(i));
      held += every[i];
    }
    if (held < params.top_p * mass && least > 0) continue;
    std::sort(ids.begin(), ids.end(), Before{logits});
    const auto w = weights_of(kernels, logits, ids, max, params.temperature);
    size_t n = nucleus(w, mass, params.top_p);
    if (n == 0 && least == 0.0f) n = ids.size();  // the sum in this order falls short by its rounding
    if (n > 0) return ids[inverse_transform(w, n, u)];
  }
}

// Of equal logits that are the largest, the first one counts.
Token choose(const ops::Kernels& kernels, std::span<const float> logits, const SamplingParams& params,
             uint32_t position) {
  const auto best = std::max_element(logits.begin(), logits.end());
  if (params.temperature <= 0.0f || !std::isfinite(*best)) return static_cast<Token>(best - logits.begin());
  uint64_t counter = position;
#if defined(KVASIR_MUTANTS)
  static std::atomic<uint64_t> calls{0};
  if (mutant(Mutant::kSamplerSeedByStep)) counter = calls.fetch_add(1);
#endif
  return draw(kernels, logits, params, *best, random_unit(params.seed, 0, counter));
}

// The same where the end is still to come: as if the model gave the end token no probability.
Token choose_before_end(const ops::Kernels& kernels, std::span<const float> logits,
                        const SamplingParams& params, uint32_t position) {
  std::vector<float> banned(logits.begin(), logits.end());
  banned[static_cast<size_t>(params.end_token)] = -std::numeric_limits<float>::infinity();
  const Token token = choose(kernels, banned, params, position);
  // Nothing else has any probability either.
  return token == params.end_token ? static_cast<Token>(token == 0 ? 1 : 0) : token;
}

}  // namespace

SampledToken sample(const ops::Kernels& kernels, std::span<const float> logits, const SamplingParams& params,
                    uint32_t position, SeqId seq) {
  KV_CHECK(!logits.empty(), "seq={}", raw(seq));
  std::vector<float> clean;
  if (std::any_of(logits.begin(), logits.end(), [](float x) { return std::isnan(x); })) {
    clean.assign(logits.begin(), logits.end());
    std::replace_if(
        clean.begin(), clean.end(), [](float x) { return std::isnan(x); },
        -std::numeric_limits<float>::infinity());
    logits = clean;
  }
  SampledToken out;
  out.seq = seq;
  if (params.forced_end == 0 || position > params.forced_end) {
    out.token = choose(kernels, logits, params, position);
  } else {
    KV_CHECK(
        logits.size() > 1 && params.end_token >= 0 && static_cast<size_t>(params.end_token) < logits.size(),
        "end_token={} vocabulary={}", params.end_token, logits.size());
    out.token = position == params.forced_end ? params.end_token
                                              : choose_before_end(kernels, logits, params, position);
  }
  if (params.logprobs >= 0) {
    float max = 0, sum = 0;
    kernels.softmax_stats(logits.data(), static_cast<int64_t>(logits.size()), &max, &sum);
    const double log_sum = ops::det_log(static_cast<double>(sum));
    auto logprob = [&](int32_t id) {
      return static_cast<float>(static_cast<double>(logits[static_cast<size_t>(id)]) - max - log_sum);
    };
    out.logprob = logprob(out.token);
    for (int32_t id : most_likely(logits, static_cast<size_t>(params.logprobs)))
      out.top.push_back({id, logprob(id)});
  }
  return out;
}

}  // namespace kvasir
