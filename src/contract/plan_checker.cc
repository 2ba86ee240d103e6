#include "contract/plan_checker.h"

#include <algorithm>
#include <unordered_map>

#include "contract/block_ledger.h"

namespace kvasir {
namespace {

// A sequence as the plan has left it so far.
struct SeqState {
  const SeqView* view = nullptr;
  bool was_running = false;
  bool running = false;
  bool failed = false;
  uint32_t ready = 0;
  uint32_t blocks = 0;
  uint32_t promised = 0;
};

template <typename... Args>
Status broken(fmt::format_string<Args...> format, Args&&... args) {
  return error(ErrorCode::kInvalidArgument, "plan: {}", fmt::format(format, std::forward<Args>(args)...));
}

class Checker {
 public:
  explicit Checker(const View& view) : view_(view), ledger_(view) {
    for (const auto& s : view.running) add(s, true);
    for (const auto& s : view.waiting) add(s, false);
    running_ = view.running.size();
  }

  Status check(const StepPlan& plan) {
    for (const auto& f : plan.failures) KV_RETURN_IF_ERROR(failure(f));
    for (const auto& p : plan.preemptions) KV_RETURN_IF_ERROR(preemption(p));
    for (const auto& c : plan.copies) KV_RETURN_IF_ERROR(copy(c));
    for (const auto& a : plan.adoptions) KV_RETURN_IF_ERROR(adoption(a));
    for (const auto& p : plan.promises) KV_RETURN_IF_ERROR(promise(p));
    for (const auto& r : plan.rows) KV_RETURN_IF_ERROR(rows(r));
    if (ledger_.available() < 0) {
      return broken("takes {} blocks more than are free, idle or given up", -ledger_.available());
    }
    if (running_ > view_.limits.max_num_seqs) {
      return broken("{} sequences would run, the limit is {}", running_, view_.limits.max_num_seqs);
    }
    const bool work = !view_.running.empty() || !view_.waiting.empty();
    // Preemptions and drops move the work forward too: they cannot be repeated for ever, and blocks that two
    // sequences shared and gave up are counted as free only in the next view.
    if (work && view_.steps_in_flight == 0 && plan.rows.empty() && plan.failures.empty() &&
        plan.preemptions.empty() && plan.copies.empty()) {
      return broken("{} running and {} waiting sequences, but nothing runs and nothing fails",
                    view_.running.size(), view_.waiting.size());
    }
    return {};
  }

 private:
  void add(const SeqView& s, bool running) {
    seqs_[s.id] = {&s, running, running, false, s.ready_tokens, s.device_blocks, s.promised_blocks};
  }

  SeqState* find(SeqId id) {
    auto it = seqs_.find(id);
    return it == seqs_.end() || it->second.failed ? nullptr : &it->second;
  }

  // Blocks and promises of a sequence that stops running come back.
  void give_back_promise(SeqState& s) {
    ledger_.end_promise(s.promised);
    s.promised = 0;
  }

  Status failure(const Failure& f) {
    SeqState* s = find(f.seq);
    if (!s) return broken("fails sequence {}, which is not there", raw(f.seq));
    if (f.reason.empty()) return broken("fails sequence {} without a reason", raw(f.seq));
    give_back_promise(*s);
    if (s->running) --running_;
    s->failed = true;
    s->running = false;
    return {};
  }

  Status preemption(const Preemption& p) {
    SeqState* s = find(p.seq);
    if (!s || !s->running) return broken("preempts sequence {}, which does not run", raw(p.seq));
    give_back_promise(*s);
    s->running = false;
    --running_;
    return {};
  }

