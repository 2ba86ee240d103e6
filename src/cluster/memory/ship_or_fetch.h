// Decides, by measured cost, whether attention over a run of leaves at a peer ships the query there or
// fetches K and V.
//
//   symbol    unit    what
//   a, b      s, B/s  the path's latency there and back, and its bandwidth
//   w         s       what a query waits at the creditor before it is computed
//   r, c      s       attention over one leaf with one row, all KV heads: at the creditor, and here
//   N, R      -       leaves of the run; rows
//   h         s       the rows' own attention here, in the same layer
//
//   ship  = max(h, a + (bytes of q + bytes of m, l, o) / b + w + r N R)
//   fetch = max(h, a +  bytes of K and V               / b) + c N R
//
// The creditor works, and K and V come, while the rows attend to what is here; what was fetched is attended
// after it.
#pragma once

#include <cstdint>
#include <optional>

#include "cluster/memory/memory_shape.h"
#include "contract/lending.h"

namespace kvasir {

struct PeerCost {
  double latency_s = 0;
  double bytes_per_s = 0;
  double wait_s = 0;
  double attend_s = 0;  // one leaf, one row
};

// One layer of a run and rows that see all of it.
struct RemoteRun {
  uint32_t leaves = 0;
  uint32_t rows = 0;
  uint64_t query_bytes = 0;
  uint64_t partial_bytes = 0;
  uint64_t kv_bytes = 0;
};
RemoteRun remote_run(const MemoryShape& shape, LeafRun run, uint32_t rows);
// The same for several runs with `leaves` leaves and `peaks` subtrees in all.
RemoteRun remote_run(const MemoryShape& shape, uint32_t leaves, uint32_t peaks, uint32_t rows);

struct ShipOrFetch {
  double ship_s = 0;
  double fetch_s = 0;
  bool ship() const { return ship_s <= fetch_s; }
};
// own_attend_s: c above; meanwhile_s: h. REQUIRES: peer.bytes_per_s > 0
ShipOrFetch ship_or_fetch(const RemoteRun& run, const PeerCost& peer, double own_attend_s,
                          double meanwhile_s = 0);

// What attention to so many leaves at one peer costs a step, and each of its rows, in all layers: the part of
// a query that does not grow with its rows, and the part that does.
PrefixAnswer::Attending attending_cost(const MemoryShape& shape, uint32_t leaves, const PeerCost& peer);

// A mean over about the last `last` observations.
class RunningMean {
 public:
  explicit RunningMean(double last = 32) : last_(last) {}
  // Adds `of` observations with the sum `value`.
  void add(double value, double of = 1);
  bool empty() const { return weight_ <= 0; }
  double get() const { return empty() ? 0 : sum_ / weight_; }

 private:
  double last_;
  double sum_ = 0;
  double weight_ = 0;
};

// What a peer costs, learnt from operations as they end. Latency and bandwidth are the least-squares line
// through (bytes, seconds) of about the last 64 operations; separating the two takes operations of different
// sizes. Owned by one thread.
class PeerCostEstimate {
 public:
  // An operation that had the path to itself: its bytes in both directions, and the time from sending to
  // the reply, without the creditor's waiting and working time.
  void moved(uint64_t bytes, double seconds);
  // A query over leaves x rows.
  void attended(double leaf_rows, double worked_s, double waited_s);

  // Null until both were measured. If all operations had about the same size, or larger ones were no
  // slower, their whole time counts as bandwidth.
  std::optional<PeerCost> cost() const;
  // The same from copies alone: while no query was sent, its waiting and work count as nothing.
  std::optional<PeerCost> believed() const;

 private:
  RunningMean bytes_{64}, seconds_{64}, bytes_squared_{64}, bytes_seconds_{64};
  RunningMean attend_, wait_;
};

}  // namespace kvasir
