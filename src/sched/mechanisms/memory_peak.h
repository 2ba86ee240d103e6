// The most memory that a batch will need, by belief.
//
// A request that runs grows by a token a step until it ends and gives up what it owns. So the need of a batch
// after t steps is the sum over those that have not ended of (owned + t), and it is greatest just before one
// of them ends. How long each runs is uncertain, so that their ends are spread. With three equally likely
// lengths for each request, of the mean and the variance that are believed of it, and
// P_j(t) = P(rest_j >= t),
//
//   peak = max over t of  sum over j of (owned_j + t) P_j  +  2 sd
//   sd^2 = sum over j of (owned_j + t)^2 P_j (1 - P_j)
//
// where t is any of the lengths, and no more than if all that may reach t do: a batch of many needs little
// more than its mean, one of few all at once.
//
// Source: Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS 2025,
// arXiv 2507.10150), which admits a request if the peak fits. There lengths are drawn from those of past
// requests; here they are those three of each request's own (rest_of_output.h).
#pragma once

#include <array>
#include <cstddef>
#include <span>
#include <vector>

#include "sched/mechanisms/rest_of_output.h"

namespace kvasir {

class MemoryPeak {
 public:
  struct Request {
    double owned = 0;  // tokens whose blocks it gives up at its end
    OutputRest rest;   // steps until then
  };
  // O(n log n).
  explicit MemoryPeak(std::span<const Request> requests = {});
  // O(n), as the next ones.
  void add(const Request& request);

  // In tokens, with one request more.
  double with(const Request& request) const;

  // Requests that are believed to end within so many steps: a mean.
  double ending_within(double steps) const;

 private:
  struct Length {
    double owned = 0;  // by its request
    double steps = 0;
    int shorter = 0;  // of the same request's lengths
  };
  struct Need;
  static constexpr size_t kLengths = 3;
  static std::array<Length, kLengths> lengths_of(const Request& request);  // the longest first

  std::vector<Length> lengths_;  // the longest first
  std::vector<OutputRest> rests_;
};

}  // namespace kvasir
