// Bounds on a request's latencies.
#pragma once

#include <limits>
#include <optional>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/slo.h"

namespace kvasir {

// A bound on a request, which meets it when its value is at most `millis`.
struct Goal {
  enum class Key { kTtft, kTpot, kP99Tbt, kMaxTbt, kE2el };
  Key key = Key::kTtft;
  double millis = 0;
  friend bool operator==(const Goal&, const Goal&) = default;
};

// What a run's goal has in place of a bound where each request has its own (RequestRecord::own).
inline constexpr double kOwnBound = std::numeric_limits<double>::infinity();

// "p99_tbt", as in flags and JSON keys; and back.
std::string_view goal_key(Goal::Key key);
std::optional<Goal::Key> goal_of(std::string_view name);

// "KEY:MILLISECONDS". kInvalidArgument names `flag` and lists the keys.
Result<Goal> parse_goal(std::string_view flag, std::string_view text);

bool has_goal(const std::vector<Goal>& goals, Goal::Key key);

// The bounds as a server takes them: whole milliseconds from 1 to kMaxSloMillis, rounded up, and the tighter
// of p99_tbt and max_tbt as tbt.
Slo slo_of(const std::vector<Goal>& goals);

}  // namespace kvasir
