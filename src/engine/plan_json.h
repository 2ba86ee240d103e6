// Views and plans as JSON, for the plan log.
#pragma once

#include <nlohmann/json_fwd.hpp>

#include "contract/step_plan.h"
#include "contract/view.h"

namespace kvasir {

nlohmann::json view_to_json(const View& view);
nlohmann::json plan_to_json(const StepPlan& plan);

// These throw nlohmann::json::exception, or std::out_of_range for an unknown name, where the JSON is not what
// the functions above write; plan_log.cc catches it.
View view_from_json(const nlohmann::json& j);
StepPlan plan_from_json(const nlohmann::json& j);

}  // namespace kvasir
