#include "cache/committer.h"

#include <algorithm>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {

Step Committer::apply(const StepPlan& plan, StepId id) {
  for (const Preemption& p : plan.preemptions) cache_.end_promise(p.seq);
  for (const CopyChange& c : plan.copies) {
    KV_CHECK(c.verb == Verb::kDrop && c.tier == Tier::kDevice && c.tokens.begin == 0, "seq={} verb={}",
             raw(c.seq), name(c.verb));
    cache_.drop_all(c.seq);
  }
  // Adopted blocks leave the idle list before anything is allocated, or they could be evicted first.
  for (const Adoption& a : plan.adoptions) cache_.adopt(a.seq, a.tokens);
  for (const Promise& p : plan.promises) cache_.promise(p.owner, p.blocks);

  Step step;
  step.id = id;
  step.groups = cache_.geometry().groups();
  step.slices.reserve(plan.rows.size());
  for (const Rows& rows : plan.rows) add_slice(rows, step);
  if (!step.slices.empty()) cache_.step_submitted(id, step.slices);
  return step;
}

void Committer::add_slice(const Rows& rows, Step& step) {
  cache_.extend(rows.seq, rows.tokens.end);
  StepSlice slice;
  slice.seq = rows.seq;
  slice.tokens = rows.tokens;
  if (mutant(Mutant::kResumeSkipsToken) && rows.tokens.size() > 1 && cache_.was_dropped(rows.seq)) {
    ++slice.tokens.begin;
  }
  slice.kind = rows.kind;
  slice.layers = rows.layers;
  slice.samples = rows.samples;
  slice.first_token = static_cast<uint32_t>(step.token_ids.size());
  slice.first_frames = static_cast<uint32_t>(step.kv_frames.size());
  slice.blocks = cache_.geometry().blocks_for(rows.tokens.end);

  const std::span<const Token> tokens = cache_.tokens(rows.seq);
  for (uint32_t p = slice.tokens.begin; p < rows.tokens.end; ++p) {
    // Only the newest token can be unknown still: a step in flight is sampling it.
    KV_CHECK(p < tokens.size() || p + 1 == rows.tokens.end, "seq={} position={} of {} tokens", raw(rows.seq),
             p, tokens.size());
    slice.last_token_by_reference = p >= tokens.size();
    step.token_ids.push_back(p < tokens.size() ? tokens[p] : -1);
  }
  cache_.append_frames(rows.seq, slice.blocks, step.kv_frames);
  step.slices.push_back(slice);
}

}  // namespace kvasir
