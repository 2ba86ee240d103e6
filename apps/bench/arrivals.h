// When requests arrive: drawn ahead from the seed, so that slow answers cannot delay the load (an open loop).
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"

namespace kvasir {

// A draw from the gamma distribution of the given shape and scale 1 (mean and variance: shape), by Marsaglia
// and Tsang's method of 2000; shape 1 is the exponential distribution, by inversion. The same (key, stream)
// gives the same draw, whatever else was drawn. REQUIRES: shape > 0
double gamma_draw(double shape, uint64_t key, uint64_t stream);

// Offsets from the start of the run, ascending, for `count` requests at `rate` requests per second. The gaps
// are gamma of shape `burstiness` (1: a Poisson process; below: bursts; above: more even) and are then
// stretched so that the last request arrives at exactly count / rate, as vLLM does it: the offered rate is
// the asked rate. An infinite rate gives zeros. REQUIRES: count >= 0, rate > 0, burstiness > 0
std::vector<Nanos> draw_arrivals(int64_t count, double rate, double burstiness, uint64_t seed);

}  // namespace kvasir
