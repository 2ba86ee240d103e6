// What it takes to choose how many requests decode together and which share of their histories leaves the
// device: by the closed form, and by the solver that the paper names. Each problem is solved once by each, so
// that the times are those of a policy that solves another one in every step: medians and 99th percentiles of
// all, in microseconds of the processor.
#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <ctime>
#include <utility>
#include <vector>

#include "base/random.h"
#include "sched/mechanisms/cache_ratio.h"

namespace kvasir {
namespace {

constexpr int kProblems = 4000;

// Llama-2-13B on an A100.
BatchCost cost_of_13b() {
  PublishedShape shape;
  shape.hidden = 5120;
  shape.layers = 40;
  shape.vocabulary = 32'000;
  shape.feed_forward = 13'824;
  shape.flops_per_s = 312e12;
  shape.bytes_per_s = 1.555e12;
  shape.weight_bytes = 26e9;
  shape.kv_bytes_per_token = 819'200;
  return BatchCost::corrected(shape);
}

// Requests of 20 to 2,000 tokens, of which a quarter to all have room; up to 10 s, or unbounded, so that not
// only the first few are looked at.
RatioProblem problem_of(uint32_t requests, Random& random) {
  RatioProblem p;
  double all = 0;
  for (uint32_t i = 0; i < requests; ++i) {
    p.lengths.push_back(std::floor(20 * std::pow(100, random.unit())));
    p.held_back.push_back(16);
    all += p.lengths.back();
  }
  p.cost = cost_of_13b();
  p.device_tokens = all * (0.25 + 0.75 * random.unit());
  p.overhead = 0.25;
  p.again_share = random.below(2) == 0 ? 1 : 0.4;
  p.staged_token_s = 819'200 / 25e9;
  p.most_seconds = random.below(2) == 0 ? kUnbounded : 0.05 * std::pow(200, random.unit());
  p.slower_tokens = all;
  p.again_tokens = all;
  return p;
}

// Of the processor: on a shared machine a thread that waits for its turn would make up the last hundredth.
double thread_microseconds() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return 1e6 * static_cast<double>(now.tv_sec) + 1e-3 * static_cast<double>(now.tv_nsec);
}

template <typename Solve>
double microseconds(Solve&& solve, RatioChoice& choice) {
  const double begin = thread_microseconds();
  choice = solve();
  return thread_microseconds() - begin;
}

void print_times(const char* name, uint32_t requests, std::vector<double> times) {
  std::sort(times.begin(), times.end());
  fmt::print("{:>6}  {:<12} {:>10.2f} {:>10.2f}\n", requests, name, times[times.size() / 2],
             times[times.size() * 99 / 100]);
}

void run_ratio_bench(uint32_t requests) {
  Random random(requests);
  std::vector<double> closed, slsqp;
  int chosen = 0, near = 0;
  double looked_at = 0;
  for (int i = 0; i < kProblems; ++i) {
    const RatioProblem p = problem_of(requests, random);
    RatioChoice best, solved;
    closed.push_back(microseconds([&] { return choose_ratio(p); }, best));
    slsqp.push_back(microseconds([&] { return choose_ratio_slsqp(p); }, solved));
    looked_at += best.requests;
    if (best.requests == 0) continue;
    ++chosen;
    near += solved.requests * best.seconds >= 0.99 * best.requests * solved.seconds && solved.requests > 0;
  }
  print_times("closed form", requests, std::move(closed));
  print_times("SLSQP", requests, std::move(slsqp));
  fmt::print("        {:.0f} chosen on average; within 1 % of the best: SLSQP in {:.1f} % of {}\n",
             looked_at / kProblems, 100.0 * near / std::max(chosen, 1), chosen);
}

}  // namespace
}  // namespace kvasir

int main() {
  fmt::print("     B  by           median us     p99 us\n");
  for (uint32_t requests : {128, 512, 1024}) kvasir::run_ratio_bench(requests);
}
