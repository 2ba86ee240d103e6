// What the tests of the bench's figures count in.
#pragma once

#include <limits>

#include "base/clock.h"

namespace kvasir {

constexpr Nanos kMs = kNanosPerMilli;
constexpr double kInf = std::numeric_limits<double>::infinity();  // a rate: all at once

}  // namespace kvasir
