// Says of each request once that it has become late, and why.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "contract/reason.h"
#include "contract/view.h"
#include "sched/mechanisms/token_due.h"

namespace kvasir {

// A miss of TTFT or E2EL is news in the first plan after it. All other causes are told once in a request's
// life: which requests they concern may change from plan to plan. Deterministic in the calls.
class LateNews {
 public:
  // Once for each plan, before the calls of note().
  void begin(Nanos now);
  // A request with bounds that is late now. least_gap_s: of those that are worth keeping.
  void note(const SeqView& seq, const TokenDue& due, double least_gap_s);
  // One without bounds, which has taken `stretch` times as long as it would alone.
  void note_stretched(const SeqView& seq, double stretch);
  // What was noted since the last call.
  std::vector<Reason> take() { return std::exchange(news_, {}); }
  // `live`: by id, ascending. Forgets the others.
  void keep_only(const std::vector<uint64_t>& live);
  bool any() const { return !told_.empty(); }

  std::string save() const;
  Status restore(std::string_view text);

 private:
  void tell_once(const Reason& reason);

  Nanos before_ = 0;            // the plan before this one
  Nanos now_ = 0;               // this one
  std::vector<uint64_t> told_;  // ascending
  std::vector<Reason> news_;
};

}  // namespace kvasir
