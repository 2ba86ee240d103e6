#include "apps/profile/step_machine.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/random.h"
#include "base/units.h"

namespace kvasir {
namespace {

constexpr uint32_t kMostTokens = 32'768;
// A round repeats a short step at most so often, and for about so many seconds.
constexpr int kMostRuns = 4;
constexpr double kRunsOfAround = 0.1;

uint64_t block_bytes(const CacheGeometry& g) {
  return round_up<uint64_t>(g.groups() * g.cell_bytes(Form::kKv) + g.layers * g.piece_bytes(Form::kX), 64);
}
uint64_t most_blocks(const CacheGeometry& g) {
  return 1 + kMostTokens / g.block_tokens;
}
// Room for projected K and V: one layer's planes of each block.
uint64_t ring_bytes(const CacheGeometry& g, uint32_t blocks) {
  return blocks * g.piece_bytes(Form::kKv);
}

}  // namespace

uint64_t StepMachine::most_bytes(const CacheGeometry& geometry) {
  return most_blocks(geometry) * (block_bytes(geometry) + ring_bytes(geometry, 1));
}

Result<std::unique_ptr<StepMachine>> StepMachine::make(const Subject& subject, const MonotonicClock& clock) {
  const CacheGeometry& geometry = subject.engine.cache.geometry;
  const uint64_t fit =
      subject.device->device_tier().size() / (block_bytes(geometry) + ring_bytes(geometry, 1));
  const auto blocks = static_cast<uint32_t>(std::min(fit, most_blocks(geometry)));
  if (blocks == 0) return error(ErrorCode::kExhausted, "there is no memory to run a single step in");
  KV_ASSIGN_OR_RETURN(std::unique_ptr<Executor> executor,
                      subject.device->make_executor(subject.options, subject.engine, clock, /*link=*/nullptr,
                                                    /*peers=*/nullptr));
  return std::unique_ptr<StepMachine>(new StepMachine(subject, blocks, std::move(executor)));
}

StepMachine::StepMachine(const Subject& subject, uint32_t blocks, std::unique_ptr<Executor> executor)
    : geometry_(subject.engine.cache.geometry),
      blocks_(blocks),
      vocab_(static_cast<uint64_t>(subject.file->spec().vocab_size)),
      executor_(std::move(executor)) {}

Result<double> StepMachine::run(ProfileCase& c) {
  const int count = executor_->depth();
  for (int i = 0; i < count; ++i) {
    Step step = make_step(c);
    c.shown.load = load_of(step, geometry_.layers);
    executor_->submit(std::move(step));
  }
  StepResult last;
  Status status;
  for (int i = 0; i < count; ++i) {
    last = executor_->wait();
    if (status.ok()) status = last.status;
  }
  KV_RETURN_IF_ERROR(status);
  return to_seconds(last.ended - last.started);
}

Step StepMachine::make_step(const ProfileCase& c) {
  Step step;
  step.id = StepId{++steps_};
  step.groups = geometry_.groups();
  uint32_t block = 0;
  for (uint32_t i = 0; i < c.batch; ++i) {
    const uint32_t slice = add(step, i, {c.context - 1, c.context}, block, c.x_blocks);
    step.slices[slice].kind = RowKind::kDecode;
  }
  if (c.prefill_rows > 0) {
    const uint32_t slice = add(step, c.batch, {c.history, c.history + c.prefill_rows}, block, 0);
    step.slices[slice].samples = c.samples;
  }
  step.index_by_layer();
  return step;
}

// Adds a sequence's rows, with its K and V in the next blocks of the memory.
uint32_t StepMachine::add(Step& step, uint32_t seq, Interval tokens, uint32_t& block, uint32_t x_blocks) {
  const auto index = static_cast<uint32_t>(step.slices.size());
  StepSlice slice;
  slice.seq = SeqId{seq};
  slice.tokens = tokens;
  slice.samples = true;
  slice.sampling.temperature = 0;
  slice.first_token = step.row_count();
  slice.blocks = geometry_.blocks_for(tokens.end);
  KV_CHECK(block + slice.blocks <= blocks_, "{} blocks of {}", block + slice.blocks, blocks_);
  BlockTable table;
  for (uint32_t b = 0; b < slice.blocks; ++b) {
    for (uint32_t g = 0; g < geometry_.groups(); ++g) {
      const uint64_t at = block_at(block + b) + g * geometry_.cell_bytes(Form::kKv);
      table.push_back({at, at + geometry_.v_offset()});
    }
  }
  slice.table = std::make_shared<const BlockTable>(std::move(table));
  if (x_blocks > 0) project(step, slice, index, block, x_blocks);
  for (uint32_t p = tokens.begin; p < tokens.end; ++p) {
    step.token_ids.push_back(static_cast<Token>(random_bits(seq, steps_, p) % vocab_));
  }
  block += slice.blocks;
  step.slices.push_back(std::move(slice));
  return index;
}

void StepMachine::project(Step& step, StepSlice& slice, uint32_t index, uint32_t block, uint32_t x_blocks) {
  step.add_staged(slice, {0, x_blocks}, geometry_.layers);
  const uint64_t ring = blocks_ * block_bytes(geometry_);
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    for (uint32_t b = 0; b < x_blocks; ++b) {
      const uint64_t k = ring + (block + b) * geometry_.piece_bytes(Form::kKv);
      const KvPlanes to = {k, k + geometry_.v_offset()};
      step.staged_planes(slice, b, layer) = to;
      const uint64_t x = block_at(block + b) + geometry_.groups() * geometry_.cell_bytes(Form::kKv) +
                         layer * geometry_.piece_bytes(Form::kX);
      step.projections.push_back({layer, index, b * geometry_.block_tokens, geometry_.block_tokens, x, to});
    }
  }
}

