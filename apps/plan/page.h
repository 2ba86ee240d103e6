// The report of `kvasir plan`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/plan/plan.h"

namespace kvasir {

std::string plan_page(const PlanAnswer& answer);

// Its charts: a file's name, and an <svg> element.
std::vector<std::pair<std::string, std::string>> plan_charts(const PlanAnswer& answer);

}  // namespace kvasir
