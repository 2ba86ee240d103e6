#include "apps/profile/step_machine.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/random.h"
#include "ops/cpu/isa.h"
#include "ops/x_layout.h"
#include "runtime/engine_options.h"

namespace kvasir {
namespace {

// Untouched memory would be the kernel's one page of zeros, which is always in the CPU's cache. This byte
// makes small finite numbers in every type of the KV cache.
constexpr int kFill = 0x3C;
constexpr uint32_t kMostTokens = 32'768;
// A round repeats a short step at most so often, and for about so many seconds.
constexpr int kMostRuns = 4;
constexpr double kRunsOfAround = 0.1;

uint64_t block_bytes(const CacheGeometry& g) {
  return round_up<uint64_t>(g.groups() * g.cell_bytes(Form::kKv) + g.layers * g.piece_bytes(Form::kX), 64);
}
// Room for projected K and V: one layer's planes of each block.
uint64_t ring_bytes(const CacheGeometry& g, uint32_t blocks) {
  return blocks * g.piece_bytes(Form::kKv);
}

}  // namespace

CacheGeometry with_x(CacheGeometry layout, const PackedModel& model, const Decoder::Options& decoder) {
  const int64_t x_bytes = ops::x_row_bytes(model.x_type(decoder.activation), model.spec().dim);
  return with_x(layout, static_cast<uint64_t>(x_bytes));
}

Result<std::unique_ptr<StepMachine>> StepMachine::make(const RuntimeOptions& options,
                                                       const PackedModel& model,
                                                       const CacheGeometry& geometry,
                                                       const Decoder::Options& decoder, uint64_t most_memory,
                                                       const MonotonicClock& clock) {
  const uint64_t memory = std::min(most_memory, available_memory() / 4);
  const uint64_t fit = memory / (block_bytes(geometry) + ring_bytes(geometry, 1));
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(fit, 1 + kMostTokens / geometry.block_tokens));
  if (blocks == 0) return error(ErrorCode::kExhausted, "there is no memory to run a single step in");
  KV_ASSIGN_OR_RETURN(Arena arena, Arena::map(blocks * block_bytes(geometry) + ring_bytes(geometry, blocks),
                                              "the profile's K and V"));
  return std::unique_ptr<StepMachine>(
      new StepMachine(options, model, geometry, decoder, std::move(arena), blocks, clock));
}

StepMachine::StepMachine(const RuntimeOptions& options, const PackedModel& model, CacheGeometry geometry,
                         const Decoder::Options& decoder, Arena memory, uint32_t blocks,
                         const MonotonicClock& clock)
    : geometry_(geometry),
      blocks_(blocks),
      memory_(std::move(memory)),
      vocab_(static_cast<uint64_t>(model.spec().vocab_size)),
      executor_(model, ops::kernels_for(ops::detect_isa()), geometry, decoder, memory_.data(),
                compute_threads(options), clock, cpu_shares(options).team) {
  std::memset(memory_.data(), kFill, memory_.size());
}

double StepMachine::run(ProfileCase& c) {
  Step step = make_step(c);
  c.shown.load = load_of(step, geometry_.layers);
  executor_.submit(std::move(step));
  const StepResult result = executor_.wait();
  KV_CHECK(result.status.ok(), "{}", result.status.message());
  return to_seconds(result.ended - result.started);
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
      table.push_back({at, at + geometry_.layer_plane_bytes()});
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
      const KvPlanes to = {k, k + geometry_.layer_plane_bytes()};
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

std::vector<ProfileCase> run_cases(StepMachine& machine, std::vector<ProfileCase> all,
                                   const MonotonicClock& clock, Nanos deadline) {
  const auto size = [](const ProfileCase& c) {
    const StepWork& w = c.shown.work;
    return w.prefill_rows + w.decode_rows + 1e-3 * (w.prefill_pairs + w.decode_context + w.projected_tokens);
  };
  std::stable_sort(all.begin(), all.end(),
                   [&](const ProfileCase& a, const ProfileCase& b) { return size(a) < size(b); });
  if (all.empty()) return all;
  const Nanos whole = deadline - clock.now();
  machine.run(all.front());  // wakes threads and weights
  // Each once. A fit to the smaller ones tells whether there is time for a larger one.
  std::vector<StepObservation> seen;
  CostModel so_far;
  std::vector<ProfileCase> kept;
  for (ProfileCase& c : all) {
    const Nanos expected = from_seconds(so_far.step_seconds(c.shown.work));
    if (seen.size() >= kStepTerms && (expected > whole / 10 || clock.now() + expected > deadline)) continue;
    c.shown.seconds.push_back(machine.run(c));
    seen.push_back({c.shown.work, c.shown.seconds.back()});
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
        c.shown.seconds.push_back(machine.run(c));
        any = true;
      }
    }
  }
  return kept;
}

}  // namespace kvasir
