#include "engine/mutating_policy.h"

#include <algorithm>
#include <regex>
#include <utility>
#include <vector>

#include "plan/plan_checker.h"

namespace kvasir::test {
namespace {

// Random edits of a plan for a view.
class Editor {
 public:
  Editor(const View& view, Random& random) : view_(view), random_(random) {}

  void edit(StepPlan& plan) {
    for (uint64_t edits = 1 + random_.below(3); edits > 0; --edits) {
      switch (random_.below(9)) {
        case 0:
          edit_list(plan.failures, [&](Failure& f) { f.seq = any_seq(); });
          break;
        case 1:
          edit_list(plan.preemptions, [&](Preemption& p) { p.seq = any_seq(); });
          break;
        case 2:
          edit_list(plan.adoptions, [&](Adoption& a) { edit(a); });
          break;
        case 3:
        case 4:
        case 5:
          edit_list(plan.copies, [&](CopyChange& c) { edit(c); });
          break;
        case 6:
          edit_list(plan.promises, [&](Promise& p) { edit(p); });
          break;
        default:
          edit_list(plan.rows, [&](Rows& r) { edit(r); });
          break;
      }
    }
  }

 private:
  bool once_in(uint64_t n) { return random_.below(n) == 0; }

  const SeqView* any() {
    const size_t all = view_.running.size() + view_.waiting.size();
    if (all == 0) return nullptr;
    const size_t i = random_.below(all);
    return i < view_.running.size() ? &view_.running[i] : &view_.waiting[i - view_.running.size()];
  }
  SeqId any_seq() {
    const SeqView* s = once_in(20) ? nullptr : any();
    return s ? s->id : SeqId{random_.below(1000)};
  }
  const SeqView* find(SeqId id) const {
    for (const auto* list : {&view_.running, &view_.waiting}) {
      for (const SeqView& s : *list) {
        if (s.id == id) return &s;
      }
    }
    return nullptr;
  }
  template <typename Enum>
  Enum any_of(uint64_t count) {
    return static_cast<Enum>(random_.below(count));
  }
  LayerSet any_layers() {
    LayerSet set;
    const uint32_t groups = view_.geometry.groups();
    if (once_in(2)) return LayerSet::all(groups);
    for (uint32_t g = 0; g < groups; ++g) {
      if (once_in(2)) set.add(g);
    }
    if (once_in(20)) set.add(groups);
    return set;
  }
  // A length of the sequence that means something, or one beside it.
  uint32_t any_tokens(SeqId id) {
    const SeqView* s = find(id);
    if (!s || once_in(10)) return static_cast<uint32_t>(random_.below(500));
    const uint32_t b = view_.geometry.block_tokens;
    switch (random_.below(6)) {
      case 0:
        return 0;
      case 1:
        return s->ready_tokens;
      case 2:
        return s->known_tokens;
      case 3:
        return s->ready_tokens / b * b;
      case 4:
        return s->cached_tokens;
      default:
        return static_cast<uint32_t>(random_.below(s->known_tokens / b + 2)) * b;
    }
  }

  // Removes an entry, repeats one, puts it elsewhere, adds a new one, or changes one.
  template <typename Entry, typename F>
  void edit_list(std::vector<Entry>& list, const F& change) {
    if (list.empty() || once_in(6)) {
      list.emplace_back();
      if constexpr (std::is_same_v<Entry, Failure>) list.back().reason = once_in(20) ? "" : "told to fail";
      change(list.back());
      for (int i = 0; i < 6; ++i) change(list.back());
      return;
    }
    const size_t i = random_.below(list.size());
    switch (random_.below(5)) {
      case 0:
        list.erase(list.begin() + static_cast<ptrdiff_t>(i));
        break;
      case 1:
        list.push_back(list[i]);
        break;
      case 2:
        std::swap(list[i], list[random_.below(list.size())]);
        break;
      default:
        change(list[i]);
    }
  }

