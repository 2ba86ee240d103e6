// Views and plans as JSON, for the plan log.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

nlohmann::json view_to_json(const View& view);
nlohmann::json plan_to_json(const StepPlan& plan);

// For JSON that the functions above did not write, these throw nlohmann::json::exception, or
// std::out_of_range for an unknown name; plan_log.cc catches both.
View view_from_json(const nlohmann::json& j);
StepPlan plan_from_json(const nlohmann::json& j);

}  // namespace kvasir
