// Map, builder, checker and committer together at random, over real bytes: sequences run, are preempted,
// copied out and brought back, streamed, shared and removed, while transfers end in any order or fail.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "base/random.h"
#include "cache/byte_world.h"
#include "cache/commit/committer.h"
#include "cache/event_reader.h"
#include "plan/plan_builder.h"
#include "plan/plan_checker.h"

namespace kvasir::test {

constexpr uint32_t kBlock = 16;

struct StressOptions {
  uint32_t layers = 4;
  uint32_t layers_per_group = 2;
  uint32_t device_blocks = 12;
  uint32_t host_blocks = 40;
  uint32_t disk_blocks = 0;
  uint32_t ring_blocks = 14;
  bool x = false;      // cells can be held as X
  double drops = 0;    // of chances to, how often cells are dropped
  double corrupt = 0;  // of transfers that read the disk
  size_t depth = 1;
  double failures = 0;    // of transfers
  double impatience = 0;  // of waits
};

struct ModelSeq {
  std::vector<Token> stream;    // prompt, and all that it will ever sample
  std::vector<uint64_t> slots;  // of each position: a hash of the tokens up to it
  uint32_t prompt = 0;
  bool runs = false;
  uint32_t drops = 0;
  uint32_t deferrals = 0;
  uint32_t samples_in_flight = 0;
};

struct Part {
  uint64_t seq = 0;
  uint32_t drops = 0;
  bool samples = false;
};

struct PendingStep {
  Step step;
  std::vector<Part> parts;
  std::set<SeqId> deferred;  // follow on rows that were deferred
};

class Stress {
 public:
  Stress(uint64_t seed, const StressOptions& o)
      : o_(o),
        random_(seed),
        cache_(cache_options(o)),
        world_(cache_options(o), seed),
        committer_(cache_, &world_),
        reader_(cache_) {
    world_.failures = o.failures;
    world_.impatience = o.impatience;
    world_.corrupt = o.corrupt;
  }

  void run(int operations) {
    for (int i = 0; i < operations; ++i) {
      operate();
      ASSERT_EQ(cache_.check_integrity().message(), "") << "operation " << i;
      // A reader that begins late knows as much as one that has read everything.
      reader_.read(i % 97 == 0 ? cache_.take_all_events() : cache_.take_events());
      if (i % 16 == 0) {
        ASSERT_EQ(reader_.known(), reader_.findable()) << "operation " << i;
      }
      ASSERT_FALSE(testing::Test::HasFailure()) << "operation " << i;
      void_cut_back();
    }
    while (!steps_.empty()) end_step(/*ok=*/true);
    while (!seqs_.empty()) remove(seqs_.begin()->first);
    committer_.drain_transfers();
    while (world_.progress()) {
    }
    committer_.drain_transfers();
    ASSERT_EQ(cache_.check_integrity().message(), "");
    reader_.read(cache_.take_events());
    EXPECT_EQ(reader_.known(), reader_.findable());
    seen_.told = std::min(reader_.stored(), reader_.removed());
    EXPECT_EQ(cache_.transfers_in_flight(), 0u);
    for (Tier tier : kAllTiers) {
      EXPECT_EQ(cache_.map().used_bytes(tier), 0u) << name(tier);
      const FrameBudget budget = cache_.budget(tier);
      EXPECT_EQ(budget.spare_slabs, budget.slabs) << name(tier);
      EXPECT_EQ(budget.promised, (std::array<uint32_t, kForms>{}));
      EXPECT_EQ(budget.coming, (std::array<uint32_t, kForms>{}));
    }
  }

  // What happened, so that a test can say that it saw it.
  struct Seen {
    uint64_t rows = 0, staged = 0, written_through = 0, swapped = 0, brought_back = 0, deferred = 0,
             adopted = 0, saved = 0, projected = 0, again = 0, told = 0;
  };
  const Seen& seen() const { return seen_; }

