#include "sched/mechanisms/batch_bound.h"

#include <algorithm>
#include <utility>

namespace kvasir {
namespace {

double bound_s(const SeqView& seq) {
  return seq.slo.tpot_ms > 0 ? seq.slo.tpot_ms / 1e3 : std::numeric_limits<double>::infinity();
}

}  // namespace

BatchRule batch_rule(PolicySettings& settings) {
  BatchRule rule;
  rule.within_tpot = settings.word("batch", "free", {"free", "tpot"}) == "tpot";
  rule.prompts = prompt_time(settings);
  settings.needs("prompts", {"batch"});
  return rule;
}

BatchBound::BatchBound(const View& view, PromptTime prompts)
    : costs_(view.costs),
      prompts_(prompts),
      cost_(BatchCost::believed(view.costs)),
      known_(view.costs.known()) {
  for (const SeqView& seq : view.running) {
    load_.requests += 1;
    load_.context += seq.known_tokens;
    prompts_s_ += prompt_share_s(prompts_, costs_, seq);
    least_s_ = std::min(least_s_, bound_s(seq));
    if (!seq.decoding() || seq.last_token_time == 0) continue;
    longest_wait_s_ = std::max(longest_wait_s_, to_seconds(view.now - seq.last_token_time));
  }
}

bool BatchBound::join(const SeqView& seq) {
  BatchLoad with = load_;
  with.requests += 1;
  with.context += seq.known_tokens;
  const double prompts_s = prompts_s_ + prompt_share_s(prompts_, costs_, seq);
  const double least = std::min(least_s_, bound_s(seq));
  if (known_ && load_.requests > 0 && cost_.seconds(with) + prompts_s + longest_wait_s_ > least) return false;
  load_ = with;
  prompts_s_ = prompts_s;
  least_s_ = least;
  return true;
}

std::vector<const SeqView*> batch_within_tpot(const View& view, std::vector<const SeqView*> waiting,
                                              PromptTime prompts) {
  BatchBound bound(view, prompts);
  const auto refused =
      std::find_if(waiting.begin(), waiting.end(), [&](const SeqView* seq) { return !bound.join(*seq); });
  waiting.erase(refused, waiting.end());
  return waiting;
}

std::vector<const SeqView*> may_join(const View& view, bool swapped, BatchRule rule) {
  std::vector<const SeqView*> waiting;
  for (const SeqView& seq : view.waiting) {
    if (!swapped || seq.blocks > 0) waiting.push_back(&seq);
  }
  return rule.within_tpot ? batch_within_tpot(view, std::move(waiting), rule.prompts) : waiting;
}

}  // namespace kvasir
