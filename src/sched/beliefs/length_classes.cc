#include "sched/beliefs/length_classes.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>

namespace kvasir {
namespace {

constexpr uint32_t kLargestBound = 100'000;
constexpr double kMostTokens = 4294967295.0;

}  // namespace

LengthClasses::LengthClasses() {
  for (uint32_t low = 1; low <= kLargestBound;) {
    const uint32_t high = std::max(low + 1, low + (low + 1) / 2);
    LengthClass c;
    c.low = low;
    c.high = high <= kLargestBound ? high : UINT32_MAX;
    classes_.push_back(c);
    low = high;
  }
  residuals_.resize(classes_.size());
  lengths_.resize(classes_.size());
}

uint8_t LengthClasses::class_of(uint32_t point) const {
  const auto it = std::upper_bound(classes_.begin(), classes_.end(), std::max<uint32_t>(point, 1),
                                   [](uint32_t p, const LengthClass& c) { return p < c.low; });
  return static_cast<uint8_t>(it - classes_.begin() - 1);
}

void LengthClasses::learn(uint32_t point, uint32_t output_tokens) {
  const size_t index = class_of(point);
  residuals_[index].add(static_cast<float>(output_tokens) - static_cast<float>(point));
  lengths_[index].add(static_cast<float>(output_tokens));
  ++classes_[index].finished;
  summarise(index);
}

void LengthClasses::summarise(size_t index) {
  LengthClass& c = classes_[index];
  for (size_t q = 0; q < LengthClass::kQuantiles.size(); ++q) {
    c.residuals[q] = residuals_[index].quantile(LengthClass::kQuantiles[q]);
  }
  c.median_tokens = static_cast<uint32_t>(std::lround(lengths_[index].quantile(0.5)));
}

void LengthClasses::Recent::add(float value) {
  if (ring.size() < kRemembered) {
    ring.push_back(value);
  } else {
    sorted.erase(std::lower_bound(sorted.begin(), sorted.end(), ring[oldest]));
    ring[oldest] = value;
    oldest = (oldest + 1) % kRemembered;
  }
  sorted.insert(std::upper_bound(sorted.begin(), sorted.end(), value), value);
}

float LengthClasses::Recent::quantile(double p) const {
  const double at = p * static_cast<double>(sorted.size() - 1);
  const auto below = static_cast<size_t>(at);
  const size_t above = std::min(below + 1, sorted.size() - 1);
  const double share = at - static_cast<double>(below);
  return static_cast<float>(sorted[below] + share * (sorted[above] - sorted[below]));
}

void LengthClasses::save(std::string& out) const {
  for (size_t i = 0; i < classes_.size(); ++i) {
    const Recent &residuals = residuals_[i], &lengths = lengths_[i];
    if (residuals.ring.empty()) continue;
    fmt::format_to(std::back_inserter(out), "class {} {} {}\n", i, classes_[i].finished,
                   residuals.ring.size());
    for (size_t k = 0; k < residuals.ring.size(); ++k) {
      const size_t at = (residuals.oldest + k) % residuals.ring.size();
      fmt::format_to(std::back_inserter(out), "{} {}\n", residuals.ring[at], lengths.ring[at]);
    }
  }
  out += "class 255 0 0\n";
}

bool LengthClasses::load(TextFields& in) {
  *this = LengthClasses();
  for (;;) {
    uint64_t index = 0, finished = 0, kept = 0;
    if (!in.word("class") || !in.number(255, index) || !in.number(UINT64_MAX, finished) ||
        !in.number(kRemembered, kept)) {
      return false;
    }
    if (index == 255) return finished == 0 && kept == 0;
    if (index >= classes_.size() || kept == 0 || finished < kept || classes_[index].finished > 0)
      return false;
    for (uint64_t k = 0; k < kept; ++k) {
      double residual = 0, length = 0;
      if (!in.real(kMostTokens, residual) || !in.real(kMostTokens, length) || length < 0) return false;
      residuals_[index].add(static_cast<float>(residual));
      lengths_[index].add(static_cast<float>(length));
    }
    classes_[index].finished = finished;
    summarise(index);
  }
}

}  // namespace kvasir
