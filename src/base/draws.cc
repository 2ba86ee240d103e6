#include "base/draws.h"

#include <cmath>

#include "base/check.h"
#include "base/random.h"

namespace kvasir {
namespace {

// Uniform in (0, 1], whose logarithm is finite.
double positive_unit(uint64_t key, uint64_t stream, uint64_t counter) {
  return 1.0 - random_unit(key, stream, counter);
}

}  // namespace

double normal_draw(uint64_t key, uint64_t stream, uint64_t* counter) {
  while (true) {
    const double x = 2 * random_unit(key, stream, (*counter)++) - 1;
    const double y = 2 * random_unit(key, stream, (*counter)++) - 1;
    const double s = x * x + y * y;
    if (s > 0 && s < 1) return x * std::sqrt(-2 * std::log(s) / s);
  }
}

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

}  // namespace kvasir
