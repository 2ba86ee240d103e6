#include "apps/bench/goals.h"

#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>

#include "apps/bench/parse_text.h"

namespace kvasir {
namespace {

// In the order of Goal::Key. `sent` is the server's bound of that kind.
struct Name {
  std::string_view name;
  uint32_t Slo::*sent;
};
constexpr std::array<Name, 5> kNames = {{{"ttft", &Slo::ttft_ms},
                                         {"tpot", &Slo::tpot_ms},
                                         {"p99_tbt", &Slo::tbt_ms},
                                         {"max_tbt", &Slo::tbt_ms},
                                         {"e2el", &Slo::e2el_ms}}};

}  // namespace

std::string_view goal_key(Goal::Key key) {
  return kNames[static_cast<size_t>(key)].name;
}

std::optional<Goal::Key> goal_of(std::string_view name) {
  for (size_t i = 0; i < kNames.size(); ++i) {
    if (kNames[i].name == name) return static_cast<Goal::Key>(i);
  }
  return std::nullopt;
}

Result<Goal> parse_goal(std::string_view flag, std::string_view text) {
  const size_t colon = text.find(':');
  const std::optional<Goal::Key> key = goal_of(text.substr(0, colon));
  const double millis =
      colon == std::string_view::npos ? -1 : parse_number(text.substr(colon + 1)).value_or(-1);
  if (key.has_value() && millis >= 0) return Goal{*key, millis};
  if (text.substr(0, colon) == "tbt") {
    const std::string_view bound = colon == std::string_view::npos ? "" : text.substr(colon);
    return error(
        ErrorCode::kInvalidArgument,
        "{}: '{}': say max_tbt{} if every gap between a request's tokens must meet it, or p99_tbt{} if "
        "one gap in a hundred may miss it",
        flag, text, bound, bound);
  }
  std::vector<std::string_view> names;
  for (const Name& name : kNames) names.push_back(name.name);
  return error(ErrorCode::kInvalidArgument, "{}: '{}' is not KEY:MILLISECONDS with a key out of {}", flag,
               text, fmt::join(names, ", "));
}

bool has_goal(const std::vector<Goal>& goals, Goal::Key key) {
  return std::any_of(goals.begin(), goals.end(), [&](const Goal& goal) { return goal.key == key; });
}

Slo slo_of(const std::vector<Goal>& goals) {
  Slo slo;
  for (const Goal& goal : goals) {
    if (goal.millis == kOwnBound) continue;  // of no request yet
    uint32_t& millis = slo.*kNames[static_cast<size_t>(goal.key)].sent;
    const auto asked =
        static_cast<uint32_t>(std::clamp(std::ceil(goal.millis), 1.0, static_cast<double>(kMaxSloMillis)));
    millis = millis == 0 ? asked : std::min(millis, asked);
  }
  return slo;
}

}  // namespace kvasir
