// The error for a plan that breaks a rule.
#pragma once

#include <fmt/format.h>

#include <utility>

#include "base/status.h"

namespace kvasir {

template <typename... Args>
Status broken_rule(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kInvalidArgument, "plan: {}", fmt::format(format, std::forward<Args>(args)...));
}

}  // namespace kvasir
