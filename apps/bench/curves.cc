#include "apps/bench/curves.h"

#include <algorithm>
#include <cmath>

#include "apps/bench/attainment.h"
#include "apps/bench/stats.h"

namespace kvasir {
namespace {

constexpr size_t kBins = kCurveSlices;

std::vector<double> quantiles(std::vector<double> values) {
  std::vector<double> out;
  if (values.empty()) return out;
  std::sort(values.begin(), values.end());
  for (int p = 0; p <= 100; ++p) out.push_back(percentile_of_sorted(values, p));
  return out;
}

// Slices of a run, to which spans and moments are added.
class Bins {
 public:
  Bins(Nanos start, Nanos duration)
      : start_(start), width_(static_cast<double>(duration) / static_cast<double>(kBins)) {}

  double width_s() const { return width_ * 1e-9; }
  void add_span(Nanos from, Nanos to, std::vector<double>* bins) const {
    const double a = position(from);
    const double b = position(to);
    for (size_t i = static_cast<size_t>(a); i < kBins && static_cast<double>(i) < b; ++i) {
      const double low = std::max(a, static_cast<double>(i));
      (*bins)[i] += std::min(b, static_cast<double>(i + 1)) - low;
    }
  }
  void add_moment(Nanos at, double amount, std::vector<double>* bins) const {
    (*bins)[std::min(kBins - 1, static_cast<size_t>(position(at)))] += amount;
  }

 private:
  double position(Nanos at) const {
    return std::clamp(static_cast<double>(at - start_) / width_, 0.0, static_cast<double>(kBins));
  }
  const Nanos start_;
  const double width_;
};

void add_tokens(const RequestRecord& r, const Bins& bins, double per_second, std::vector<double>* out) {
  if (r.content_chunks == 0) return;
  const double tokens =
      r.output_tokens > 0 ? static_cast<double>(r.output_tokens) : static_cast<double>(r.content_chunks);
  const double each = tokens / static_cast<double>(r.content_chunks) * per_second;
  Nanos at = r.first;
  bins.add_moment(at, each, out);
  for (Nanos gap : r.gaps) {
    at += gap;
    bins.add_moment(at, each, out);
  }
}

}  // namespace

Curves curves_of(const LoadOutcome& outcome) {
  Curves curves;
  std::vector<double> ttft, tbt, e2el;
  for (const RequestRecord& r : outcome.records) {
    if (r.state != RequestRecord::State::kCompleted) continue;
    ttft.push_back(ttft_ms(r));
    e2el.push_back(e2el_ms(r));
    for (Nanos gap : r.gaps) tbt.push_back(to_millis(gap));
  }
  curves.ttft_ms = quantiles(std::move(ttft));
  curves.tbt_ms = quantiles(std::move(tbt));
  curves.e2el_ms = quantiles(std::move(e2el));
  if (outcome.duration <= 0) return curves;

  const Bins bins(outcome.start, outcome.duration);
  curves.bin_s = bins.width_s();
  for (std::vector<double>* v : {&curves.running, &curves.waiting, &curves.output_per_s}) v->assign(kBins, 0);
  const Nanos stop = outcome.start + outcome.duration;
  for (const RequestRecord& r : outcome.records) {
    if (r.state == RequestRecord::State::kWaiting || r.state == RequestRecord::State::kHeld) continue;
    const Nanos end = r.end > 0 ? r.end : stop;
    const Nanos first = r.first > 0 ? r.first : end;
    bins.add_span(r.start, first, &curves.waiting);
    bins.add_span(first, end, &curves.running);
    add_tokens(r, bins, 1 / bins.width_s(), &curves.output_per_s);
  }
  return curves;
}

}  // namespace kvasir
