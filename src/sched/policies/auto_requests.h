// The requests of a view as the policy `auto` sees them: how much time is left for the next token of each,
// and what it costs to finish; and the order in which those that wait shall have their turn.
#pragma once

#include <vector>

#include "contract/view.h"
#include "sched/mechanisms/batch_gap.h"
#include "sched/mechanisms/device_prices.h"
#include "sched/mechanisms/token_due.h"
#include "sched/policies/auto_state.h"

namespace kvasir {

// The gap between two tokens that requests without a bound are to have at the most.
double gap_without_bounds(const CostModel& costs);
// For which the device has memory.
double device_tokens(const View& view);

// In which order running requests keep their memory: the first value gives it up last.
enum class Keeps : uint8_t {
  kOnCredit,  // late, and paid for
  kMust,      // on time, and would be late
  kCanWait,   // on time: its bounds leave time for others to end, and for its way back
  kLate,
};

struct AutoRequest {
  const SeqView* seq = nullptr;
  double left_s = 0;      // until its next token is due; infinite without a bound and without a stretch
  double need_s = 0;      // from when it may run until that token: prefill, or the way back to the device
  double finish_s = 0;    // kappa: what is left of it costs so many seconds of the device
  double busy_s = 0;      // the same where memory is short in every step: what it takes from others
  double size_s = 0;      // how far apart admissions like it are
  double alone_s = 0;     // what it would take alone; of those without a bound to keep
  OutputRest rest;        // of its output: steps that it takes still
  bool late = false;      // it cannot meet its bounds any more, or nothing is given for them
  bool bounded = false;   // a bound is still to be kept
  bool sits_out = false;  // late: beside its row those on time would be late, too
  bool returned = false;  // a few steps ago: it is not to give up its memory at once
  double worth = 1;       // its weight, times its response ratio if it states no bound
  Keeps keeps = Keeps::kMust;  // of one that runs
  uint64_t turn = 0;           // LateCredit::turn_of()

  double slack_s() const { return left_s - need_s; }
  // By which it is compared with others: what finishing it costs, for what it is worth.
  double finish_for_worth() const { return finish_s / worth; }
  bool on_time_bound() const { return bounded && !late; }
};

class AutoRequests {
 public:
  // Notes in `state` which requests are late from now on.
  AutoRequests(const View& view, const AutoOptions& options, AutoState& state);

  std::vector<AutoRequest> running;  // as in the view
  std::vector<AutoRequest> waiting;

  // REQUIRES: it runs
  bool sits_out(const SeqView& seq) const {
    return running[static_cast<size_t>(&seq - view_.running.data())].sits_out;
  }
  double step_s() const { return step_s_; }  // of all that decode now
  // That a request passes from its first token on: on average those that run are half done.
  double steps_of_one() const { return steps_of_one_; }
  double without_bounds_s() const { return without_bounds_s_; }
  // A batch without requests, by which the gaps of one can be judged.
  BatchGap empty_batch(const StepMargins& margins) const {
    return {view_.costs, margins, {.steps = steps_of_one_, .otherwise_s = without_bounds_s_}};
  }

  // Those that wait, the first to have its turn first: those on time that can stay so, as soon as possible on
  // average; those on time that cannot, the cheapest first; the late ones by arrival. Adapts the stretch.
  std::vector<AutoRequest*> queue(AutoState& state);

 private:
  // Without what set_prices() sets.
  AutoRequest request(const SeqView& seq, AutoState& state) const;
  // C, from those that run.
  void set_chunks();
  void set_prices(AutoRequest& r) const;
  // A prompt goes in chunks that fill the steps of the decodes: R rows and P pairs take R T(D + C) / C + pi
  // P.
  double prefill_s(const StepWork& prefill) const;
  // The same, of one that may run at once: one that fits into a step takes that step.
  double first_token_s(const StepWork& prefill) const;
  RequestWork work_of(const SeqView& seq, const OutputRest& rest) const;
  // What it would take if it began now beside the decodes of now; and the mean of those without bounds.
  double alone_s(const SeqView& seq, const OutputRest& rest) const;
  double mean_alone_s() const;
  // Of one without a bound to keep. mean_s: mean_alone_s()
  void stretch(AutoRequest& r, double mean_s, AutoState& state) const;
  bool is_late(const SeqView& seq, const TokenDue& due, const AutoState& state) const;
  Keeps keeps(const AutoRequest& r, const AutoState& state) const;

  const View& view_;
  const AutoOptions& options_;
  DevicePrices prices_;
  double scarce_ = 0;           // u = u_M + u_B
  StepWork decodes_;            // of all requests that decode
  double step_s_ = 0;           // of those, or of one row
  uint32_t chunk_rows_ = 1;     // C: rows of prompts in a full step
  double full_step_row_s_ = 0;  // T(D + C rows) / C, of rows without pairs
  double steps_of_one_ = 1;
  double without_bounds_s_ = 0;
};

// The order in which requests that run keep their places, the first to keep it first: by `keeps`, those that
// have just returned first, the cheapest to finish for its worth first, the earliest arrival first; those on
// credit in the order of their turns.
bool keeps_its_place(const AutoRequest& a, const AutoRequest& b);

}  // namespace kvasir
