#include "sched/mechanisms/late_turns.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <limits>
#include <sstream>

namespace kvasir {

void LateTurns::observe(std::span<const float> weights) {
  const auto waits = [&](float w) { return std::find(weights.begin(), weights.end(), w) != weights.end(); };
  double least_s = std::numeric_limits<double>::infinity();  // of those that go on waiting
  for (Share& s : shares_) {
    if (s.waits && waits(s.weight)) least_s = std::min(least_s, s.had_s);
  }
  if (least_s == std::numeric_limits<double>::infinity()) {
    shares_.clear();
    least_s = 0;
  }
  for (Share& s : shares_) {
    if (!s.waits) s.had_s = std::max(s.had_s, least_s);
    s.waits = waits(s.weight);
  }
  // One that had no more than those that wait is as one that never was.
  std::erase_if(shares_, [&](const Share& s) { return !s.waits && s.had_s <= least_s; });
  for (float w : weights) {
    const bool known =
        std::any_of(shares_.begin(), shares_.end(), [&](const Share& s) { return s.weight == w; });
    if (!known) shares_.push_back({w, least_s, true});
  }
}

double LateTurns::had_s(float weight) const {
  for (const Share& s : shares_) {
    if (s.weight == weight) return s.had_s;
  }
  return 0;
}

void LateTurns::spend(float weight, double cost_s) {
  for (Share& s : shares_) {
    if (s.weight == weight) s.had_s += cost_s / weight;
  }
}

std::string LateTurns::save() const {
  std::string out;
  for (const Share& s : shares_) {
    fmt::format_to(std::back_inserter(out), "{} {} {} ", s.weight, s.had_s, s.waits ? 1 : 0);
  }
  return out;
}

Status LateTurns::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  LateTurns read;
  bool good = true;
  for (Share s; good && in >> s.weight;) {
    good = static_cast<bool>(in >> s.had_s >> s.waits) && s.weight > 0;
    read.shares_.push_back(s);
  }
  if (!good || !in.eof()) return error(ErrorCode::kCorrupt, "not the turns of late requests: '{}'", text);
  *this = std::move(read);
  return {};
}

}  // namespace kvasir
