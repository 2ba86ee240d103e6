#include "engine/plan_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>
#include <tuple>
#include <utility>

#include "base/units.h"

namespace kvasir {
namespace {

class Words {
 public:
  Words(const View& view, const StepPlan& plan) : view_(view), plan_(plan) {}

  std::vector<MapNote> take() {
    for (const Failure& f : plan_.failures)
      add(f.seq, "fail", fmt::format("failed {}: {}", raw(f.seq), f.reason));
    for (const Reason& r : plan_.reasons) add(r.seq, name(r.cause), to_string(r));
    for (const Preemption& p : plan_.preemptions) preempted(p.seq);
    for (const Adoption& a : plan_.adoptions) {
      add(a.seq, "adopt", fmt::format("{} finds {} tokens in the cache", raw(a.seq), a.tokens));
    }
    for (const SeqView& s : view_.waiting) admitted(s);
    copied();
    for (const Promise& p : plan_.promises) promised(p);
    if (plan_.borrow_cells > 0) {
      add(SeqId{}, "borrow", fmt::format("asks peers for {}", count_of(plan_.borrow_cells, "cell")));
    }
    if (plan_.return_cells > 0) {
      add(SeqId{}, "return", fmt::format("gives {} back to peers", count_of(plan_.return_cells, "cell")));
    }
    return std::move(notes_);
  }

 private:
  void add(SeqId seq, std::string name, std::string words) {
    notes_.push_back({view_.now, raw(view_.next_step), raw(seq), std::move(name), std::move(words)});
  }

  // Whether the policy itself has said why, by a cause whose name begins so.
  bool explained(SeqId seq, std::string_view name_of_cause) const {
    return std::any_of(plan_.reasons.begin(), plan_.reasons.end(), [&](const Reason& r) {
      return r.seq == seq && std::string_view(name(r.cause)).starts_with(name_of_cause);
    });
  }

  const SeqView* find(const std::vector<SeqView>& list, SeqId id) const {
    const auto it = std::find_if(list.begin(), list.end(), [&](const SeqView& s) { return s.id == id; });
    return it == list.end() ? nullptr : &*it;
  }

  // What becomes of its cells is in the plan's copy changes.
  void preempted(SeqId id) {
    const SeqView* s = find(view_.running, id);
    const uint32_t cells = s ? s->kv_cells(Tier::kDevice) : 0;
    bool copied = false, given_up = false;
    for (const CopyChange& c : plan_.copies) {
      if (c.seq != id) continue;
      copied |= c.verb == Verb::kAdd && c.tier != Tier::kDevice;
      given_up |= c.verb == Verb::kDropAll;
    }
    const char* what = copied     ? "are copied to a slower tier"
                       : given_up ? "are given up, to be computed again"
                                  : "stay where they have other copies";
    const char* begin = explained(id, "preempt") ? "{0}: its {1} on the device {2}"
                                                 : "preempted {0}: its {1} on the device {2}";
    add(id, "preempt", fmt::format(fmt::runtime(begin), raw(id), count_of(cells, "cell"), what));
  }

  void admitted(const SeqView& s) {
    if (explained(s.id, "admit") || explained(s.id, "chunk")) return;
    const auto rows = std::find_if(plan_.rows.begin(), plan_.rows.end(), [&](const Rows& r) {
      return r.seq == s.id && r.kind != RowKind::kRestore;
    });
    if (rows == plan_.rows.end()) return;
    add(s.id, "admit",
        fmt::format("admitted {}: {} of {} tokens in its first step", raw(s.id), rows->tokens.size(),
                    s.known_tokens));
  }

  void copied() {
    // By sequence, verb, form, tier and trigger: cells at the most.
    std::map<std::tuple<uint64_t, Verb, Form, Tier, Trigger>, uint64_t> cells;
    for (const CopyChange& c : plan_.copies) {
      if (c.verb == Verb::kStage || find_preemption(c.seq)) continue;
      const SeqView* s = find(view_.running, c.seq);
      if (!s) s = find(view_.waiting, c.seq);
      const uint64_t named =
          c.verb == Verb::kDropAll
              ? (s ? s->held(c.form, c.tier) : 0)
              : uint64_t{c.blocks(view_.geometry.block_tokens, /*tail=*/true).size()} * c.layers.count();
      cells[{raw(c.seq), c.verb, c.form, c.tier, c.trigger}] += named;
    }
    for (const auto& [key, count] : cells) {
      const auto& [seq, verb, form, tier, trigger] = key;
      const char* x = form == Form::kX ? " of X" : "";
      if (verb == Verb::kAdd) {
        const char* when = trigger == Trigger::kAfterLayerWrites ? ", each layer as it is written"
                           : trigger == Trigger::kBeforeLayer    ? ", each before its layer runs"
                           : trigger == Trigger::kBackground     ? ", in the background"
                                                                 : "";
        add(SeqId{seq}, "copy",
            fmt::format("{}: up to {}{} to the {}{}", seq, count_of(count, "cell"), x, name(tier), when));
      } else {
        const char* when = trigger == Trigger::kWhenReady ? " once a copy elsewhere is ready" : "";
        add(SeqId{seq}, "drop",
            fmt::format("{}: up to {}{} on the {} are given up{}", seq, count_of(count, "cell"), x,
                        name(tier), when));
      }
    }
  }

  bool find_preemption(SeqId id) const {
    return std::any_of(plan_.preemptions.begin(), plan_.preemptions.end(),
                       [&](const Preemption& p) { return p.seq == id; });
  }

  void promised(const Promise& p) {
    const std::string cells = fmt::format("{} on the {}", count_of(p.cells, "cell"), name(p.tier));
    switch (p.kind) {
      case Promise::Kind::kOwn:
        return add(p.owner, "promise", fmt::format("promised to {}: {}", raw(p.owner), cells));
      case Promise::Kind::kReserve:
        return add(SeqId{}, "reserve", fmt::format("kept in reserve: {}", cells));
      case Promise::Kind::kFromReserve:
        return add(p.owner, "promise",
                   fmt::format("promised to {} from the reserve: {}", raw(p.owner), cells));
      case Promise::Kind::kLoan:
        return add(p.owner, "loan",
                   fmt::format("{} lends {} {} of its promise, until it has {} tokens", raw(p.from),
                               raw(p.owner), cells, p.due_tokens));
      case Promise::Kind::kRelease:
        return add(p.owner, "claim",
                   fmt::format("{} is to get {} when {} gives them up", raw(p.owner), cells, raw(p.from)));
    }
  }

  const View& view_;
  const StepPlan& plan_;
  std::vector<MapNote> notes_;
};

}  // namespace

std::vector<MapNote> plan_words(const View& view, const StepPlan& plan) {
  return Words(view, plan).take();
}

}  // namespace kvasir
