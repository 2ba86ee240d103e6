// The report of `kvasir plan`.
#pragma once

#include <string>
#include <utility>
#include <vector>

#include "apps/plan/plan.h"
#include "apps/report/chart.h"

namespace kvasir {

std::string plan_page(const PlanAnswer& answer);

// Its charts, with the names of their files.
std::vector<std::pair<std::string, DrawnChart>> plan_charts(const PlanAnswer& answer);

}  // namespace kvasir
