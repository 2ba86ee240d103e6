// Elementary functions from double arithmetic and fma. Intermediate results that need more than 53 bits are
// kept as an unevaluated sum hi + lo.
#include "ops/det_math.h"

#include <bit>
#include <cmath>
#include <cstdint>
#include <limits>

namespace kvasir::ops {
namespace {

struct Pair {
  double hi;
  double lo;
};

// The exact sum of a and b. REQUIRES: |a| >= |b| or a == 0
Pair fast_two_sum(double a, double b) {
  const double hi = a + b;
  return {hi, b - (hi - a)};
}

Pair two_sum(double a, double b) {
  const double hi = a + b;
  const double t = hi - a;
  return {hi, (a - (hi - t)) + (b - t)};
}

constexpr double kLn2Hi = 0x1.62e42fefa39efp-1;
constexpr double kLn2Lo = 0x1.abc9e3b39803fp-56;
constexpr double kInvLn2 = 0x1.71547652b82fep+0;
constexpr double kHalfPiHi = 0x1.921fb54442d18p+0;
constexpr double kHalfPiLo = 0x1.1a62633145c07p-54;
constexpr double kTwoOverPi = 0x1.45f306dc9c883p-1;
// Adding and taking away 1.5 * 2^52 rounds a double of moderate size to an integer.
constexpr double kRound = 0x1.8p52;

// 2^n. REQUIRES: -1022 <= n <= 1023
double power_of_two(int64_t n) {
  return std::bit_cast<double>(static_cast<uint64_t>(n + 1023) << 52);
}

// Taylor polynomials on |r| <= pi / 4; the first term left out is below 1e-17.
double sin_reduced(double r, double lo) {
  constexpr double kTerms[] = {
      1.0 / 355687428096000.0, -1.0 / 1307674368000.0, 1.0 / 6227020800.0, -1.0 / 39916800.0,
      1.0 / 362880.0,          -1.0 / 5040.0,          1.0 / 120.0,        -1.0 / 6.0};
  const double r2 = r * r;
  double p = kTerms[0];
  for (int i = 1; i < 8; ++i) p = std::fma(p, r2, kTerms[i]);
  // cos(r) of the low part, to first order.
  const double low = lo * std::fma(-0.5, r2, 1.0);
  return r + std::fma(r * r2, p, low);
}

double cos_reduced(double r, double lo) {
  constexpr double kTerms[] = {
      -1.0 / 6402373705728000.0, 1.0 / 20922789888000.0, -1.0 / 87178291200.0, 1.0 / 479001600.0,
      -1.0 / 3628800.0,          1.0 / 40320.0,          -1.0 / 720.0,         1.0 / 24.0};
  const double r2 = r * r;
  double p = kTerms[0];
  for (int i = 1; i < 8; ++i) p = std::fma(p, r2, kTerms[i]);
  const Pair head = fast_two_sum(1.0, -0.5 * r2);
  const double tail = std::fma(r2 * r2, p, std::fma(-0.5, std::fma(r, r, -r2), -r * lo));
  return head.hi + (head.lo + tail);
}

// sin(x + quadrant * pi / 2)
double sin_shifted(double x, uint64_t quadrant) {
  const double n = (x * kTwoOverPi + kRound) - kRound;
  // The first step is exact for |x| <= 2^26, since n has few bits and the result cancels.
  const double first = std::fma(-n, kHalfPiHi, x);
  const double product = n * kHalfPiLo;
  const Pair r = two_sum(first, -product);
  quadrant += static_cast<uint64_t>(static_cast<int64_t>(n));
  const double value = quadrant & 1 ? cos_reduced(r.hi, r.lo) : sin_reduced(r.hi, r.lo);
  return quadrant & 2 ? -value : value;
}

// exp(hi + lo), |lo| much smaller than |hi|.
double exp_pair(double hi, double lo) {
  if (hi != hi) return hi;
  if (hi > 709.78) return std::numeric_limits<double>::infinity();
  if (hi < -708.0) return 0.0;
  const double n = (hi * kInvLn2 + kRound) - kRound;
  const double first = std::fma(-n, kLn2Hi, hi);
  const Pair r = two_sum(first, std::fma(-n, kLn2Lo, lo));
  double p = 1.0 / 87178291200.0;
  constexpr double kTerms[] = {1.0 / 6227020800.0, 1.0 / 479001600.0, 1.0 / 39916800.0, 1.0 / 3628800.0,
                               1.0 / 362880.0,     1.0 / 40320.0,     1.0 / 5040.0,     1.0 / 720.0,
                               1.0 / 120.0,        1.0 / 24.0,        1.0 / 6.0,        0.5};
  for (double term : kTerms) p = std::fma(p, r.hi, term);
  const double value = 1.0 + (r.hi + std::fma(r.hi * r.hi, p, r.lo));
  // In two steps, because 2^1024 is not a double.
  const auto k = static_cast<int64_t>(n);
  return value * power_of_two(k / 2) * power_of_two(k - k / 2);
}

// log(x) for a finite x > 0, to about 70 bits.
Pair log_pair(double x) {
  int64_t exponent = 0;
  if (x < 0x1p-1022) {
    x *= 0x1p60;
    exponent = -60;
  }
  uint64_t bits = std::bit_cast<uint64_t>(x);
  exponent += static_cast<int64_t>(bits >> 52) - 1023;
  bits = (bits & 0xFFFFFFFFFFFFFull) | 0x3FF0000000000000ull;
  double m = std::bit_cast<double>(bits);
  if (m > 1.4142135623730951) {
    m *= 0.5;
    ++exponent;
  }
  // log m = 2 atanh(s), s = (m - 1) / (m + 1); |s| < 0.172.
  const double up = m - 1.0;
  const Pair down = fast_two_sum(m > 1.0 ? m : 1.0, m > 1.0 ? 1.0 : m);
  const double s = up / down.hi;
  const double s_low = (std::fma(-s, down.hi, up) - s * down.lo) / down.hi;
  const double s2 = s * s;
  double p = 0.0;
  for (int k = 25; k >= 3; k -= 2) p = std::fma(p, s2, 2.0 / k);
  const double tail = std::fma(s * s2, p, 2.0 * s_low);
  const auto e = static_cast<double>(exponent);
  const double product = e * kLn2Hi;
  const double product_low = std::fma(e, kLn2Hi, -product) + e * kLn2Lo;
  const Pair sum = two_sum(product, 2.0 * s);
  return fast_two_sum(sum.hi, sum.lo + (product_low + tail));
}

}  // namespace

double det_sin(double x) {
  return sin_shifted(x, 0);
}

double det_cos(double x) {
  return sin_shifted(x, 1);
}

double det_exp(double x) {
  return exp_pair(x, 0.0);
}

double det_log(double x) {
  if (x != x || x < 0.0) return std::numeric_limits<double>::quiet_NaN();
  if (x == 0.0) return -std::numeric_limits<double>::infinity();
  if (x == std::numeric_limits<double>::infinity()) return x;
  const Pair result = log_pair(x);
  return result.hi + result.lo;
}

double det_pow(double x, double y) {
  const Pair l = log_pair(x);
  const double hi = l.hi * y;
  return exp_pair(hi, std::fma(l.hi, y, -hi) + l.lo * y);
}

}  // namespace kvasir::ops