 private:
  static CacheOptions cache_options(const StressOptions& o) {
    CacheOptions c;
    c.geometry = {kBlock, o.layers, o.layers_per_group, 8};
    c.device_bytes = c.geometry.kv_block_bytes() * o.device_blocks;
    c.host_bytes = c.geometry.kv_block_bytes() * o.host_blocks;
    if (o.x) c.geometry.x_bytes_per_token_layer = 8;
    c.disk_bytes = c.geometry.cell_stride(Form::kKv, Tier::kDisk) * c.geometry.groups() * o.disk_blocks;
    c.tells_events = true;
    c.stage_bytes = c.geometry.largest_piece_bytes() * o.ring_blocks;
    return c;
  }
  bool chance(double p) { return random_.unit() < p; }
  uint32_t under(uint64_t n) { return static_cast<uint32_t>(random_.below(n)); }

  void operate() {
    const double r = random_.unit();
    if (seqs_.empty() || (r < 0.1 && seqs_.size() < 10)) return add();
    if (r < 0.5 && steps_.size() < o_.depth) return submit_step();
    if (r < 0.75 && !steps_.empty()) return end_step(chance(0.98));
    if (r < 0.755)
      return remove(std::next(seqs_.begin(), static_cast<ptrdiff_t>(under(seqs_.size())))->first);
    if (r < 0.85) {
      committer_.drain_transfers();
      return;
    }
    if (chance(0.2)) {
      const uint32_t before = cache_.transfers_in_flight();
      committer_.save_idle();
      seen_.saved += cache_.transfers_in_flight() - before;
    }
    for (uint32_t n = under(6); n > 0; --n) world_.progress();
  }

  // As the engine does: what the steps in flight sample for them counts for nothing.
  void void_cut_back() {
    for (SeqId id : cache_.take_cut_back()) {
      for (PendingStep& step : steps_) {
        for (Part& part : step.parts) {
          if (part.seq != raw(id) || !part.samples) continue;
          part.samples = false;
          if (auto it = seqs_.find(part.seq); it != seqs_.end()) --it->second.samples_in_flight;
        }
      }
    }
  }

  void add() {
    ModelSeq seq;
    const uint64_t family = under(3);
    const uint32_t shared = under(70), rest = under(60) + 1, output = under(chance(0.3) ? 150 : 30) + 1;
    for (uint32_t i = 0; i < shared; ++i)
      seq.stream.push_back(static_cast<Token>(random_bits(family, 0, i) % 5));
    for (uint32_t i = 0; i < rest; ++i) seq.stream.push_back(static_cast<Token>(under(2)));
    seq.prompt = static_cast<uint32_t>(seq.stream.size());
    for (uint32_t i = 0; i < output; ++i) seq.stream.push_back(static_cast<Token>(under(5)));
    uint64_t hash = 0;
    for (Token t : seq.stream) seq.slots.push_back(hash = random_bits(hash, 1, static_cast<uint64_t>(t)));
    const CellCapacity capacity = {cache_.geometry().groups(), cache_.options().cells(Tier::kDevice),
                                   cache_.options().cells(cache_.options().slower_tier()), o_.ring_blocks};
    if (!KvPlacement::of(cache_.geometry().blocks_for(static_cast<uint32_t>(seq.stream.size())), capacity)
             .fits)
      return;
    cache_.add_sequence(SeqId{next_}, {seq.stream.begin(), seq.stream.begin() + seq.prompt}, "");
    reader_.note_prompt(seq.stream);
    seqs_.emplace(next_++, std::move(seq));
  }

  void remove(uint64_t id) {
    cache_.remove_sequence(SeqId{id});
    seqs_.erase(id);
  }

  // ---------------------------------------------------------------- the view, as the engine has it

  SeqView view_of(uint64_t id, const ModelSeq& seq) const {
    SeqView v;
    static_cast<SequenceCells&>(v) = cache_.summary(SeqId{id});
    v.id = SeqId{id};
    v.arrival = static_cast<Nanos>(id);
    v.prompt_tokens = seq.prompt;
    v.known_tokens = static_cast<uint32_t>(cache_.tokens(SeqId{id}).size()) + seq.samples_in_flight;
    v.max_total_tokens = static_cast<uint32_t>(seq.stream.size());
    v.stalled = seq.deferrals > 0 && v.transfers > 0;
    return v;
  }

