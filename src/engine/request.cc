#include "engine/request.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

constexpr int32_t kMostLevels = 4;

}  // namespace

float weight_of(int32_t priority) {
  return std::ldexp(1.0f, -std::clamp(priority, -kMostLevels, kMostLevels));
}

const char* name(FinishReason reason) {
  switch (reason) {
    case FinishReason::kStop:
      return "stop";
    case FinishReason::kLength:
      return "length";
    case FinishReason::kAbort:
      return "abort";
    case FinishReason::kError:
      return "error";
  }
  return "?";
}

}  // namespace kvasir
