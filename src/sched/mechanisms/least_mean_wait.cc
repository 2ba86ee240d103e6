#include "sched/mechanisms/least_mean_wait.h"

#include <algorithm>
#include <utility>

namespace kvasir {
namespace {

// What a sum may be off by, relative to it.
constexpr double kRounding = 1e-12;

}  // namespace

std::vector<uint32_t> least_mean_wait(std::span<const TimedJob> jobs, std::span<const uint32_t> by_due) {
  double end_s = 0;
  for (uint32_t i : by_due) end_s += jobs[i].size_s;
  std::vector<std::pair<double, uint32_t>> may_be_last;  // a heap, the largest for its worth in front
  may_be_last.reserve(by_due.size());
  std::vector<uint32_t> order(by_due.size());
  size_t left = by_due.size();
  const auto add = [&] {
    const uint32_t i = by_due[--left];
    may_be_last.emplace_back(jobs[i].size_for_worth(), i);
    std::push_heap(may_be_last.begin(), may_be_last.end());
  };
  for (size_t place = order.size(); place-- > 0;) {
    while (left > 0 && jobs[by_due[left - 1]].due_s >= end_s * (1 - kRounding)) add();
    if (may_be_last.empty()) add();
    std::pop_heap(may_be_last.begin(), may_be_last.end());
    order[place] = may_be_last.back().second;
    end_s -= jobs[order[place]].size_s;
    may_be_last.pop_back();
  }
  return order;
}

}  // namespace kvasir