  Status copy(const CopyChange& c) {
    SeqState* s = find(c.seq);
    if (!s) return broken("changes copies of sequence {}, which is not there", raw(c.seq));
    if (c.form != Form::kKv || c.tier != Tier::kDevice || c.verb != Verb::kDrop ||
        c.trigger.kind != Trigger::Kind::kNow) {
      return broken("sequence {}: {} of {} on {} ({}): the device tier with KV is all there is", raw(c.seq),
                    name(c.verb), name(c.form), name(c.tier), name(c.trigger.kind));
    }
    if (c.layers != LayerSet::all(view_.geometry.groups())) {
      return broken("sequence {}: drops {} of {} layer groups", raw(c.seq), c.layers.count(),
                    view_.geometry.groups());
    }
    if (s->blocks == 0) return broken("drops cells of sequence {}, which has none", raw(c.seq));
    if (s->running) return broken("drops cells of sequence {}, which goes on running", raw(c.seq));
    if (c.tokens.begin != 0 || c.tokens.end < s->ready) {
      return broken("sequence {}: drops [{}, {}) of [0, {}): what is kept has no use", raw(c.seq),
                    c.tokens.begin, c.tokens.end, s->ready);
    }
    give_back_promise(*s);
    ledger_.give_up(s->view->own_device_blocks);
    s->ready = 0;
    s->blocks = 0;
    return {};
  }

  Status adoption(const Adoption& a) {
    SeqState* s = find(a.seq);
    if (!s || s->was_running) return broken("sequence {} adopts but does not wait", raw(a.seq));
    if (s->ready != 0 || s->blocks != 0)
      return broken("sequence {} adopts beside cells it holds", raw(a.seq));
    if (a.tokens == 0 || a.tokens > s->view->cached_tokens || a.tokens % view_.geometry.block_tokens != 0) {
      return broken("sequence {} adopts {} tokens, {} are cached, a block has {}", raw(a.seq), a.tokens,
                    s->view->cached_tokens, view_.geometry.block_tokens);
    }
    s->ready = a.tokens;
    s->blocks = a.tokens / view_.geometry.block_tokens;
    ledger_.adopt(s->blocks, std::min(s->blocks, s->view->cached_idle_blocks));
    return {};
  }

  Status promise(const Promise& p) {
    SeqState* s = find(p.owner);
    if (!s) return broken("promises blocks to sequence {}, which is not there", raw(p.owner));
    ledger_.take(p.blocks);
    s->promised += p.blocks;
    return {};
  }

  Status rows(const Rows& r) {
    SeqState* s = find(r.seq);
    if (!s) return broken("has rows of sequence {}, which is not there", raw(r.seq));
    if (s->was_running && !s->running) return broken("preempts sequence {} and runs it", raw(r.seq));
    if (r.tokens.empty() || r.tokens.end > s->view->known_tokens) {
      return broken("sequence {}: rows [{}, {}) of {} known tokens", raw(r.seq), r.tokens.begin, r.tokens.end,
                    s->view->known_tokens);
    }
    if (r.tokens.begin != s->ready) {
      return broken("sequence {}: rows begin at {}, the history ends at {}", raw(r.seq), r.tokens.begin,
                    s->ready);
    }
    const LayerSet all = LayerSet::all(view_.geometry.groups());
    if (r.layers != all || r.writes.kv != all || !r.writes.x.empty() || r.writes.tier != Tier::kDevice) {
      return broken("sequence {}: rows pass all layers and write KV on the device", raw(r.seq));
    }
    if (r.samples && r.tokens.end != s->view->known_tokens) {
      return broken("sequence {}: samples at {}, but {} tokens are known", raw(r.seq), r.tokens.end,
                    s->view->known_tokens);
    }
    if (r.kind == RowKind::kDecode && r.tokens.size() != 1) {
      return broken("sequence {}: decodes {} tokens", raw(r.seq), r.tokens.size());
    }
    if ((r.kind == RowKind::kPrefill) != (r.tokens.begin < s->view->prompt_tokens)) {
      return broken("sequence {}: {} at {}, its prompt has {} tokens", raw(r.seq), name(r.kind),
                    r.tokens.begin, s->view->prompt_tokens);
    }
    if (!s->running) {
      s->running = true;
      ++running_;
    }
    const uint32_t needed = view_.geometry.blocks_for(r.tokens.end);
    const uint32_t fresh = needed > s->blocks ? needed - s->blocks : 0;
    const uint32_t drawn = std::min(fresh, s->promised);
    s->promised -= drawn;
    ledger_.take(fresh - drawn);
    s->blocks += fresh;
    s->ready = r.tokens.end;
    return {};
  }

  const View& view_;
  BlockLedger ledger_;
  std::unordered_map<SeqId, SeqState> seqs_;
  size_t running_ = 0;
};

}  // namespace

Status check_plan(const View& view, const StepPlan& plan) {
  return Checker(view).check(plan);
}

}  // namespace kvasir
