#include "sched/mechanisms/step_margins.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>
#include <vector>

namespace kvasir {
namespace {

constexpr double kMemorySteps = 512;
constexpr double kForgottenSteps = 1e-3;  // a weight that says nothing any more
// Bins of 1/42 of an octave, 1.7 %, from 0.5 to 33: a ratio beyond that is no error of belief.
constexpr double kLeastRatio = 0.5;
constexpr double kBinsPerOctave = 42;
// Before anything has been measured: as if so many steps had taken a tenth longer than believed.
constexpr double kPriorRatio = 1.1;
constexpr int kPriorSteps = 4;
// What was never seen may come. Where it costs nothing a margin is as large as this.
constexpr double kUnseenRatio = 1.5;

}  // namespace

uint32_t StepMargins::range_of(double prefill_rows) {
  if (prefill_rows < 0) return kRanges - 1;
  if (prefill_rows == 0) return 0;
  return prefill_rows < 64 ? 1 : prefill_rows < 256 ? 2 : prefill_rows < 1024 ? 3 : 4;
}

uint32_t StepMargins::bin_of(double ratio) {
  const double bin = std::ceil(kBinsPerOctave * std::log2(ratio / kLeastRatio) - 1e-9);
  return static_cast<uint32_t>(std::clamp<double>(bin, 0, kBins - 1));
}

double StepMargins::top_of(uint32_t bin) {
  return kLeastRatio * std::exp2(bin / kBinsPerOctave);
}

void StepMargins::Histogram::add(uint32_t bin) {
  total = 0;
  for (double& w : weight) {
    w *= 1 - 1 / kMemorySteps;
    if (w < kForgottenSteps) w = 0;
    total += w;
  }
  weight[bin] += 1;
  total += 1;
}

StepMargins::StepMargins() {
  for (Histogram& h : ranges_) {
    h.weight[bin_of(kPriorRatio)] = h.total = kPriorSteps;
  }
}

void StepMargins::begin(Nanos now, bool any_run) {
  if (believed_s_ > 0 && now > since_ && any_run) {
    const uint32_t bin = bin_of(to_seconds(now - since_) / believed_s_);
    ranges_[range_].add(bin);
    ranges_.back().add(bin);
  }
  believed_s_ = 0;
}

void StepMargins::end(Nanos now, double prefill_rows, double believed_s) {
  since_ = now;
  range_ = range_of(prefill_rows);
  believed_s_ = believed_s;
}

double StepMargins::priced(double prefill_rows, double fixed_share, double steps, double needed) const {
  const Histogram& h = of(prefill_rows);
  double best = -1, margin = 1, below = 0;
  for (uint32_t bin = 0; bin < kBins; ++bin) {
    if (h.weight[bin] == 0) continue;
    below += h.weight[bin];
    const double met = std::min(1.0, below / h.total);
    const double useful = std::min(needed, 1 - top_of(bin) * fixed_share);
    // Where no margin leaves any time this takes the greatest ratio seen, so that at least bounds are met.
    const double most = std::max(useful, 1e-9);
    if (most <= best) continue;
    const double value = std::pow(met, std::max(steps, 1.0)) * most;
    if (value <= best) continue;
    best = value;
    margin = top_of(bin);
  }
  if (fixed_share <= 0) return std::max(margin, kUnseenRatio);
  return std::max(margin, std::min(kUnseenRatio, (1 - needed) / fixed_share));
}

double StepMargins::quantile(double prefill_rows, double q) const {
  const Histogram& h = of(prefill_rows);
  double below = 0;
  for (uint32_t bin = 0; bin < kBins; ++bin) {
    below += h.weight[bin];
    if (below >= q * h.total * (1 - 1e-12) && below > 0) return top_of(bin);
  }
  return top_of(kBins - 1);
}

double StepMargins::mean(double prefill_rows) const {
  const Histogram& h = of(prefill_rows);
  double sum = 0;
  for (uint32_t bin = 0; bin < kBins; ++bin) sum += h.weight[bin] * top_of(bin);
  return sum / h.total;
}

std::string StepMargins::save() const {
  std::string out = fmt::format("{} {} {}", since_, range_, believed_s_);
  for (const Histogram& h : ranges_) {
    std::string bins;
    uint32_t count = 0;
    for (uint32_t i = 0; i < kBins; ++i) {
      if (h.weight[i] == 0) continue;
      fmt::format_to(std::back_inserter(bins), " {} {}", i, h.weight[i]);
      ++count;
    }
    fmt::format_to(std::back_inserter(out), " {} {}{}", h.total, count, bins);
  }
  return out;
}

Status StepMargins::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  StepMargins read;
  bool good = static_cast<bool>(in >> read.since_ >> read.range_ >> read.believed_s_);
  good = good && read.range_ < kRanges;
  for (Histogram& h : read.ranges_) {
    uint32_t count = 0;
    h = {};
    good = good && static_cast<bool>(in >> h.total >> count) && h.total > 0 && count <= kBins;
    for (uint32_t k = 0; good && k < count; ++k) {
      uint32_t bin = 0;
      double weight = 0;
      good = static_cast<bool>(in >> bin >> weight) && bin < kBins && weight > 0;
      if (good) h.weight[bin] = weight;
    }
  }
  if (!good) return error(ErrorCode::kCorrupt, "not the state of the margins of steps: '{}'", text);
  *this = read;
  return {};
}

}  // namespace kvasir
