#include "apps/bench/arrivals.h"

#include <cmath>

#include "base/check.h"
#include "base/draws.h"

namespace kvasir {
namespace {

// Streams 0 and up of the seed belong to the prompts.
constexpr uint64_t kArrivalStream = uint64_t{1} << 40;

}  // namespace

std::vector<Nanos> draw_arrivals(int64_t count, double rate, double burstiness, uint64_t seed) {
  KV_CHECK(count >= 0 && rate > 0 && burstiness > 0, "count={} rate={} burstiness={}", count, rate,
           burstiness);
  std::vector<Nanos> arrivals(static_cast<size_t>(count), 0);
  if (std::isinf(rate) || count == 0) return arrivals;
  std::vector<double> offsets(arrivals.size());
  double sum = 0;
  for (size_t i = 0; i < offsets.size(); ++i) {
    sum += gamma_draw(burstiness, seed, kArrivalStream + i);
    offsets[i] = sum;
  }
  const double span_s = static_cast<double>(count) / rate;
  // A very small shape can draw nothing but zeros; then all arrive at the end of the span.
  for (size_t i = 0; i < offsets.size(); ++i) {
    arrivals[i] = from_seconds(sum > 0 ? offsets[i] / sum * span_s : span_s);
  }
  return arrivals;
}

std::vector<Nanos> stretch_arrivals(const std::vector<double>& seconds, double rate) {
  std::vector<Nanos> arrivals;
  arrivals.reserve(seconds.size());
  const double span = seconds.empty() ? 0 : seconds.back() - seconds.front();
  const double wanted = static_cast<double>(seconds.size()) / rate;
  const double factor = std::isinf(rate) || span <= 0 ? 1.0 : wanted / span;
  for (double second : seconds) arrivals.push_back(from_seconds((second - seconds.front()) * factor));
  return arrivals;
}

}  // namespace kvasir
