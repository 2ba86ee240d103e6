// Random draws that depend on their key and stream alone, whatever else was drawn.
#pragma once

#include <cstdint>

namespace kvasir {

// A draw from the gamma distribution of the given shape and scale 1 (mean and variance: shape), by Marsaglia
// and Tsang's method of 2000; shape 1 is the exponential distribution, by inversion. REQUIRES: shape > 0
double gamma_draw(double shape, uint64_t key, uint64_t stream);

// A standard normal draw by Marsaglia's polar method, which needs no function but log and sqrt. Moves
// *counter past what it used; further draws of the stream begin there.
double normal_draw(uint64_t key, uint64_t stream, uint64_t* counter);

}  // namespace kvasir
