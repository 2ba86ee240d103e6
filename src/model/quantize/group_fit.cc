#include "model/quantize/group_fit.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstddef>

#include "ops/weight_traits.h"

namespace kvasir {
namespace {

constexpr size_t kPartials = 16;
using Partials = std::array<float, kPartials>;

float total(const Partials& p) {
  Partials s = p;
  for (size_t width = kPartials / 2; width > 0; width /= 2) {
    for (size_t i = 0; i < width; ++i) s[i] += s[i + width];
  }
  return s[0];
}

// To nearest even, |v| below 2^22: what is added leaves no bits for a fraction.
float round_even(float v) {
  constexpr float kNoFraction = 12582912.0F;  // 1.5 · 2^23
  return (v + kNoFraction) - kNoFraction;
}

// The table's value nearest to (i + 0.5) / 2 - 128, i from 0: the middles between neighbours are multiples of
// a half, so the value of each such cell is one level's alone.
constexpr size_t kCells = 512;
constexpr std::array<float, kCells> make_nearest_of_table() {
  std::array<float, kCells> out = {};
  for (size_t i = 0; i < kCells; ++i) {
    const int middle = 2 * static_cast<int>(i) + 1;  // of the cell: four times it, plus 512
    int best = ops::kIq4Lookup[0];
    for (const int value : ops::kIq4Lookup) {
      const int distance = middle - 4 * value, least = middle - 4 * best;
      if (distance * distance < least * least) best = value;
    }
    out[i] = static_cast<float>(best - 128);
  }
  return out;
}
constexpr std::array<float, kCells> kNearestOfTable = make_nearest_of_table();

struct ScaleSums {
  float xq;
  float qq;
};
template <typename Levels>
ScaleSums sums_of(std::span<const float> x, float inverse, const Levels& levels) {
  Partials xq = {}, qq = {};
  for (size_t i = 0; i < x.size(); i += kPartials) {
    for (size_t l = 0; l < kPartials; ++l) {
      const float q = levels.nearest(x[i + l] * inverse);
      xq[l] += x[i + l] * q;
      qq[l] += q * q;
    }
  }
  return {total(xq), total(qq)};
}

struct MinSums {
  float q;
  float xq;
  float qq;
};
MinSums min_sums_of(std::span<const float> x, float low, float inverse, const UniformLevels& levels) {
  Partials sq = {}, xq = {}, qq = {};
  for (size_t i = 0; i < x.size(); i += kPartials) {
    for (size_t l = 0; l < kPartials; ++l) {
      const float q = levels.nearest((x[i + l] - low) * inverse);
      sq[l] += q;
      xq[l] += x[i + l] * q;
      qq[l] += q * q;
    }
  }
  return {total(sq), total(xq), total(qq)};
}

}  // namespace

size_t largest_in(std::span<const float> x) {
  size_t at = 0;
  for (size_t i = 1; i < x.size(); ++i) {
    if (std::fabs(x[i]) > std::fabs(x[at])) at = i;
  }
  return at;
}

float UniformLevels::nearest(float v) const {
  return round_even(std::min(std::max(v, lowest), highest));
}

float TableLevels::nearest(float v) const {
  const float cell = std::min(std::max(2 * v + 256, 0.0F), static_cast<float>(kCells - 1));
  return kNearestOfTable[static_cast<size_t>(static_cast<int>(cell))];
}

template <typename Levels>
Fit fit_scale(std::span<const float> x, const Levels& levels) {
  const float a = x[largest_in(x)];
  if (a == 0) return {};
  Fit best;
  float most = 0;  // what the scale takes from the squares of x
  for (int t = 0; t < levels.tries; ++t) {
    for (const float sign : {-1.0F, 1.0F}) {
      const float inverse = sign * (levels.reach + static_cast<float>(t) * levels.step) / a;
      if (std::isinf(inverse)) continue;  // no scale is so small
      const ScaleSums s = sums_of(x, inverse, levels);
      if (s.qq == 0) continue;
      const float gain = s.xq * s.xq / s.qq;
      if (gain > most) {
        most = gain;
        best.scale = s.xq / s.qq;
      }
    }
  }
  return best;
}

Fit fit_scale_and_min(std::span<const float> x, const UniformLevels& levels) {
  Partials partials = {};
  float low = 0, high = 0;
  for (size_t i = 0; i < x.size(); ++i) {
    low = std::min(low, x[i]);
    high = std::max(high, x[i]);
    partials[i % kPartials] += x[i];
  }
  if (low == high) return {};
  const float sum = total(partials);
  const auto n = static_cast<float>(x.size());
  Fit best;
  float most = -1;
  for (int t = 0; t < levels.tries; ++t) {
    const float inverse = (levels.reach + static_cast<float>(t) * levels.step) / (high - low);
    const MinSums s = min_sums_of(x, low, inverse, levels);
    // Normal equations of x = scale · q - min: with the determinant of n, Σ q and Σ q².
    const float determinant = n * s.qq - s.q * s.q;
    Fit fit;
    if (determinant > 0) {
      fit = {(n * s.xq - sum * s.q) / determinant, (s.q * s.xq - s.qq * sum) / determinant};
    }
    if (determinant <= 0 || fit.min < 0) fit = {s.qq > 0 ? s.xq / s.qq : 0, 0};
    const float gain = fit.scale * s.xq - fit.min * sum;
    if (fit.scale > 0 && gain > most) {
      most = gain;
      best = fit;
    }
  }
  // A group of one negative value has no scale.
  return most < 0 ? Fit{0, -low} : best;
}

template <typename Levels>
Misfit assign_codes(std::span<const float> x, Fit fit, const Levels& levels, float* q) {
  Partials squares = {}, sx = {}, sq = {}, xq = {}, qq = {};
  const float inverse = fit.scale == 0 ? 0 : 1 / fit.scale;
  for (size_t i = 0; i < x.size(); i += kPartials) {
    for (size_t l = 0; l < kPartials; ++l) {
      const float v = x[i + l];
      const float code = levels.nearest((v + fit.min) * inverse);
      const float rest = (v + fit.min) - fit.scale * code;
      q[i + l] = code;
      squares[l] += rest * rest;
      sx[l] += v;
      sq[l] += code;
      xq[l] += v * code;
      qq[l] += code * code;
    }
  }
  return {total(squares), total(sx), total(sq), total(xq), total(qq)};
}

template Fit fit_scale(std::span<const float>, const UniformLevels&);
template Fit fit_scale(std::span<const float>, const TableLevels&);
template Misfit assign_codes(std::span<const float>, Fit, const UniformLevels&, float*);
template Misfit assign_codes(std::span<const float>, Fit, const TableLevels&, float*);

}  // namespace kvasir