  void edit(Adoption& a) {
    if (once_in(2)) a.seq = any_seq();
    a.tokens = any_tokens(a.seq);
  }
  void edit(CopyChange& c) {
    switch (random_.below(7)) {
      case 0:
        c.verb = any_of<Verb>(4);
        if (c.verb == Verb::kDropAll) {
          c.tokens = {};
          c.layers = {};
          c.trigger = Trigger::kNow;
        }
        break;
      case 1:
        c.seq = any_seq();
        break;
      case 2:
        c.tokens.begin = any_tokens(c.seq);
        break;
      case 3:
        c.tokens.end = any_tokens(c.seq);
        break;
      case 4:
        c.layers = any_layers();
        break;
      case 5:
        c.form = any_of<Form>(kForms);
        c.tier = any_of<Tier>(kTiers);
        break;
      default:
        c.trigger = any_of<Trigger>(5);
    }
  }
  void edit(Promise& p) {
    switch (random_.below(5)) {
      case 0:
        p.owner = any_seq();
        break;
      case 1:
        p.cells = static_cast<uint32_t>(random_.below(60));
        break;
      case 2:
        p.tier = any_of<Tier>(kTiers);
        break;
      case 3:
        p.kind = any_of<Promise::Kind>(5);
        break;
      default:
        p.from = any_seq();
        p.due_tokens = any_tokens(p.from) + static_cast<uint32_t>(random_.below(8));
    }
  }
  void edit(Rows& r) {
    switch (random_.below(8)) {
      case 0:
        r.seq = any_seq();
        break;
      case 1:
        r.tokens.begin = any_tokens(r.seq);
        break;
      case 2:
        r.tokens.end = any_tokens(r.seq);
        break;
      case 3:
        r.layers = any_layers();
        break;
      case 4:
        r.kind = any_of<RowKind>(4);
        break;
      case 5:
        r.writes.kv = any_layers();
        break;
      case 6:
        r.writes.x = any_layers();
        break;
      default:
        r.samples = !r.samples;
    }
  }

