// When requests arrive: drawn ahead from the seed, so that slow answers cannot delay the load (an open loop).
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"

namespace kvasir {

// Offsets from the start of the run, ascending, for `count` requests at `rate` requests per second. The gaps
// are gamma of shape `burstiness` (1: a Poisson process; below: bursts; above: more even) and are then
// stretched so that the last request arrives at exactly count / rate, as vLLM does it: the offered rate is
// the asked rate. An infinite rate gives zeros. REQUIRES: count >= 0, rate > 0, burstiness > 0
std::vector<Nanos> draw_arrivals(int64_t count, double rate, double burstiness, uint64_t seed);

// Offsets from the first of ascending times in seconds. A finite rate stretches them so that the last is at
// count / rate, as draw_arrivals does; times that are all the same stay so. REQUIRES: rate > 0
std::vector<Nanos> stretch_arrivals(const std::vector<double>& seconds, double rate);

}  // namespace kvasir
