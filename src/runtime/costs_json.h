// Costs of links and errors of fits as JSON, for cost profiles and for the simulator's measured devices.
#pragma once

#include <array>
#include <nlohmann/json_fwd.hpp>

#include "contract/cost_model.h"
#include "sched/beliefs/cost_fit.h"

namespace kvasir {

using LinkCosts = std::array<std::array<LinkCost, kTiers>, kTiers>;  // [from][to]

// A list of {from, to, latency_s, seconds_per_byte}, without the links that cost nothing.
nlohmann::json links_to_json(const LinkCosts& links);
// Throws nlohmann's exceptions, or std::out_of_range, if it is not such a list.
LinkCosts links_from_json(const nlohmann::json& json);

nlohmann::json fit_error_to_json(const FitError& e);
// Throws, as links_from_json().
FitError fit_error_from_json(const nlohmann::json& json);

// A number that is finite and not negative; throws std::out_of_range.
double amount_from_json(const nlohmann::json& json);

}  // namespace kvasir
