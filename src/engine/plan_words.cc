#include "engine/plan_words.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

#include "base/units.h"

namespace kvasir {
namespace {

// The sequences of a list of the view by id, which are sorted when the first is looked for.
class ById {
 public:
  explicit ById(const std::vector<SeqView>& list) : list_(list) {}

  const SeqView* find(SeqId id) {
    if (sorted_.empty()) {
      sorted_.reserve(list_.size());
      for (const SeqView& s : list_) sorted_.push_back(&s);
      std::sort(sorted_.begin(), sorted_.end(),
                [](const SeqView* a, const SeqView* b) { return a->id < b->id; });
    }
    const auto it = std::lower_bound(sorted_.begin(), sorted_.end(), id,
                                     [](const SeqView* s, SeqId wanted) { return s->id < wanted; });
    return it != sorted_.end() && (*it)->id == id ? *it : nullptr;
  }

 private:
  const std::vector<SeqView>& list_;
  std::vector<const SeqView*> sorted_;
};

class Words {
 public:
  Words(const View& view, const StepPlan& plan, size_t most)
      : view_(view), plan_(plan), most_(most), running_(view.running), waiting_(view.waiting) {}

  std::vector<MapNote> take(uint64_t& unsaid) {
    for (const Failure& f : plan_.failures) {
      if (has_room()) add(f.seq, "fail", fmt::format("failed {}: {}", raw(f.seq), f.reason));
    }
    for (const Reason& r : plan_.reasons) {
      if (has_room()) add(r.seq, name(r.cause), to_string(r));
    }
    for (const Preemption& p : plan_.preemptions) preempted(p.seq);
    for (const Adoption& a : plan_.adoptions) {
      if (has_room())
        add(a.seq, "adopt", fmt::format("{} finds {} tokens in the cache", raw(a.seq), a.tokens));
    }
    admitted();
    copied();
    for (const Promise& p : plan_.promises) promised(p);
    if (plan_.borrow_cells > 0 && has_room()) {
      add(SeqId{}, "borrow", fmt::format("asks peers for {}", count_of(plan_.borrow_cells, "cell")));
    }
    if (plan_.return_cells > 0 && has_room()) {
      add(SeqId{}, "return", fmt::format("gives {} back to peers", count_of(plan_.return_cells, "cell")));
    }
    unsaid = unsaid_;
    return std::move(notes_);
  }

 private:
  // A note for which there is none is only counted.
  bool has_room() {
    if (notes_.size() < most_) return true;
    ++unsaid_;
    return false;
  }

  void add(SeqId seq, std::string name, std::string words) {
    notes_.push_back({view_.now, raw(view_.next_step), raw(seq), std::move(name), std::move(words)});
  }

  // Whether the policy itself has said why, by a cause whose name begins so.
  bool explained(SeqId seq, std::string_view name_of_cause) const {
    return std::any_of(plan_.reasons.begin(), plan_.reasons.end(), [&](const Reason& r) {
      return r.seq == seq && std::string_view(name(r.cause)).starts_with(name_of_cause);
    });
  }

  // What becomes of its cells is in the plan's copy changes.
  void preempted(SeqId id) {
    if (!has_room()) return;
    const SeqView* s = running_.find(id);
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

  void admitted() {
    if (view_.waiting.empty()) return;
    std::set<SeqId> seen;
    for (const Rows& rows : plan_.rows) {
      if (rows.kind == RowKind::kRestore || running_.find(rows.seq)) continue;
      const SeqView* s = waiting_.find(rows.seq);
      if (!s || !seen.insert(s->id).second) continue;
      if (explained(s->id, "admit") || explained(s->id, "chunk") || !has_room()) continue;
      add(s->id, "admit",
          fmt::format("admitted {}: {} of {} tokens in its first step", raw(s->id), rows.tokens.size(),
                      s->known_tokens));
    }
  }

  void copied() {
    // By sequence, verb, form, tier and trigger: cells at the most.
    std::map<std::tuple<uint64_t, Verb, Form, Tier, Trigger>, uint64_t> cells;
    for (const CopyChange& c : plan_.copies) {
      if (c.verb == Verb::kStage || find_preemption(c.seq)) continue;
      const SeqView* s = running_.find(c.seq);
      if (!s) s = waiting_.find(c.seq);
      const uint64_t named =
          c.verb == Verb::kDropAll
              ? (s ? s->held(c.form, c.tier) : 0)
              : uint64_t{c.blocks(view_.geometry.block_tokens, /*tail=*/true).size()} * c.layers.count();
      cells[{raw(c.seq), c.verb, c.form, c.tier, c.trigger}] += named;
    }
    for (const auto& [key, count] : cells) {
      if (!has_room()) continue;
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
    if (!has_room()) return;
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
  const size_t most_;
  ById running_, waiting_;
  std::vector<MapNote> notes_;
  uint64_t unsaid_ = 0;
};

}  // namespace

std::vector<MapNote> plan_words(const View& view, const StepPlan& plan, size_t most, uint64_t& unsaid) {
  return Words(view, plan, most).take(unsaid);
}

}  // namespace kvasir
