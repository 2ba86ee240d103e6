// The answer of `kvasir plan` for programs.
#pragma once

#include <string>

#include "apps/plan/plan.h"

namespace kvasir {

std::string plan_json(const PlanAnswer& answer);

}  // namespace kvasir