  View view() const {
    View v;
    v.geometry = cache_.geometry();
    v.next_step = StepId{next_step_};
    v.limits.max_num_seqs = 6;
    v.device = cache_.budget(Tier::kDevice);
    v.host = cache_.budget(Tier::kHost);
    v.disk = cache_.budget(Tier::kDisk);
    v.stage_blocks = o_.ring_blocks;
    v.transfers_in_flight = cache_.transfers_in_flight();
    v.steps_in_flight = static_cast<uint32_t>(steps_.size());
    for (const auto& [id, seq] : seqs_) {
      // One that knows its last token has nothing to run; the engine has it end.
      if (view_of(id, seq).known_tokens >= seq.stream.size()) continue;
      (seq.runs ? v.running : v.waiting).push_back(view_of(id, seq));
    }
    return v;
  }

  // ---------------------------------------------------------------- plans

  LayerSet some_groups() {
    LayerSet set;
    for (uint32_t g = 0; g < cache_.geometry().groups(); ++g) {
      if (chance(0.5)) set.add(g);
    }
    return set;
  }

  void copy(PlanBuilder& b, const SeqView& s) {
    if (s.blocks == 0) return;
    const uint32_t begin = under(s.blocks);
    const Interval tokens = {begin * kBlock, (begin + 1 + under(s.blocks - begin)) * kBlock};
    const LayerSet layers = some_groups();
    if (layers.empty() || tokens.end > s.ready_tokens) return;
    if (chance(o_.drops)) {
      const Place from = some_place();
      return b.drop(s, tokens, layers, from.tier, from.form);
    }
    const Place to = some_place(), from = some_place();
    if (b.add_copies(s, tokens, layers, to.tier, chance(0.5) ? Trigger::kNow : Trigger::kBackground,
                     to.form) &&
        chance(0.6)) {
      b.release(s, tokens, layers, from.tier, from.form);
    }
  }
  Place some_place() {
    for (;;) {
      const Place p = place_at(under(kPlaces));
      if (chance(0.5) && p.form != Form::kKv) continue;
      if (cache_.options().tier_bytes(p.tier) > 0 && cache_.geometry().has(p.form)) return p;
    }
  }

  void run(PlanBuilder& b, const SeqView& s) {
    if (s.tokens_to_compute() == 0 && !b.has_rows(s.id) && s.blocks > 0) return;
    RowOptions keep;
    if (o_.ring_blocks > 0 && chance(0.15)) {
      keep.kv = some_groups();
      if (o_.host_blocks + o_.disk_blocks == 0) keep.slower = LayerSet();
    }
    if (o_.x && chance(0.5)) keep.x = some_groups();
    if (keep.kv && chance(o_.drops)) keep.slower = some_groups() - *keep.kv;
    if (keep.slower && o_.host_blocks + o_.disk_blocks == 0) keep.slower = LayerSet();
    if (chance(0.5)) {
      keep.restore.kv = some_groups();
      if (o_.x) keep.restore.x = some_groups();
    }
    if (s.decoding()) {
      (void)b.decode(s, keep);
    } else {
      (void)b.prefill(s, under(60) + 1, keep);
    }
  }

  StepPlan make_plan(const View& v) {
    PlanBuilder b(v);
    for (const SeqView& s : v.running) {
      if (chance(0.05)) {
        if (chance(0.3)) {
          b.preempt_and_drop(s);
        } else if (chance(0.4)) {
          b.preempt_and_keep(s);
        } else if (o_.x && s.blocks > 0 && chance(0.3)) {
          b.preempt_and_keep_x(s);
        } else if (o_.host_blocks + o_.disk_blocks > 0 && b.preempt_and_offload(s)) {
          ++seen_.swapped;
        }
        continue;
      }
      if (chance(0.1)) copy(b, s);
      if (chance(0.8)) run(b, s);
    }
    for (const SeqView& s : v.waiting) {
      if (chance(0.4)) continue;
      if (s.blocks > 0 && chance(0.05)) {
        b.drop_waiting(s);
      } else if (s.blocks > 0 && chance(0.1)) {
        copy(b, s);
      } else if (!s.tail_busy && !s.stalled && b.admit(s)) {
        run(b, s);
      }
    }
    return b.take();
  }

