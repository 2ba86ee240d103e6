#include "sched/beliefs/length_point.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvasir {
namespace {

constexpr double kPointMemory = 2000;      // requests, of the means
constexpr double kCorrectionMemory = 250;  // of the correction, which must follow what is predicted now
constexpr double kLeastNoise = 0.05;       // of log lengths, squared
constexpr double kMostOutput = 1e6;
constexpr double kMostFinished = 1e15;  // counted exactly
// A direction is told where its odds are those, after so many requests, and while those told hold so often.
constexpr double kTellFrom = 0.65;
constexpr double kFewestTold = 100;
constexpr double kMustHold = 0.6;

}  // namespace

double squash(double z) {
  return 1 / (1 + std::exp(-z));
}

void ForgettingMean::add(double x, double memory) {
  count = std::min(count + 1, memory);
  value += (x - value) / count;
}

double LengthPoint::gain() const {
  const double scale = sums_.linear_by_linear.value;
  return scale > 0 ? std::clamp(sums_.linear_by_rest.value / scale, 0.0, 1.0) : 0;
}

double LengthPoint::correction() const {
  if (!(sums_.uncorrected.value > 0)) return 1;
  return std::clamp(sums_.length.value / sums_.uncorrected.value, 0.1, 10.0);
}

double LengthPoint::log_point(double linear) const {
  return std::clamp(sums_.log_length.value + gain() * linear, 0.0, std::log(kMostOutput));
}

uint32_t LengthPoint::tokens(double linear) const {
  const double tokens = std::exp(log_point(linear)) * correction();
  return static_cast<uint32_t>(std::lround(std::clamp(tokens, 1.0, kMostOutput)));
}

Deviation LengthPoint::told(double z) const {
  if (sums_.finished < kFewestTold) return Deviation::kUnknown;
  const double longer = squash(z);
  if (longer >= kTellFrom) return Deviation::kLonger;
  return longer <= 1 - kTellFrom ? Deviation::kShorter : Deviation::kUnknown;
}

Deviation LengthPoint::direction(double z) const {
  return sums_.direction_held.value >= kMustHold ? told(z) : Deviation::kUnknown;
}

double LengthPoint::finished(double linear, uint32_t output_tokens) {
  const double tokens = std::clamp(static_cast<double>(output_tokens), 1.0, kMostOutput);
  const double y = std::log(tokens);
  // First what the weights are worth on a request that they do not know.
  if (known()) {
    const double rest = y - sums_.log_length.value;
    sums_.length.add(tokens, kCorrectionMemory);
    sums_.uncorrected.add(std::exp(log_point(linear)), kCorrectionMemory);
    sums_.square_rest.add((rest - linear) * (rest - linear), kCorrectionMemory);
    sums_.linear_by_rest.add(linear * rest, kPointMemory);
    sums_.linear_by_linear.add(linear * linear, kPointMemory);
  }
  sums_.log_length.add(y, kPointMemory);
  sums_.finished = std::min(sums_.finished + 1, kMostFinished);
  return std::clamp(y - sums_.log_length.value - linear, -kLargestError, kLargestError);
}

double LengthPoint::noise() const {
  return std::max(sums_.square_rest.value, kLeastNoise);
}

void LengthPoint::direction_was(double z, bool longer) {
  const Deviation said = told(z);
  if (said == Deviation::kUnknown) return;
  sums_.direction_held.add((said == Deviation::kLonger) == longer ? 1 : 0, kPointMemory / 10);
}

void LengthPoint::save(std::string& out) const {
  fmt::format_to(std::back_inserter(out), "finished {}\n", sums_.finished);
  Sums sums = sums_;
  for (const ForgettingMean* mean : sums.means()) {
    fmt::format_to(std::back_inserter(out), "mean {} {}\n", mean->value, mean->count);
  }
}

bool LengthPoint::load(TextFields& in) {
  Sums sums;
  if (!in.word("finished") || !in.real(kMostFinished, sums.finished) || sums.finished < 0) return false;
  for (ForgettingMean* mean : sums.means()) {
    if (!in.word("mean") || !in.real(1e9, mean->value) || !in.real(kPointMemory, mean->count) ||
        mean->count < 0) {
      return false;
    }
  }
  const double y = sums.log_length.value;
  if (y < 0 || y > std::log(kMostOutput)) return false;
  sums_ = sums;
  return true;
}

}  // namespace kvasir
