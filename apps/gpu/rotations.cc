#include "apps/gpu/rotations.h"

namespace kvasir::gpu_program {
namespace {

// The square root of x in (0, 1].
double root(double x) {
  double z = 1;
  for (int i = 0; i < 64; ++i) z = (z + x / z) / 2;
  return z;
}
// base^-share of share in [0, 1], from its binary digits.
double falling_power(double base, double share) {
  double power = 1, factor = 1 / base;
  for (int digit = 0; digit < 53 && share > 0; ++digit) {
    if (share >= 1) {
      power *= factor;
      share -= 1;
    }
    share *= 2;
    factor = root(factor);
  }
  return power;
}

struct Complex {
  double re, im;
};
Complex times(Complex a, Complex b) {
  return {a.re * b.re - a.im * b.im, a.re * b.im + a.im * b.re};
}
// e^(i angle) of an angle in [0, 1], by its series.
Complex turn_by(double angle) {
  Complex sum = {1, 0}, term = {1, 0};
  for (int n = 1; n < 24; ++n) {
    term = times(term, {0, angle / n});
    sum.re += term.re;
    sum.im += term.im;
  }
  return sum;
}

}  // namespace

Rotations rotations(size_t positions, size_t pairs, double base) {
  Rotations out;
  out.cosines.resize(positions * pairs);
  out.sines.resize(positions * pairs);
  for (size_t pair = 0; pair < pairs; ++pair) {
    const Complex turn = turn_by(falling_power(base, static_cast<double>(pair) / static_cast<double>(pairs)));
    Complex at = {1, 0};
    for (size_t position = 0; position < positions; ++position, at = times(at, turn)) {
      out.cosines[position * pairs + pair] = static_cast<float>(at.re);
      out.sines[position * pairs + pair] = static_cast<float>(at.im);
    }
  }
  return out;
}

}  // namespace kvasir::gpu_program