  void submit_step() {
    committer_.drain_transfers();
    void_cut_back();
    const View v = view();
    const StepPlan plan = make_plan(v);
    const Status status = check_plan(v, plan);
    const bool nothing = plan.rows.empty() && plan.preemptions.empty() && plan.copies.empty();
    ASSERT_TRUE(status.ok() || nothing) << status.message() << "\n" << to_string(plan);
    PendingStep pending;
    pending.step = committer_.apply(plan, StepId{next_step_});
    apply_states(plan, pending);
    check_tokens(pending.step);
    seen_.staged += pending.step.staged.empty() ? 0 : 1;
    if (pending.step.slices.empty()) return;
    ++next_step_;
    world_.submitted(pending.step);
    steps_.push_back(std::move(pending));
  }

  void apply_states(const StepPlan& plan, PendingStep& pending) {
    for (const Preemption& p : plan.preemptions) seqs_.at(raw(p.seq)).runs = false;
    std::set<SeqId> dropped;
    for (const CopyChange& c : plan.copies) {
      if (c.verb == Verb::kDropAll && dropped.insert(c.seq).second) {
        ++seqs_.at(raw(c.seq)).drops;
      }
      seen_.written_through += c.trigger == Trigger::kAfterLayerWrites ? 1 : 0;
      seen_.brought_back += c.verb == Verb::kAdd && c.trigger == Trigger::kBeforeLayer ? 1 : 0;
    }
    seen_.adopted += plan.adoptions.size();
    seen_.projected += pending.step.projections.size();
    for (const Rows& rows : plan.rows) {
      ModelSeq& seq = seqs_.at(raw(rows.seq));
      seq.runs = true;
      seen_.again += rows.tokens.end < cache_.ready_tokens(rows.seq) ? 1 : 0;
      seq.samples_in_flight += rows.samples ? 1 : 0;
      pending.parts.push_back({raw(rows.seq), seq.drops, rows.samples});
      seen_.rows += rows.tokens.size();
    }
  }

  void check_tokens(const Step& step) const {
    for (const StepSlice& slice : step.slices) {
      const ModelSeq& seq = seqs_.at(raw(slice.seq));
      for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
        const Token token = step.token_ids[slice.first_token + p - slice.tokens.begin];
        const bool by_reference = slice.last_token_by_reference && p + 1 == slice.tokens.end;
        ASSERT_EQ(token, by_reference ? -1 : seq.stream[p]);
      }
    }
  }

  // ---------------------------------------------------------------- the end of a step

  void end_step(bool ok) {
    PendingStep pending = std::move(steps_.front());
    steps_.pop_front();
    const auto slot_of = [&](SeqId id, uint32_t position, uint32_t layer, uint32_t plane) {
      const auto it = seqs_.find(raw(id));
      return it == seqs_.end() ? 0 : it->second.slots[position] ^ (2 * layer + plane + 1);
    };
    ByteWorld::Outcome out = world_.execute(pending.step, slot_of, pending.deferred);
    if (!ok) out.result.status = error(ErrorCode::kUnavailable, "the step failed");
    for (SeqId id : out.result.deferred) {
      ++seen_.deferred;
      for (PendingStep& later : steps_) later.deferred.insert(id);
    }
    const std::vector<SeqId> void_rows = committer_.step_ended(out.result);
    for (const Part& part : pending.parts) {
      auto it = seqs_.find(part.seq);
      if (it == seqs_.end()) continue;
      ModelSeq& seq = it->second;
      seq.samples_in_flight -= part.samples ? 1 : 0;
      const SeqId id{part.seq};
      const bool counts = std::find(void_rows.begin(), void_rows.end(), id) == void_rows.end();
      if (!ok) {
        remove(part.seq);  // as the engine does
        continue;
      }
      if (!counts) {
        ++seq.deferrals;
        continue;
      }
      ASSERT_FALSE(out.misread.contains(id)) << "sequence " << part.seq << " in step " << raw(out.result.id);
      seq.deferrals = 0;
      if (!part.samples) continue;
      const size_t known = cache_.tokens(id).size();
      cache_.append_token(id, seq.stream[known]);
      if (known + 1 == seq.stream.size()) remove(part.seq);
    }
  }

  const StressOptions o_;
  Random random_;
  KvCache cache_;
  ByteWorld world_;
  Committer committer_;
  EventReader reader_;
  std::map<uint64_t, ModelSeq> seqs_;
  std::deque<PendingStep> steps_;
  uint64_t next_ = 1;
  uint64_t next_step_ = 1;
  Seen seen_;
};

}  // namespace kvasir::test
