#include "apps/simulate/observed_policy.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/units.h"

namespace kvasir {
namespace {

constexpr size_t kMostSamples = 4096;

const SeqView* find(const std::vector<SeqView>& seqs, SeqId id) {
  const auto found = std::find_if(seqs.begin(), seqs.end(), [&](const SeqView& s) { return s.id == id; });
  return found == seqs.end() ? nullptr : &*found;
}

struct Planned {
  std::vector<SeqId> sequences;  // that have rows, each once, ascending
  uint32_t rows = 0;
  uint32_t decodes = 0;
};

Planned planned(const StepPlan& plan) {
  Planned out;
  for (const Rows& r : plan.rows) {
    out.rows += r.tokens.size();
    if (r.kind == RowKind::kDecode) ++out.decodes;
    out.sequences.push_back(r.seq);
  }
  std::sort(out.sequences.begin(), out.sequences.end());
  out.sequences.erase(std::unique(out.sequences.begin(), out.sequences.end()), out.sequences.end());
  return out;
}

// After the plan.
size_t running_after(const View& view, const StepPlan& plan, const Planned& planned) {
  size_t out = view.running.size() - plan.preemptions.size();
  for (const Failure& f : plan.failures) {
    if (find(view.running, f.seq)) --out;
  }
  size_t running = 0;  // of those that have rows
  for (const SeqView& seq : view.running) {
    if (std::binary_search(planned.sequences.begin(), planned.sequences.end(), seq.id)) ++running;
  }
  return out + planned.sequences.size() - running;
}

// The plan lets a request wait, or preempts one, though its tokens would allow more.
bool at_limit(const View& view, const StepPlan& plan, const Planned& planned, bool whole_prompts) {
  if (!plan.preemptions.empty()) return true;
  for (const SeqView& seq : view.waiting) {
    if (std::binary_search(planned.sequences.begin(), planned.sequences.end(), seq.id)) continue;
    const uint32_t least = whole_prompts ? seq.tokens_to_compute() : 1;
    return planned.rows + least <= view.limits.max_num_batched_tokens;
  }
  return false;
}

std::string seconds(Nanos t) {
  return fmt::format("{:10.3f} s", to_seconds(t));
}

}  // namespace

StepPlan ObservedPolicy::plan(const View& view) {
  StepPlan plan = inner_->plan(view);
  if (last_ >= 0) {
    const double passed = to_seconds(view.now - last_);
    sums_.seconds += passed;
    if (was_limited_) sums_.seconds_at_limit += passed;
    sums_.running_seconds += passed * static_cast<double>(were_running_);
  }
  last_ = view.now;
  const Planned now = planned(plan);
  were_running_ = running_after(view, plan, now);
  was_limited_ = at_limit(view, plan, now, whole_prompts_);
  if (explained_) explain(view, plan);
  if (now.rows > 0) {
    ++sums_.plans;
    count_memory(view);
  }
  count_pauses(view.now, plan, now.sequences);
  if (plan.failures.size() + plan.preemptions.size() + plan.copies.size() + plan.rows.size() > 0) ++changes_;
  sums_.rows += now.rows;
  sums_.decodes += now.decodes;
  if (seen_++ % stride_ == 0) sample(view, now.rows, now.decodes);
  return plan;
}

void ObservedPolicy::count_memory(const View& view) {
  const auto total = static_cast<double>(view.device.total_cells());
  if (total == 0) return;
  const auto available = static_cast<double>(std::max<int64_t>(0, view.device.available_cells()));
  sums_.allocated += 1 - available / total;
  sums_.promised += static_cast<double>(view.device.promised[index_of(Form::kKv)]) / total;
}

void ObservedPolicy::count_pauses(Nanos now, const StepPlan& plan, const std::vector<SeqId>& with_rows) {
  for (size_t i = 0; paused_ > 0 && i < with_rows.size(); ++i) {
    const auto found = pauses_.find(with_rows[i]);
    if (found == pauses_.end() || found->second.since < 0) continue;
    found->second.seconds += to_seconds(now - found->second.since);
    found->second.since = -1;
    --paused_;
  }
  for (const Preemption& p : plan.preemptions) {
    pauses_[p.seq].since = now;
    ++paused_;
  }
}

std::vector<double> ObservedPolicy::preempted_seconds() const {
  std::vector<double> out;
  for (const auto& [seq, pauses] : pauses_) out.push_back(pauses.seconds);
  std::sort(out.begin(), out.end());
  return out;
}

void ObservedPolicy::sample(const View& view, uint32_t rows, uint32_t decodes) {
  EngineSample s;
  s.at = view.now;
  s.running = static_cast<uint32_t>(view.running.size());
  s.waiting = static_cast<uint32_t>(view.waiting.size());
  s.rows = rows;
  s.decodes = decodes;
  for (const std::vector<SeqView>* seqs : {&view.running, &view.waiting}) {
    for (const SeqView& seq : *seqs) {
      for (Form form : kAllForms) {
        for (Tier tier : kAllTiers) {
          s.bytes[index_of(form)][index_of(tier)] += seq.held(form, tier) * view.geometry.cell_bytes(form);
        }
      }
    }
  }
  s.link_queue_bytes = view.link.queued_bytes;
  samples_.push_back(s);
  if (samples_.size() < kMostSamples) return;
  for (size_t i = 0; i < samples_.size() / 2; ++i) samples_[i] = samples_[2 * i];
  samples_.resize(samples_.size() / 2);
  stride_ *= 2;
}

void ObservedPolicy::tell(Nanos at, const std::string& what) {
  end_stretch();
  life_.push_back(seconds(at) + "  " + what);
}

void ObservedPolicy::stretch(Nanos at, const std::string& what, Interval tokens) {
  if (stretch_ && (stretch_->what != what || stretch_->end_token != tokens.begin)) end_stretch();
  if (!stretch_) stretch_ = Stretch{what, at, at, tokens.begin, tokens.end, 0};
  stretch_->to = at;
  stretch_->end_token = tokens.end;
  ++stretch_->steps;
}

void ObservedPolicy::end_stretch() {
  if (!stretch_) return;
  const Stretch& s = *stretch_;
  life_.push_back(seconds(s.from) + fmt::format("  {} tokens {} to {} in {} step{}", s.what, s.first_token,
                                                s.end_token, s.steps, s.steps == 1 ? "" : "s"));
  if (s.steps > 1) life_.back() += fmt::format(", the last at {:.3f} s", to_seconds(s.to));
  stretch_.reset();
}

void ObservedPolicy::explain(const View& view, const StepPlan& plan) {
  const SeqView* waiting = find(view.waiting, *explained_);
  const SeqView* running = waiting ? nullptr : find(view.running, *explained_);
  const SeqView* seq = waiting ? waiting : running;
  if (seq == nullptr) return;
  if (!known_) {
    known_ = true;
    tell(seq->arrival,
         fmt::format("arrives with a prompt of {} tokens; {} run, {} wait before it", seq->prompt_tokens,
                     view.running.size(), std::max<size_t>(view.waiting.size(), 1) - 1));
    if (seq->predicted.output_tokens > 0) {
      tell(seq->arrival, fmt::format("is believed to give {} tokens", seq->predicted.output_tokens));
    }
  }
  for (const Failure& f : plan.failures) {
    if (f.seq == *explained_) tell(view.now, "fails: " + f.reason);
  }
  for (const Preemption& p : plan.preemptions) {
    if (p.seq != *explained_) continue;
    tell(view.now,
         fmt::format("is preempted at {} tokens, {} of them computed; {} run, {:.0f} % of the "
                     "device's memory can be had",
                     seq->known_tokens, seq->ready_tokens, view.running.size() - plan.preemptions.size(),
                     100.0 * static_cast<double>(std::max<int64_t>(0, view.device.available_cells())) /
                         std::max(1u, view.device.total_cells())));
  }
  bool rows = false;
  for (const Rows& r : plan.rows) {
    if (r.seq != *explained_) continue;
    if (waiting && !rows) {
      tell(view.now,
           fmt::format(
               "{} {:.1f} ms after it {}; {} run beside it",
               seq->preemptions > 0 ? "runs again" : "is admitted",
               to_millis(view.now - (seq->preemptions > 0 && seq->last_token_time > 0 ? seq->last_token_time
                                                                                      : seq->arrival)),
               seq->preemptions > 0 && seq->last_token_time > 0 ? "gave its last token" : "arrived",
               view.running.size()));
    }
    rows = true;
    stretch(
        view.now,
        r.kind == RowKind::kDecode ? "decodes" : (r.kind == RowKind::kPrefill ? "prefills" : "recomputes"),
        r.tokens);
  }
  for (const CopyChange& c : plan.copies) {
    if (c.seq != *explained_) continue;
    if (c.verb == Verb::kDropAll) {
      tell(view.now, fmt::format("copies: drop all {} on the {}", name(c.form), name(c.tier)));
      continue;
    }
    tell(view.now, fmt::format("copies: {} {} of tokens {} to {}, {} layer groups, on the {}", name(c.verb),
                               name(c.form), c.tokens.begin, c.tokens.end, c.layers.count(), name(c.tier)));
  }
  if (running && !rows && plan.preemptions.empty() && !plan.rows.empty()) {
    stretch(view.now, "stands by at", {seq->ready_tokens, seq->ready_tokens});
  }
}

std::vector<std::string> ObservedPolicy::life() {
  end_stretch();
  return life_;
}

}  // namespace kvasir
