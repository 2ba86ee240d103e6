// Every figure below is one that the named paper states, or that was counted in the named public data, or is
// called assumed. Parameters of lognormals are solved so that the mean of what is left after the cuts (and,
// for arXiv, the median too) is the stated one; knots so that min, median, mean and max are.
#include "apps/bench/workloads.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <optional>

#include "base/check.h"
#include "base/draws.h"
#include "base/random.h"

namespace kvasir {
namespace {

// Streams 0 and up of the seed belong to the prompts' words, and those from 2^40 on to the arrivals.
constexpr uint64_t kLengthStream = uint64_t{1} << 41;

// The deviations of the logarithms are those of the public ShareGPT lengths under Llama 2's tokenizer (1.34
// and 0.88 for conversations of at most 2,048 tokens).
constexpr LengthModel kShareGptOutput{{}, 5.7435, 0.9, 19, 991};

// The quantiles of the 164 problems and their reference solutions under OPT's tokenizer.
constexpr Knot kHumanEvalPrompt[] = {{0, 55},   {.05, 72},  {.1, 91},   {.2, 106}, {.3, 122},
                                     {.4, 136}, {.5, 146},  {.6, 171},  {.7, 189}, {.8, 216},
                                     {.9, 278}, {.95, 324}, {.98, 410}, {1, 629}};
constexpr Knot kHumanEvalOutput[] = {{0, 9},    {.05, 14},  {.1, 19},   {.2, 33},   {.3, 43},
                                     {.4, 61},  {.5, 79},   {.6, 96},   {.7, 115},  {.8, 151},
                                     {.9, 194}, {.95, 231}, {.98, 320}, {.99, 412}, {1, 514}};

// L-Eval's "paper assistant": 69 questions, Llama 2's tokenizer.
constexpr Knot kLevalPrompt[] = {{0, 5187},   {.05, 5339},   {.1, 6288},   {.2, 6774},  {.3, 7091},
                                 {.4, 7412},  {.5, 9177},    {.6, 9979},   {.7, 11315}, {.8, 15388},
                                 {.9, 16922}, {.955, 18343}, {.96, 33273}, {1, 33989}};
constexpr Knot kLevalOutput[] = {{0, 143},  {.05, 156}, {.1, 178}, {.2, 219}, {.3, 255},
                                 {.4, 317}, {.5, 421},  {.6, 465}, {.7, 504}, {.8, 576},
                                 {.9, 631}, {.95, 649}, {1, 968}};

// Outputs: the pooled quantiles of the references for government reports, meetings and news that L-Eval has,
// each kind with the same weight; their mean is 295.
constexpr Knot kLongBenchPrompt[] = {{0, 300}, {1.0 / 3, 2048}, {1, 2048}};
constexpr Knot kFilteredLongBenchPrompt[] = {{0, 300}, {1, 2048}};
constexpr Knot kLongBenchOutput[] = {{0, 26},    {.1, 56},  {.2, 82},   {.3, 122},  {.33, 150},
                                     {.35, 226}, {.4, 298}, {.5, 344},  {.6, 401},  {.7, 416},
                                     {.8, 436},  {.9, 472}, {.95, 512}, {.99, 664}, {1, 664}};

// Cut into pieces of 2,048 tokens, of which 9.447 % are the last ones of their texts.
constexpr Knot kBookPrompt[] = {{0, 18}, {.09447, 2048}, {1, 2048}};
constexpr Knot kBookOutput[] = {{0, 32}, {.5, 826}, {1, 1041}};
constexpr Knot kLongBookPrompt[] = {{0, 10084}, {.25, 13600}, {.5, 14781}, {.75, 22500}, {1, 23706}};
constexpr Knot kLongBookOutput[] = {{0, 19}, {.25, 115}, {.5, 221}, {.75, 245}, {1, 299}};
constexpr Knot kWikiTextPrompt[] = {{0, 90}, {.25, 620}, {.5, 871}, {.75, 1200}, {1, 1840}};
constexpr Knot kWikiTextOutput[] = {{0, 1}, {.25, 268}, {.5, 552}, {.75, 768}, {1, 992}};

// Infinite-LLM's Table 2 with K = 1,000: up to `range` is normal, up to twice that is long.
constexpr std::array<double, 6> kMixRanges = {100e3, 140e3, 300e3, 240e3, 600e3, 950e3};
constexpr std::array<double, 3> kMixNormal = {.99, .90, .70};
constexpr size_t kMixes = kMixRanges.size() * kMixNormal.size();
using MixKnots = std::array<std::array<Knot, 3>, kMixes>;
constexpr MixKnots make_mixes() {
  MixKnots mixes{};
  for (size_t i = 0; i < kMixes; ++i) {
    const double range = kMixRanges[i % kMixRanges.size()];
    mixes[i] = {{{0, 1}, {kMixNormal[i / kMixRanges.size()], range}, {1, 2 * range}}};
  }
  return mixes;
}
constexpr MixKnots kMixKnots = make_mixes();

// The same ranges and shares; the normal ones even in the logarithm, by so many pieces. The paper states no
// law within the ranges: this one is ours, as the even one is.
constexpr size_t kLogPieces = 32;
using LogMixKnots = std::array<std::array<Knot, kLogPieces + 2>, kMixes>;
const LogMixKnots& log_mix_knots() {
  static const LogMixKnots mixes = [] {
    LogMixKnots out{};
    for (size_t i = 0; i < kMixes; ++i) {
      const double range = kMixRanges[i % kMixRanges.size()];
      const double normal = kMixNormal[i / kMixRanges.size()];
      for (size_t k = 0; k <= kLogPieces; ++k) {
        const double part = static_cast<double>(k) / kLogPieces;
        out[i][k] = {normal * part, std::pow(range, part)};
      }
      out[i].back() = {1, 2 * range};
    }
    return out;
  }();
  return mixes;
}

constexpr std::string_view kMixName = "infinite-llm-mix-";
constexpr std::string_view kLogMixName = "infinite-llm-log-mix-";
constexpr std::string_view kLongOutputsName = "infinite-llm-long-outputs-";
constexpr std::string_view kFixedName = "layerkv-fixed:";
constexpr int64_t kMaxFixed = 10'000'000;

LengthModel by_knots(std::span<const Knot> knots) {
  LengthModel model;
  model.knots = knots;
  model.min = std::llround(knots.front().tokens);
  model.max = std::llround(knots.back().tokens);
  return model;
}

std::vector<Workload> make_registry() {
  using Joined = Workload::Joined;
  return {
      {"sharegpt",
       "CacheOpt, Table 1; the cut at 2,048 is the papers' for OPT",
       "means 161.31 / 337.99, ranges 16-3,200 / 19-991",
       "the shape: deviations of the logarithms near the public data's",
       {{}, 4.2391, 1.3, 16, 3200},
       kShareGptOutput,
       Joined::kRedraw,
       2048},
      {"alpaca",
       "CacheOpt, Table 1",
       "means 19.31 / 58.41, ranges 9-2,470 / 13-292",
       "lognormals with deviations 0.6 and 0.8; so the longest prompts are far below 2,470",
       {{}, 2.63018, 0.6, 9, 2470},
       {{}, 3.73612, 0.8, 13, 292}},
      {"bookcorpus", "CacheOpt, Table 1 and Section 2.1: texts are divided into pieces of 2,048 tokens",
       "means 1,952.11 / 681.2, prompts from 18, outputs 32-1,041",
       "prompts are pieces: mean and least piece give the share of last ones; the 461K are a text, not a "
       "prompt; outputs have median 826",
       by_knots(kBookPrompt), by_knots(kBookOutput)},
      {"humaneval", "Apt-Serve, Section 6.2 (its Figure 7 has no figures)",
       "the 164 public problems under OPT's tokenizer: means 171.35 / 98.17, ranges 55-629 / 9-514",
       "outputs are the reference solutions' lengths; prompt and output are independent",
       by_knots(kHumanEvalPrompt), by_knots(kHumanEvalOutput)},
      {"longbench",
       "Apt-Serve, Section 6.2: summarisation, cut to OPT's 2,048 positions; no figures are stated",
       "sum at most 2,048; outputs those of public references of government reports, meetings and news alike",
       "two thirds of the prompts fill what the output leaves, the others are even from 300 on",
       by_knots(kLongBenchPrompt), by_knots(kLongBenchOutput), Joined::kCutPrompt, 2048},
      {"longbench-filtered",
       "Apt-Serve, Sections 6.2 and 6.3: as longbench, with the high variance in input lengths that it "
       "speaks of",
       "sum at most 2,048; outputs as longbench's, of which long ones are drawn again more often",
       "texts that are longer are left out, and not cut; prompts are even from 300 on",
       by_knots(kFilteredLongBenchPrompt), by_knots(kLongBenchOutput), Joined::kRedraw, 2048},
      {"wikitext", "Apt-Serve, Table 7", "means 914 / 521, medians 871 / 552, max 1,840 / 992",
       "the shape between them", by_knots(kWikiTextPrompt), by_knots(kWikiTextOutput)},
      {"arxiv",
       "Apt-Serve, Table 7",
       "means 7,812 / 420, medians 6,853 / 226, max 19,600 / 9,754",
       "lognormals, prompts from 1,000 and outputs from 4 tokens on",
       {{}, 8.95021, 0.80162, 1000, 19600},
       {{}, 5.42096, 1.12422, 4, 9754}},
      {"bookcorpus-long", "Apt-Serve, Table 7", "means 16,944 / 185, medians 14,781 / 221, max 23,706 / 299",
       "the shape between them", by_knots(kLongBookPrompt), by_knots(kLongBookOutput)},
      {"leval", "eLLM, Section 6.1: the paper assistant of L-Eval",
       "the public data in tokens: means 10,745 / 404, ranges 5,187-33,989 / 143-968 (the paper's 35,956 / "
       "5,189 are characters)",
       "outputs are the references' lengths; prompt and output are independent", by_knots(kLevalPrompt),
       by_knots(kLevalOutput)},
  };
}

// The number after `prefix`, in [1, most].
std::optional<int64_t> number_after(std::string_view name, std::string_view prefix, int64_t most) {
  if (!name.starts_with(prefix)) return std::nullopt;
  name.remove_prefix(prefix.size());
  int64_t number = 0;
  const auto [end, problem] = std::from_chars(name.data(), name.data() + name.size(), number);
  const bool whole = problem == std::errc() && end == name.data() + name.size();
  return whole && number >= 1 && number <= most ? std::optional(number) : std::nullopt;
}

Workload mix(int64_t id) {
  const auto index = static_cast<size_t>(id - 1);
  Workload w;
  w.name = fmt::format("{}{}", kMixName, id);
  w.source = fmt::format("Infinite-LLM, Table 2, dataset {}", id);
  w.matched =
      fmt::format("contexts of 1 to {:.0f}K tokens, and up to {:.0f}K for {:.0f} % of the requests",
                  kMixRanges[index % kMixRanges.size()] / 1000, kMixRanges[index % kMixRanges.size()] / 500,
                  100 * (1 - kMixNormal[index / kMixRanges.size()]));
  w.assumed = "even within each range; a context is prompt and output; outputs as ShareGPT's, at most half";
  w.prompt = by_knots(kMixKnots[index]);
  w.output = kShareGptOutput;
  w.joined = Workload::Joined::kPromptIsTotal;
  return w;
}

// The same ranges, with most of the normal contexts short.
Workload log_mix(int64_t id) {
  Workload w = mix(id);
  w.name = fmt::format("{}{}", kLogMixName, id);
  w.assumed =
      "normal contexts even in the logarithm, long ones even; a context is prompt and output; outputs as "
      "ShareGPT's, at most half";
  w.prompt = by_knots(log_mix_knots()[static_cast<size_t>(id - 1)]);
  return w;
}

// The same contexts, of which outputs are a part that counts.
Workload mix_of_long_outputs(int64_t id) {
  Workload w = mix(id);
  w.name = fmt::format("{}{}", kLongOutputsName, id);
  w.assumed = "even within each range; a context is prompt and output; outputs even from 1 to half of it";
  w.joined = Workload::Joined::kHalfOfTotal;
  return w;
}

Workload fixed(int64_t prompt) {
  Workload w;
  w.name = fmt::format("{}{}", kFixedName, prompt);
  w.source = "LayerKV, Figures 1 and 4";
  w.matched = fmt::format("prompts of {} tokens, outputs of 512", prompt);
  w.assumed = "nothing";
  // A lognormal without deviation is its mean; min and max hold it at the whole number.
  w.prompt = {{}, std::log(static_cast<double>(prompt)), 0, prompt, prompt};
  w.output = {{}, std::log(512.0), 0, 512, 512};
  return w;
}

// Whole tokens; outside [min, max] for some draws of a lognormal.
int64_t draw_length(const LengthModel& model, uint64_t seed, uint64_t stream, uint64_t* counter) {
  if (model.knots.empty()) {
    return std::llround(std::exp(model.log_mean + model.log_deviation * normal_draw(seed, stream, counter)));
  }
  const double share = random_unit(seed, stream, (*counter)++);
  for (size_t i = 1; i < model.knots.size(); ++i) {
    const Knot& a = model.knots[i - 1];
    const Knot& b = model.knots[i];
    if (share > b.share) continue;
    return std::llround(a.tokens + (share - a.share) / (b.share - a.share) * (b.tokens - a.tokens));
  }
  KV_CHECK(false, "share={}", share);
}

bool holds(const LengthModel& model, int64_t length) {
  return length >= model.min && length <= model.max;
}

}  // namespace

Lengths Workload::draw(uint64_t seed, int64_t number) const {
  const uint64_t stream = kLengthStream + static_cast<uint64_t>(number);
  uint64_t counter = 0;
  while (true) {
    Lengths l;
    l.prompt = draw_length(prompt, seed, stream, &counter);
    l.output = draw_length(output, seed, stream, &counter);
    if (!holds(prompt, l.prompt) || !holds(output, l.output)) continue;
    switch (joined) {
      case Joined::kFree:
        return l;
      case Joined::kRedraw:
        if (l.prompt + l.output > max_total) continue;
        return l;
      case Joined::kCutPrompt:
        l.prompt = std::max<int64_t>(1, std::min(l.prompt, max_total - l.output));
        return l;
      case Joined::kPromptIsTotal:
        l.output = std::max<int64_t>(1, std::min(l.output, l.prompt / 2));
        l.prompt = std::max<int64_t>(1, l.prompt - l.output);
        return l;
      case Joined::kHalfOfTotal: {
        const double share = random_unit(seed, stream, counter++);
        const int64_t half = l.prompt / 2;
        l.output = 1 + static_cast<int64_t>(share * static_cast<double>(half));
        l.prompt = std::max<int64_t>(1, l.prompt - l.output);
        return l;
      }
    }
  }
}

Result<Workload> find_workload(std::string_view name) {
  for (Workload& workload : make_registry()) {
    if (workload.name == name) return std::move(workload);
  }
  if (const auto id = number_after(name, kMixName, kMixes)) return mix(*id);
  if (const auto id = number_after(name, kLogMixName, kMixes)) return log_mix(*id);
  if (const auto id = number_after(name, kLongOutputsName, kMixes)) return mix_of_long_outputs(*id);
  if (const auto prompt = number_after(name, kFixedName, kMaxFixed)) return fixed(*prompt);
  return error(ErrorCode::kNotFound, "no workload '{}': there are {}", name,
               fmt::join(workload_names(), ", "));
}

std::vector<std::string> workload_names() {
  std::vector<std::string> names;
  for (const Workload& workload : make_registry()) names.push_back(workload.name);
  names.push_back(fmt::format("{}1..{}", kMixName, kMixes));
  names.push_back(fmt::format("{}1..{}", kLogMixName, kMixes));
  names.push_back(fmt::format("{}1..{}", kLongOutputsName, kMixes));
  names.push_back(fmt::format("{}PROMPT", kFixedName));
  return names;
}

}  // namespace kvasir