  const View& view_;
  Random& random_;
};

// The message with each number as "0": what the rule that it states depends on.
std::string without_numbers(const std::string& message) {
  std::string out;
  for (const char c : message) {
    const bool digit = c >= '0' && c <= '9';
    if (!digit) {
      out.push_back(c);
    } else if (out.empty() || out.back() != '0') {
      out.push_back('0');
    }
  }
  return out;
}

}  // namespace

const std::map<std::string, std::string>& rules_of_plans() {
  static const std::map<std::string, std::string> rules = {
      {"a failure names a sequence and a reason",
       "fails sequence \\d+(, which is not there| without a reason)"},
      {"only running sequences are preempted", "preempts sequence \\d+, which does not run"},
      {"a waiting sequence that holds nothing adopts all that is cached",
       "sequence \\d+ adopts( but does not wait| beside cells it holds| \\d+ (tokens, \\d+ are cached|of "
       "\\d+ "
       "cached tokens))"},
      {"copies change of a sequence that is there", "changes copies of sequence \\d+, which is not there"},
      {"copies change on tiers and in forms that there are", "there is no such memory"},
      {"copies change in layer groups that there are", "of \\d+ layer groups, there are \\d+"},
      {"copies change by blocks", "of \\[\\d+, \\d+\\): a block has \\d+ tokens"},
      {"only what a stopped sequence holds is dropped at once",
       "drops cells of sequence \\d+, which (has none|goes on running)|drops all, but only some"},
      {"drops are of whole blocks", "drops \\[\\d+, \\d+\\) of \\d+, not whole blocks"},
      {"a trigger suits its verb", "a drop (before_layer|after_layer_writes|background)|adds when ready"},
      {"rows wait for K and V on the device alone", "rows wait for a copy of \\w+ on \\w+"},
      {"stages are of the whole history, to the device, before the layer",
       "stages on \\w+ \\(\\w+\\)|stages \\[\\d+, \\d+\\) of a history of \\d+"},
      {"rows write through K and V to the slower tier", "writes \\w+ through to \\w+"},
      {"copies are of a history that is there",
       "copies cells of sequence \\d+, which has none|copies \\[\\d+, \\d+\\) of a history of \\d+"},
      {"promises are to sequences that are there, of what is promised",
       "promises (no )?cells to sequence \\d+|promises sequence \\d+ (\\d+ cells of a "
       "reserve|what "
       "\\d+ releases)"},
      {"loans are of what the host was promised, until it is longer",
       "lends sequence \\d+ cells of sequence|lends \\d+ cells of the \\d+ promised|lends cells of sequence "
       "\\d+ "
       "until"},
      {"the parties to a promise run", "a promise of \\d+ cells to sequence \\d+.*, and not all of them run"},
      {"a loan that is due is not kept by a running sequence", "keeps \\d+ cells of sequence \\d+, due at"},
      {"rows are of sequences that are there and run",
       "has rows of sequence \\d+, which is not there|preempts "
       "sequence \\d+ and runs it|drops cells of sequence \\d+ "
       "and runs it"},
      {"rows are of known tokens", "rows \\[\\d+, \\d+\\) of \\d+ known tokens"},
      {"rows keep what there is room for", "rows keep (layer groups that there are not|a form for which)"},
      {"rows restore whole blocks of the history, once, from the first layer group on, before others",
       "recomputes \\[\\d+, \\d+\\) of \\d+, not whole blocks|recomputes (behind|\\d+ layer "
       "groups|twice)|keeps layer groups that are not recomputed"},
      {"what is restored is read", "recomputes what no row reads"},
      {"rows go on from the end of the history, in one part",
       "rows in two parts|rows begin at \\d+, the history"},
      {"rows pass all layers", "rows pass all layers"},
      {"rows sample the last known token", "samples at \\d+, but \\d+ tokens are known"},
      {"rows are of the kind that their tokens are",
       "decodes \\d+ tokens|at \\d+, its prompt has \\d+ tokens"},
      {"what rows do not keep goes to the slower tier", "of what its rows write, \\d+ layer groups go to a"},
      {"the history of rows is covered",
       "are neither on the device nor staged|is dropped, and not recomputed"},
      {"the block that rows write in is on the device, and not being copied",
       "rows go on in a block that is not on the device|rows write into a block that is being copied"},
      {"cells suffice", "takes \\d+ cells of \\w+ more than are free"},
      {"activations have room", "has \\d+ rows, there is memory for the activations of"},
      {"the stage ring has room", "stages \\d+ blocks of a layer, the ring has room for"},
      {"not too many sequences run", "\\d+ sequences would run, the limit is"},
      {"a plan moves the work forward", "but nothing runs and nothing fails"},
  };
  return rules;
}

void MutatingPolicy::count_refusal(const std::string& message) {
  const auto [known, is_new] = rule_of_.try_emplace(without_numbers(message));
  if (is_new) {
    for (const auto& [rule, text] : rules_of_plans()) {
      if (!std::regex_search(known->first, std::regex(text))) continue;
      known->second = rule;
      break;
    }
  }
  if (known->second.empty()) {
    counts_.unknown_rule = message;
  } else {
    ++counts_.refused[known->second];
  }
}

StepPlan MutatingPolicy::plan(const View& view) {
  StepPlan good = policy_->plan(view);
  StepPlan chosen = good;
  for (uint32_t i = 0; i < tries_; ++i) {
    StepPlan edited = good;
    Editor(view, random_).edit(edited);
    if (edited == good) continue;
    ++counts_.tried;
    const Status status = check_plan(view, edited);
    if (!status.ok()) {
      count_refusal(status.message());
      continue;
    }
    ++counts_.accepted;
    if (random_.unit() < share_) chosen = std::move(edited);
  }
  if (chosen != good) ++counts_.carried_out;
  return chosen;
}

}  // namespace kvasir::test
