#include "apps/bench/attainment.h"

#include <algorithm>

#include "apps/bench/stats.h"
#include "base/check.h"

namespace kvasir {

double ttft_ms(const RequestRecord& record) {
  return to_millis(record.first - record.start);
}

double e2el_ms(const RequestRecord& record) {
  return to_millis(record.last - record.start);
}

double tpot_ms(const RequestRecord& record) {
  if (record.output_tokens < 2) return 0;
  return to_millis(record.last - record.first) / static_cast<double>(record.output_tokens - 1);
}

double goal_value(const RequestRecord& record, Goal::Key key) {
  switch (key) {
    case Goal::Key::kTtft:
      return ttft_ms(record);
    case Goal::Key::kTpot:
      return tpot_ms(record);
    case Goal::Key::kE2el:
      return e2el_ms(record);
    case Goal::Key::kP99Tbt:
    case Goal::Key::kMaxTbt: {
      std::vector<double> gaps;
      gaps.reserve(record.gaps.size());
      for (Nanos gap : record.gaps) gaps.push_back(to_millis(gap));
      std::sort(gaps.begin(), gaps.end());
      return percentile_of_sorted(gaps, key == Goal::Key::kMaxTbt ? 100 : 99);
    }
  }
  KV_CHECK(false, "key={}", static_cast<int>(key));
}

bool attains(const RequestRecord& record, const Goal& goal) {
  if (record.state != RequestRecord::State::kCompleted) return false;
  if (record.own.empty()) return goal_value(record, goal.key) <= goal.millis;
  return std::all_of(record.own.begin(), record.own.end(), [&](const Goal& own) {
    return own.key != goal.key || goal_value(record, own.key) <= own.millis;
  });
}

bool attains_all(const RequestRecord& record, const std::vector<Goal>& goals) {
  const std::vector<Goal>& asked = record.own.empty() ? goals : record.own;
  return record.state == RequestRecord::State::kCompleted &&
         std::all_of(asked.begin(), asked.end(), [&](const Goal& goal) { return attains(record, goal); });
}

}  // namespace kvasir
