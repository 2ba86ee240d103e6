// The most memory that a batch will need, by belief.
//
// A request that runs grows by a token a step until it ends and gives up what it owns. So the need of a batch
// is greatest at the end of one of its requests:
//
//   peak = max over i of  sum over j that end no earlier than i of (owned_j + rest_i)
//
// Source: Gong et al., "Past-Future Scheduler for LLM Serving under SLA Guarantees" (ASPLOS 2025,
// arXiv 2507.10150), which admits a request if the peak fits. There lengths are drawn from those of past
// requests; here each request has the mean of what is left of its own (rest_of_output.h).
#pragma once

#include <cstddef>
#include <vector>

namespace kvasir {

class MemoryPeak {
 public:
  struct Request {
    double owned = 0;  // tokens whose blocks it gives up at its end
    double rest = 0;   // steps until then
  };
  // O(n log n).
  explicit MemoryPeak(std::vector<Request> requests = {});
  // O(n), as the next ones.
  void add(double owned, double rest);

  // In tokens, with one request more.
  double with(double owned, double rest) const;

  // Requests that are believed to end within so many steps.
  size_t ending_within(double steps) const;

 private:
  std::vector<Request> requests_;  // the last to end first
};

}  // namespace kvasir
