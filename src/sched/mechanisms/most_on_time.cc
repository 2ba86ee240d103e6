#include "sched/mechanisms/most_on_time.h"

#include <algorithm>
#include <utility>

namespace kvasir {

OnTimeChoice most_on_time(std::span<const TimedJob> jobs) {
  std::vector<std::pair<double, uint32_t>> by_due;
  by_due.reserve(jobs.size());
  for (uint32_t i = 0; i < jobs.size(); ++i) by_due.emplace_back(jobs[i].due_s, i);
  std::sort(by_due.begin(), by_due.end());

  std::vector<std::pair<double, uint32_t>> heap;  // sizes of those kept, the largest in front
  heap.reserve(jobs.size());
  std::vector<bool> out(jobs.size());
  OnTimeChoice choice;
  double sum_s = 0;
  for (const auto& [due_s, i] : by_due) {
    heap.emplace_back(jobs[i].size_s, i);
    std::push_heap(heap.begin(), heap.end());
    sum_s += jobs[i].size_s;
    if (sum_s <= due_s) continue;
    // What is left fits: it is no larger than what fitted before this job.
    std::pop_heap(heap.begin(), heap.end());
    sum_s -= heap.back().first;
    out[heap.back().second] = true;
    choice.dropped.push_back(heap.back().second);
    heap.pop_back();
  }
  choice.kept.reserve(heap.size());
  for (const auto& [due_s, i] : by_due) {
    if (!out[i]) choice.kept.push_back(i);
  }
  return choice;
}

}  // namespace kvasir
