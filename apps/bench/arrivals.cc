#include "bench/arrivals.h"

#include <cmath>

#include "base/random.h"

namespace kvasir {
namespace {

// Streams 0 and up of the seed belong to the prompts.
constexpr uint64_t kArrivalStream = uint64_t{1} << 40;

// Uniform in (0, 1], whose logarithm is finite.
double positive_unit(uint64_t key, uint64_t stream, uint64_t counter) {
  return 1.0 - random_unit(key, stream, counter);
}

// A standard normal draw by Marsaglia's polar method, which needs no function but log and sqrt.
double normal_draw(uint64_t key, uint64_t stream, uint64_t* counter) {
  while (true) {
    const double x = 2 * random_unit(key, stream, (*counter)++) - 1;
    const double y = 2 * random_unit(key, stream, (*counter)++) - 1;
    const double s = x * x + y * y;
    if (s > 0 && s < 1) return x * std::sqrt(-2 * std::log(s) / s);
  }
}

}  // namespace

double gamma_draw(double shape, uint64_t key, uint64_t stream) {
  KV_CHECK(shape > 0, "shape={}", shape);
  uint64_t counter = 0;
  if (shape == 1) return -std::log(positive_unit(key, stream, counter));
  // Below one, the method takes a draw of shape + 1 and shrinks it by a power of a uniform draw.
  const double boost = shape < 1 ? std::pow(positive_unit(key, stream, counter++), 1 / shape) : 1.0;
  const double d = (shape < 1 ? shape + 1 : shape) - 1.0 / 3.0;
  const double c = 1 / std::sqrt(9 * d);
  while (true) {
    const double x = normal_draw(key, stream, &counter);
    const double base = 1 + c * x;
    if (base <= 0) continue;
    const double v = base * base * base;
    const double u = positive_unit(key, stream, counter++);
    if (std::log(u) < 0.5 * x * x + d - d * v + d * std::log(v)) return d * v * boost;
  }
}

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

}  // namespace kvasir
