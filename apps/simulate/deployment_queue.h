// One queue for all instances of a deployment. A request waits in it until instances have memory for it, and
// is bound to one of them then.
//
// Memory is reserved for all that a request may need, at once or not at all: at one instance, or, if none can
// hold it and they lend, all of one instance and the rest at others. Where the first request of the queue
// has to wait, the earliest time is found at which what others hold is believed to be enough for it, and its
// place there. Later requests begin before it if they are believed to have ended by then, or leave that place
// free: backfilling with a reservation for the first request (Mu'alem and Feitelson, "Utilization,
// Predictability, Workloads, and User Runtime Estimates in Scheduling the IBM SP2 with Backfilling", IEEE
// TPDS 2001).
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "base/clock.h"
#include "contract/cost_model.h"

namespace kvasir {

class DeploymentQueue {
 public:
  struct Options {
    uint32_t instances = 1;
    uint32_t blocks = 0;                  // of memory, of each instance
    uint32_t block_tokens = 1;            // tokens in a block
    uint32_t leaf_blocks = 1;             // what goes to others are so many blocks, or a multiple
    uint32_t most_requests = UINT32_MAX;  // at one instance
    bool lends = false;
    CostModel costs;  // belief
  };
  struct Request {
    size_t index = 0;
    uint32_t prompt_tokens = 0;
    uint32_t max_tokens = 0;  // of output; 0: it states no limit, and only its prompt is reserved
  };
  struct Binding {
    size_t index = 0;
    uint32_t instance = 0;         // that runs it
    std::vector<uint32_t> blocks;  // reserved, by instance
  };

  explicit DeploymentQueue(const Options& options);

  void push(const Request& request);
  // A request that was bound has ended with so many tokens of output.
  void ended(size_t index, uint32_t output_tokens);
  // Binds what may begin now. One that fits nowhere goes to the first instance, which says so.
  std::vector<Binding> bind(Nanos now);

  size_t waiting() const { return waiting_.size(); }
  // When the first request of the queue is believed to begin; nothing: bind() left none, or was not called.
  std::optional<Nanos> first_begins() const { return first_begins_; }

 private:
  struct Place {
    uint32_t instance = 0;
    std::vector<uint32_t> blocks;  // by instance
    Nanos end = 0;                 // believed
  };
  struct Bound {
    Place place;
    uint32_t prompt_tokens = 0;
  };
  // Where the first request will begin.
  struct Reservation {
    Nanos begin = 0;
    std::vector<int64_t> spare;  // blocks that are free then beside it, by instance
  };

  uint32_t blocks_of(const Request& request) const;
  double believed_output(const Request& request) const;
  Nanos believed_end(const Request& request, uint32_t instance, Nanos now) const;
  std::vector<int64_t> free_at(Nanos at) const;
  bool fits(uint32_t instance, uint32_t blocks, const std::vector<int64_t>& free) const;
  std::optional<Place> place(const Request& request, const std::vector<int64_t>& free, Nanos now,
                             const Reservation* reserved) const;
  std::optional<Place> place_at_several(const Request& request, uint32_t owner,
                                        const std::vector<int64_t>& free) const;
  bool fits_empty(const Request& request) const;
  Reservation reserve(const Request& request, Nanos now) const;
  Binding bind(const Request& request, Place place, Nanos now);

  const Options options_;
  std::vector<Request> waiting_;  // by arrival
  std::map<size_t, Bound> bound_;
  std::vector<uint32_t> requests_;    // bound to each instance
  std::vector<Nanos> prompts_until_;  // when each instance is believed to have computed its prompts
  std::optional<Nanos> first_begins_;
  uint64_t ended_ = 0;
  uint64_t ended_output_ = 0;  // tokens
};

}  // namespace kvasir