uint64_t StepMachine::block_at(uint32_t block) const {
  return block * block_bytes(geometry_);
}

Result<std::vector<ProfileCase>> run_cases(StepMachine& machine, std::vector<ProfileCase> all,
                                           const MonotonicClock& clock, Nanos deadline) {
  const auto size = [](const ProfileCase& c) {
    const StepWork& w = c.shown.work;
    return w.prefill_rows + w.decode_rows + 1e-3 * (w.prefill_pairs + w.decode_context + w.projected_tokens);
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const ProfileCase& a, const ProfileCase& b) { return size(a) < size(b); });
  if (all.empty()) return all;
  const Nanos whole = deadline - clock.now();
  KV_RETURN_IF_ERROR(machine.run(all.front()).status());  // wakes threads and weights
  // Each once. A fit to the smaller ones tells whether there is time for a larger one.
  std::vector<StepObservation> seen;
  CostModel so_far;
  std::vector<ProfileCase> kept;
  for (ProfileCase& c : all) {
    const Nanos expected = from_seconds(so_far.step_seconds(c.shown.work));
    if (seen.size() >= kStepTerms && (expected > whole / 10 || clock.now() + expected > deadline)) continue;
    KV_ASSIGN_OR_RETURN(const double took, machine.run(c));
    c.shown.seconds.push_back(took);
    seen.push_back({c.shown.work, took});
    fit_steps(seen, so_far);
    kept.push_back(std::move(c));
  }
  for (bool any = true; any;) {
    any = false;
    for (ProfileCase& c : kept) {
      const double expected = c.shown.seconds.front();
      // A short step has more noise, and there is time to repeat it.
      for (int i = 0; i == 0 || (i < kMostRuns && i * expected < kRunsOfAround); ++i) {
        if (clock.now() + from_seconds(expected) > deadline) break;
        KV_ASSIGN_OR_RETURN(const double took, machine.run(c));
        c.shown.seconds.push_back(took);
        any = true;
      }
    }
  }
  return kept;
}

}  // namespace kvasir
