// Elementary functions whose bits do not depend on the C library: plain double arithmetic and fma.
//
// For tables that are built at load and for log-probabilities, not for hot loops. Relative error below 1e-15
// (det_sin and det_cos: absolute, for |x| <= 2^26). Pure and thread-safe.
#pragma once

namespace kvasir::ops {

double det_sin(double x);
double det_cos(double x);
// 0 below -708, +infinity above 709.78.
double det_exp(double x);
// -infinity at 0; NaN below 0.
double det_log(double x);
// x to the power y. REQUIRES: x > 0, both finite.
double det_pow(double x, double y);

}  // namespace kvasir::ops
