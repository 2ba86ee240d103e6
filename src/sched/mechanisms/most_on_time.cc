#include "sched/mechanisms/most_on_time.h"

#include <algorithm>
#include <utility>

namespace kvasir {

OnTimeChoice most_on_time(std::span<const TimedJob> jobs) {
  std::vector<std::pair<double, uint32_t>> by_due;
  by_due.reserve(jobs.size());
  for (uint32_t i = 0; i < jobs.size(); ++i) by_due.emplace_back(jobs[i].due_s, i);
  std::sort(by_due.begin(), by_due.end());

  std::vector<std::pair<double, uint32_t>> heap;  // those kept, the largest for its worth in front
  heap.reserve(jobs.size());
  std::vector<bool> out(jobs.size());
  OnTimeChoice choice;
  double sum_s = 0;
  for (const auto& [due_s, i] : by_due) {
    heap.emplace_back(jobs[i].size_for_worth(), i);
    std::push_heap(heap.begin(), heap.end());
    sum_s += jobs[i].size_s;
    if (sum_s <= due_s) continue;
    double freed_s = 0;
    do {
      std::pop_heap(heap.begin(), heap.end());
      const uint32_t dropped = heap.back().second;
      heap.pop_back();
      sum_s -= jobs[dropped].size_s;
      freed_s += jobs[dropped].size_s;
      out[dropped] = true;
      choice.dropped.push_back(dropped);
      // Where as much is dropped as this job added, what is left fits, as it did before.
    } while (sum_s > due_s && freed_s < jobs[i].size_s);
  }
  choice.kept.reserve(heap.size());
  for (const auto& [due_s, i] : by_due) {
    if (!out[i]) choice.kept.push_back(i);
  }
  return choice;
}

}  // namespace kvasir
