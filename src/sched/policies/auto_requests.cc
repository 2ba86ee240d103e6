#include "sched/policies/auto_requests.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <tuple>

#include "sched/mechanisms/least_mean_wait.h"
#include "sched/mechanisms/most_on_time.h"
#include "sched/mechanisms/prefill_time.h"
#include "sched/mechanisms/response_ratio.h"
#include "sched/mechanisms/swap_or_recompute.h"

namespace kvasir {
namespace {

constexpr double kInfinite = std::numeric_limits<double>::infinity();

// Seconds; and so many steps of one row, where those take longer.
constexpr double kDefaultGap = 0.2;
constexpr double kDefaultGapSteps = 4;
// How much longer than it would take alone, or than the mean request would, a request without bounds takes
// before it counts as late.
constexpr double kMostStretch = 16;
// Of a prompt in a step: as many rows as end within the least gap by this margin, but not fewer than these.
constexpr double kChunkMargin = 1.5;
constexpr uint32_t kFewestChunkRows = 16;
// Steps after which some other request is believed to have ended.
constexpr double kStepsToWait = 30;

uint32_t history_of(const SeqView& seq) {
  return seq.blocks > 0 ? seq.ready_tokens : seq.cached_tokens;
}

}  // namespace

double gap_without_bounds(const CostModel& costs) {
  return std::max(kDefaultGap, kDefaultGapSteps * (costs.weights_s() + costs.decode_row_s));
}

double device_tokens(const View& view) {
  return static_cast<double>(view.total_cells(Tier::kDevice)) / view.geometry.groups() *
         view.geometry.block_tokens;
}

bool keeps_its_place(const AutoRequest& a, const AutoRequest& b) {
  if (a.keeps != b.keeps) return a.keeps < b.keeps;
  if (a.turn != b.turn) return a.turn < b.turn;
  if (a.returned != b.returned) return a.returned;
  if (a.finish_for_worth() != b.finish_for_worth()) return a.finish_for_worth() < b.finish_for_worth();
  return std::tuple(a.seq->arrival, raw(a.seq->id)) < std::tuple(b.seq->arrival, raw(b.seq->id));
}

AutoRequests::AutoRequests(const View& view, const AutoOptions& options, AutoState& state)
    : view_(view), options_(options) {
  const CostModel& costs = view.costs;
  prices_ = state.shortages.prices(costs, device_tokens(view), view.limits.max_num_seqs);
  scarce_ = state.shortages.memory() + state.shortages.slots();
  without_bounds_s_ = gap_without_bounds(costs);
  for (const SeqView& seq : view.running) {
    if (seq.decoding()) decodes_.add_decode(seq.known_tokens);
  }
  step_s_ = decodes_.empty() ? costs.decode_seconds(1, 0) : costs.step_seconds(decodes_);

  state.news.begin(view.now);
  running.reserve(view.running.size());
  for (const SeqView& seq : view.running) running.push_back(request(seq, state));
  waiting.reserve(view.waiting.size());
  for (const SeqView& seq : view.waiting) waiting.push_back(request(seq, state));
  set_chunks();
  for (auto* all : {&running, &waiting}) {
    for (AutoRequest& r : *all) set_prices(r);
  }
  const double mean_s = mean_alone_s();
  for (auto* all : {&running, &waiting}) {
    for (AutoRequest& r : *all) {
      if (!r.bounded && !r.late && costs.known()) stretch(r, mean_s, state);
    }
  }
  double steps = 0;
  for (AutoRequest& r : running) {
    r.returned = state.returns.just_returned(r.seq->id, r.rest.mean);
    r.keeps = keeps(r, state);
    steps += r.rest.mean;
  }
  if (!running.empty()) steps_of_one_ = 2 * steps / static_cast<double>(running.size());
}

// As AutoTime bounds a step: by each gap of those on time, and by the default where one has no bound to keep.
// A bound on the mean gap leaves a step more time, as far as earlier gaps were shorter.
void AutoRequests::set_chunks() {
  double gap_s = kInfinite;
  for (const AutoRequest& r : running) {
    if (!r.seq->decoding()) continue;
    if (!r.bounded) gap_s = std::min(gap_s, without_bounds_s_);
    if (r.on_time_bound() && r.seq->slo.tbt_ms > 0) gap_s = std::min(gap_s, r.seq->slo.tbt_ms / 1e3);
  }
  const double budget = view_.limits.max_num_batched_tokens;
  auto room = static_cast<uint32_t>(std::max(1.0, budget - decodes_.decode_rows));
  const uint32_t threshold = view_.limits.long_prefill_token_threshold;
  if (threshold > 0) room = std::min(room, threshold);
  chunk_rows_ = std::max(std::min(room, kFewestChunkRows),
                         prefill_rows_within(view_.costs, decodes_, gap_s / kChunkMargin, 0, room));
  StepWork full = decodes_;
  full.prefill_rows = chunk_rows_;
  full_step_row_s_ = view_.costs.step_seconds(full) / chunk_rows_;
}

double AutoRequests::prefill_s(const StepWork& prefill) const {
  return full_step_row_s_ * prefill.prefill_rows + view_.costs.pair_s * prefill.prefill_pairs;
}

double AutoRequests::first_token_s(const StepWork& prefill) const {
  if (prefill.empty()) return 0;
  if (prefill.prefill_rows > chunk_rows_) return prefill_s(prefill);
  StepWork step = decodes_;
  step += prefill;
  return view_.costs.step_seconds(step);
}

RequestWork AutoRequests::work_of(const SeqView& seq, const OutputRest& rest) const {
  RequestWork work;
  work.steps = rest.mean;
  work.token_steps = token_steps(seq.known_tokens, rest);
  if (!seq.decoding()) {
    const uint32_t history = std::min(history_of(seq), seq.known_tokens - 1);
    work.prefill.add_prefill(history, seq.known_tokens - history);
  }
  const uint32_t all = seq.live_cells(view_.geometry);
  const uint32_t away = all - std::min(all, seq.kv_cells(Tier::kDevice));
  if (away > 0) {
    work.link_s = view_.costs.transfer_seconds(view_.slower_tier(), Tier::kDevice,
                                               static_cast<double>(view_.geometry.kv_cell_bytes()) * away);
  }
  return work;
}

double AutoRequests::alone_s(const SeqView& seq, const OutputRest& rest) const {
  const double output = seq.known_tokens - std::min(seq.known_tokens, seq.prompt_tokens) + rest.mean;
  StepWork prompt;
  prompt.add_prefill(0, seq.prompt_tokens);
  return first_token_s(prompt) + output * step_s_;
}

double AutoRequests::mean_alone_s() const {
  double sum = 0, unbounded = 0;
  for (const auto* all : {&running, &waiting}) {
    for (const AutoRequest& r : *all) {
      if (r.seq->slo.any()) continue;
      sum += r.alone_s;
      unbounded += 1;
    }
  }
  return unbounded > 0 ? sum / unbounded : 0;
}

// What is short does not have to be served at once.
void AutoRequests::stretch(AutoRequest& r, double mean_s, AutoState& state) const {
  const double alone_s = std::max(r.alone_s, mean_s);
  const double age_s = to_seconds(view_.now - r.seq->arrival);
  r.left_s = state.stretch.factor() * alone_s - age_s - r.rest.mean * step_s_;
  r.late = age_s > kMostStretch * alone_s;
  if (!r.seq->slo.any()) r.worth = worth_by_response_ratio(r.worth, age_s, alone_s);
  if (r.late) state.news.note_stretched(*r.seq, age_s / alone_s);
}

bool AutoRequests::is_late(const SeqView& seq, const TokenDue& due, const AutoState& state) const {
  if (due.missed || due.behind) return true;
  return allowed_gap(seq.slo) < state.least_gap_s;
}

AutoRequest AutoRequests::request(const SeqView& seq, AutoState& state) const {
  AutoRequest r;
  r.seq = &seq;
  r.worth = seq.weight;
  r.rest = state.rest.of(seq);
  const TokenDue due = token_due(seq, view_.now, step_s_, r.rest);
  r.left_s = due.left_s;
  r.bounded = std::isfinite(due.left_s);
  r.late = seq.slo.any() && is_late(seq, due, state);
  if (r.late) state.news.note(seq, due, state.least_gap_s);
  r.turn = state.credit.turn_of(seq.id);
  return r;
}

void AutoRequests::set_prices(AutoRequest& r) const {
  const RequestWork work = work_of(*r.seq, r.rest);
  r.finish_s = prices_.finish_s(view_.costs, work);
  r.busy_s = r.finish_s +
             (1 - scarce_) * view_.costs.weights_s() * work.token_steps / std::max(1.0, device_tokens(view_));
  r.size_s = scarce_ * r.finish_s + (1 - scarce_) * prefill_s(work.prefill);
  r.need_s = work.link_s + first_token_s(work.prefill);
  if (!r.bounded && !r.late) r.alone_s = alone_s(*r.seq, r.rest);
}

Keeps AutoRequests::keeps(const AutoRequest& r, const AutoState& state) const {
  if (r.turn > 0) return Keeps::kOnCredit;
  if (r.late) return Keeps::kLate;
  // Without bounds and with time for all the cheapest end first.
  if (!r.bounded && state.stretch.factor() == 1) return Keeps::kCanWait;
  if (r.returned) return Keeps::kMust;
  const double swap_s = swap_seconds(view_, *r.seq);
  const double way_s = std::isfinite(swap_s) ? swap_s : recompute_seconds(view_, *r.seq);
  const bool can_wait = std::isfinite(r.left_s) && r.left_s > kStepsToWait * step_s_ + way_s;
  return can_wait ? Keeps::kCanWait : Keeps::kMust;
}

std::vector<AutoRequest*> AutoRequests::queue(AutoState& state) {
  std::vector<AutoRequest*> queue;
  queue.reserve(waiting.size());
  if (!options_.order) {
    for (AutoRequest& r : waiting) queue.push_back(&r);
    return queue;
  }
  std::vector<AutoRequest*> on_time;
  std::vector<TimedJob> jobs;
  jobs.reserve(waiting.size());
  bool any_unbounded = false;
  for (AutoRequest& r : waiting) {
    if (r.late) continue;
    on_time.push_back(&r);
    any_unbounded |= !r.bounded;
    jobs.push_back({r.size_s, r.slack_s() + r.size_s, r.worth});
  }
  OnTimeChoice choice = most_on_time(jobs);
  bool dropped_unbounded = false;
  for (uint32_t i : choice.dropped) dropped_unbounded |= !on_time[i]->bounded;
  if (any_unbounded) state.stretch.observe(dropped_unbounded, kMostStretch);
  for (uint32_t i : least_mean_wait(jobs, choice.kept)) queue.push_back(on_time[i]);
  std::sort(choice.dropped.begin(), choice.dropped.end(), [&](uint32_t a, uint32_t b) {
    return std::pair(on_time[a]->finish_for_worth(), a) < std::pair(on_time[b]->finish_for_worth(), b);
  });
  for (uint32_t i : choice.dropped) queue.push_back(on_time[i]);
  for (AutoRequest& r : waiting) {
    if (r.late) queue.push_back(&r);
  }
  return queue;
}

}  // namespace kvasir
