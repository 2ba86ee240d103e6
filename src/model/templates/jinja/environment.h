// What one rendering may use, and what it has used: the bounds that stop a hostile template.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/templates/jinja/value.h"

namespace kvasir::jinja {

struct Limits {
  // Of a TemplateBudget (chat_template.h).
  uint64_t steps = 0;
  uint64_t bytes = 0;
  size_t output_bytes = 0;
  int depth = 400;  // of evaluation: statements, expressions and macro calls together
};
constexpr int kMaxValueDepth = 64;  // of lists in lists

// One rendering's budget. Not thread-safe.
class Environment {
 public:
  Environment(const Limits& limits, std::optional<int64_t> now_seconds)
      : limits_(limits), now_seconds_(now_seconds) {}

  // kExhausted: the budget is spent.
  Status spend(uint64_t steps);
  Status spend_bytes(uint64_t bytes);

  // A string, list or dict on the budget. kInvalidArgument: nested too deep, or holding a namespace (which
  // could then hold itself).
  Result<Value> make_string(MarkedText text);
  Result<Value> make_list(std::vector<Value> items, bool tuple = false);
  Result<Value> make_dict(std::vector<std::pair<std::string, Value>> items, bool integer_keys = false);

  const Limits& limits() const { return limits_; }
  // The clock of strftime_now(), in seconds since 1970; none: the function is undefined.
  std::optional<int64_t> now_seconds() const { return now_seconds_; }

 private:
  const Limits limits_;
  const std::optional<int64_t> now_seconds_;
  uint64_t steps_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir::jinja
