// The best scale, or scale and minimum, of a group of 16 or 32 values.
//
// Pure functions. Sums have sixteen partial sums, of the values i mod 16, which are added pairwise; codes are
// rounded to nearest even. So every compiler and instruction set finds the same bits.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace kvasir {

// Codes that stand for themselves: whole numbers from `lowest` to `highest`.
struct UniformLevels {
  float lowest;
  float highest;
  // The level nearest to v; of two, the even one.
  float nearest(float v) const;
  // How the levels that the value of the largest magnitude is put on are tried: reach, reach + step and so
  // on.
  float reach;
  float step;
  int tries;
};

// Codes that are indices into ops::kIq4Lookup.
struct TableLevels {
  // The value of the table nearest to v; of two, the greater.
  float nearest(float v) const;
  float reach;
  float step;
  int tries;
};

// The place of the value of the largest magnitude, of several the first. REQUIRES: x is not empty.
size_t largest_in(std::span<const float> x);

// x is about scale · q - min.
struct Fit {
  float scale = 0;
  float min = 0;
};

// What is left of a group: Σ (x - scale · q + min)², and the sums that refine a block's scales.
struct Misfit {
  float squares = 0;
  float x = 0;   // Σ x
  float q = 0;   // Σ q
  float xq = 0;  // Σ x q
  float qq = 0;  // Σ q²
};

// The scale of the group with which Σ (x - scale · q)² is least. For each level r that is tried, of both
// signs: with a the value of the largest magnitude, codes q of x · (r / a), then the scale Σ x q / Σ q² that
// suits these codes best. Of equal errors the first one found counts. 0 for a group of zeros.
template <typename Levels>
Fit fit_scale(std::span<const float> x, const Levels& levels);

// The same with a minimum of 0 or more and codes 0 to `highest`: for each number of steps r that is tried,
// codes of (x - low) · (r / (high - low)), low being at most 0 and high at least 0, then scale and minimum
// that suit them best by the normal equations.
Fit fit_scale_and_min(std::span<const float> x, const UniformLevels& levels);

// Codes, as levels, of the group for a given scale and minimum: nearest((x + min) / scale), 0 if scale is 0.
// `q` has as many values as x.
template <typename Levels>
Misfit assign_codes(std::span<const float> x, Fit fit, const Levels& levels, float* q);

}  // namespace kvasir
