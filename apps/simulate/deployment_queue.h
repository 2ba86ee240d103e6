// One queue for all instances of a deployment. A request waits in it until instances have memory for it, and
// is bound to one of them then.
//
// Memory is reserved for all that a request may need, at once or not at all: at one instance, or, if none can
// hold it and they lend, all of one instance and the rest at others. Where the first request of the queue
// has to wait, the earliest time is found at which what others hold is believed to be enough for it, and its
// place there. Later requests begin before it if it is believed to begin no later then: they have ended by
// that time or leave enough free, and what they stall ends in time still: backfilling with a reservation for
// the first request (Mu'alem and Feitelson, "Utilization, Predictability, Workloads, and User Runtime
// Estimates in Scheduling the IBM SP2 with Backfilling", IEEE TPDS 2001).
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
    uint32_t lent_blocks = UINT32_MAX;  // that an instance lends at the most
    CostModel costs;                    // belief
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
  // A request that was bound has ended with so many tokens of output; nothing: it failed.
  void ended(size_t index, std::optional<uint32_t> output_tokens);
  // Binds what may begin now. One that fits nowhere goes to the first instance, which says so.
  std::vector<Binding> bind(Nanos now);

  size_t waiting() const { return waiting_.size(); }
  // For tests: when the first request of the queue is believed to begin; nothing: bind() left none, or was
  // not called.
  std::optional<Nanos> first_begins() const { return first_begins_; }

 private:
  struct Place {
    uint32_t instance = 0;
    std::vector<uint32_t> blocks;  // by instance
    Nanos end = 0;                 // believed
  };
  struct Bound {
    Place place;
    Request request;
    double output = 0;  // believed, in tokens
  };
  // What each instance has at some time.
  struct Usage {
    std::vector<int64_t> free;       // blocks
    std::vector<int64_t> lent;       // blocks
    std::vector<uint32_t> requests;  // bound to it
  };
  // When the first request is to begin, and what the others are believed to leave it then.
  struct Reservation {
    Request first;
    Nanos begin = 0;
    Usage then;
  };

  uint32_t blocks_of(const Request& request) const;
  double believed_output(const Request& request) const;
  Nanos believed_end(const Request& request, uint32_t instance, Nanos now) const;
  Nanos delay(const Bound& bound, const Request& by) const;
  void take(const Place& place, Usage& from) const;
  Usage empty() const;
  Usage usage_at(Nanos at) const;
  bool fits(uint32_t instance, uint32_t blocks, const Usage& usage) const;
  std::optional<Place> place_at(const Request& request, uint32_t instance, const Usage& usage) const;
  std::optional<Place> place_at_several(uint32_t owner, uint32_t blocks_away, const Usage& usage) const;
  bool has_place(const Request& request, const Usage& usage) const;
  bool delays(const Reservation& reserved, const Request& request, const Place& place, Nanos now) const;
  std::optional<Place> place(const Request& request, const Usage& usage, Nanos now,
                             const Reservation* reserved) const;
  Reservation reserve(const Request& request, Nanos now) const;
  Binding bind(const Request& request, Place place, Nanos now);

  const Options options_;
  std::vector<Request> waiting_;  // by arrival
  std::map<size_t, Bound> bound_;
  std::vector<Nanos> prompts_until_;  // when each instance is believed to have computed its prompts
  std::optional<Nanos> first_begins_;
  uint64_t ended_ = 0;         // that did not fail
  uint64_t ended_output_ = 0;  // tokens
};

}  // namespace kvasir
