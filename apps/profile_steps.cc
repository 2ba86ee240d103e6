// Steps made by hand, over K, V and X that hold some bytes or other: what a step takes does not depend on
// them.
#include <algorithm>
#include <cstring>
#include <memory>
#include <utility>

#include "apps/profile_machine.h"
#include "apps/runtime_parts.h"
#include "apps/tier_sizes.h"
#include "base/random.h"
#include "base/units.h"
#include "exec/cpu/cpu_executor.h"
#include "ops/cpu/isa.h"
#include "ops/x_layout.h"

namespace kvasir {
namespace {

constexpr uint64_t kMostMemory = 512 * kMiB;
// A piece of zeros would be one page of the kernel's, and always in the cache. These bytes are small finite
// numbers in every type of the cache.
constexpr int kFill = 0x3C;
constexpr uint32_t kMixedContext = 256;
// A step runs so often in each round: together for so many seconds.
constexpr int kMostRuns = 4;
constexpr double kRunsOfAround = 0.1;

struct Case {
  ProfiledStep shown;
  uint32_t prefill_rows = 0;
  uint32_t history = 0;  // of the prefill
  uint32_t batch = 0;
  uint32_t context = 0;   // of each decode, its own token included
  uint32_t x_blocks = 0;  // of each decode's history, held as X
};

class StepMachine {
 public:
  StepMachine(const RuntimeOptions& options, const PackedModel& model, CacheGeometry geometry,
              const Decoder::Options& decoder, Arena memory, uint32_t blocks, const MonotonicClock& clock)
      : geometry_(geometry),
        blocks_(blocks),
        memory_(std::move(memory)),
        vocab_(static_cast<uint64_t>(model.config().vocab_size)),
        executor_(model, ops::kernels_for(ops::detect_isa()), geometry, decoder, memory_.data(),
                  compute_threads(options), clock, cpu_shares(options).team) {
    std::memset(memory_.data(), kFill, memory_.size());
  }

  static uint64_t block_bytes(const CacheGeometry& g) {
    return round_up<uint64_t>(g.groups() * g.cell_bytes(Form::kKv) + g.layers * g.piece_bytes(Form::kX), 64);
  }
  // What projections are made into: a layer's planes of each block.
  static uint64_t ring_bytes(const CacheGeometry& g, uint32_t blocks) {
    return blocks * g.piece_bytes(Form::kKv);
  }

  double run(const Case& c) {
    executor_.submit(make(c));
    const StepResult result = executor_.wait();
    KV_CHECK(result.status.ok(), "{}", result.status.message());
    return to_seconds(result.ended - result.started);
  }

 private:
  Step make(const Case& c) {
    Step step;
    step.id = StepId{++steps_};
    step.groups = geometry_.groups();
    uint32_t block = 0;
    for (uint32_t i = 0; i < c.batch; ++i) {
      const uint32_t slice = add(step, i, {c.context - 1, c.context}, block, c.x_blocks);
      step.slices[slice].kind = RowKind::kDecode;
    }
    if (c.prefill_rows > 0) add(step, c.batch, {c.history, c.history + c.prefill_rows}, block, 0);
    std::stable_sort(step.projections.begin(), step.projections.end(),
                     [](const KvProjection& a, const KvProjection& b) { return a.layer < b.layer; });
    return step;
  }

  // A sequence's rows, in the next blocks of the memory.
  uint32_t add(Step& step, uint32_t seq, Interval tokens, uint32_t& block, uint32_t x_blocks) {
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

  void project(Step& step, StepSlice& slice, uint32_t index, uint32_t block, uint32_t x_blocks) {
    slice.first_staged = static_cast<uint32_t>(step.staged.size());
    step.staged.resize(step.staged.size() + geometry_.layers * slice.blocks);
    const uint64_t ring = blocks_ * block_bytes(geometry_);
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      for (uint32_t b = 0; b < x_blocks; ++b) {
        const uint64_t k = ring + (block + b) * geometry_.piece_bytes(Form::kKv);
        const KvPlanes to = {k, k + geometry_.layer_plane_bytes()};
        step.staged[slice.first_staged + layer * slice.blocks + b] = to;
        const uint64_t x = block_at(block + b) + geometry_.groups() * geometry_.cell_bytes(Form::kKv) +
                           layer * geometry_.piece_bytes(Form::kX);
        step.projections.push_back({layer, index, b * geometry_.block_tokens, geometry_.block_tokens, x, to});
      }
    }
  }

  uint64_t block_at(uint32_t block) const { return block * block_bytes(geometry_); }

  const CacheGeometry geometry_;
  const uint32_t blocks_;
  Arena memory_;
  const uint64_t vocab_;
  CpuExecutor executor_;
  uint64_t steps_ = 0;
};

Case prefill(uint32_t rows, uint32_t history) {
  Case c;
  c.prefill_rows = rows;
  c.history = history;
  c.shown.what = fmt::format("prefill {} behind {}", rows, history);
  c.shown.work.add_prefill(history, rows);
  return c;
}

Case decode(uint32_t batch, uint32_t context, const CacheGeometry& g, bool from_x, uint32_t rows) {
  Case c;
  c.batch = batch;
  c.context = context;
  c.prefill_rows = rows;
  for (uint32_t i = 0; i < batch; ++i) c.shown.work.add_decode(context);
  if (rows > 0) c.shown.work.add_prefill(0, rows);
  // The block with the new token is KV.
  if (from_x) c.x_blocks = (context - 1) / g.block_tokens;
  c.shown.work.projected_tokens = static_cast<double>(batch) * c.x_blocks * g.block_tokens * g.layers;
  c.shown.what = fmt::format("decode {} x {}{}{}", batch, context, from_x ? ", from X" : "",
                             rows > 0 ? fmt::format(" + prefill {}", rows) : "");
  return c;
}

// Those that fit, the smaller ones first.
std::vector<Case> cases(const RuntimeOptions& options, const CacheGeometry& g, uint32_t longest,
                        uint32_t blocks) {
  std::vector<Case> out;
  const uint32_t most_rows = batched_tokens(options);
  for (uint32_t rows : {16u, 64u, 128u, 256u, 512u}) {
    for (uint32_t history : {0u, 256u, 1024u, 4096u}) {
      if (rows <= most_rows) out.push_back(prefill(rows, history));
    }
  }
  for (uint32_t batch : {1u, 2u, 4u, 8u, 16u, 32u}) {
    for (uint32_t context : {16u, 256u, 1024u, 4096u}) {
      out.push_back(decode(batch, context, g, /*from_x=*/false, 0));
      if (g.has(Form::kX) && context >= 256 && batch % 8 == 1)
        out.push_back(decode(batch, context, g, true, 0));
      if (g.has(Form::kX) && context == 256 && batch == 8) out.push_back(decode(batch, context, g, true, 0));
    }
    if (batch == 4 || batch == 16) {
      for (uint32_t rows : {64u, 256u}) {
        if (rows <= most_rows) out.push_back(decode(batch, kMixedContext, g, /*from_x=*/false, rows));
      }
    }
  }
  std::erase_if(out, [&](const Case& c) {
    const uint32_t needed = c.batch * g.blocks_for(c.context) + g.blocks_for(c.history + c.prefill_rows);
    return c.batch > options.max_num_seqs || needed > blocks || c.context > longest ||
           c.history + c.prefill_rows > longest;
  });
  const auto size = [](const Case& c) {
    const StepWork& w = c.shown.work;
    return w.prefill_rows + w.decode_rows + 1e-3 * (w.prefill_pairs + w.decode_context + w.projected_tokens);
  };
  std::stable_sort(out.begin(), out.end(), [&](const Case& a, const Case& b) { return size(a) < size(b); });
  return out;
}

}  // namespace

double ProfiledStep::median() const {
  std::vector<double> sorted = seconds;
  std::sort(sorted.begin(), sorted.end());
  return sorted[(sorted.size() - 1) / 2];
}

Result<std::vector<ProfiledStep>> measure_steps(const RuntimeOptions& options, const PackedModel& model,
                                                const CacheGeometry& layout, const Decoder::Options& decoder,
                                                const MonotonicClock& clock, Nanos deadline) {
  CacheGeometry g = layout;
  const int64_t x_bytes = ops::x_row_bytes(model.x_type(decoder.activation), model.config().dim);
  // X that is no smaller than K and V is of no use to anyone.
  if (static_cast<uint64_t>(x_bytes) < 2 * g.kv_plane_bytes_per_token_layer) {
    g.x_bytes_per_token_layer = static_cast<uint64_t>(x_bytes);
  }
  const uint64_t memory = std::min(kMostMemory, available_memory() / 4);
  const auto longest = static_cast<uint32_t>(model.config().context_length);
  const uint64_t fit = memory / (StepMachine::block_bytes(g) + StepMachine::ring_bytes(g, 1));
  const auto blocks = static_cast<uint32_t>(std::min<uint64_t>(fit, 1 + 32'768 / g.block_tokens));
  KV_ASSIGN_OR_RETURN(Arena arena,
                      Arena::map(blocks * StepMachine::block_bytes(g) + StepMachine::ring_bytes(g, blocks),
                                 "the profile's K and V"));
  std::vector<Case> all = cases(options, g, longest, blocks);
  StepMachine machine(options, model, g, decoder, std::move(arena), blocks, clock);
  const Nanos whole = deadline - clock.now();
  if (all.empty()) return error(ErrorCode::kExhausted, "there is no memory to run a single step in");
  machine.run(all.front());  // wakes threads and weights
  // Each once, and what the smaller ones say of a larger one tells whether it is affordable.
  std::vector<StepObservation> seen;
  CostModel so_far;
  std::vector<Case> kept;
  for (Case& c : all) {
    const Nanos expected = from_seconds(so_far.step_seconds(c.shown.work));
    if (seen.size() >= kStepTerms && (expected > whole / 10 || clock.now() + expected > deadline)) continue;
    c.shown.seconds.push_back(machine.run(c));
    seen.push_back({c.shown.work, c.shown.seconds.back()});
    fit_steps(seen, so_far);
    kept.push_back(std::move(c));
  }
  for (bool any = true; any;) {
    any = false;
    for (Case& c : kept) {
      const double expected = c.shown.seconds.front();
      // Of a short step there is more noise to even out, and time for it.
      for (int i = 0; i == 0 || (i < kMostRuns && i * expected < kRunsOfAround); ++i) {
        if (clock.now() + from_seconds(expected) > deadline) break;
        c.shown.seconds.push_back(machine.run(c));
        any = true;
      }
    }
  }
  std::vector<ProfiledStep> out;
  for (Case& c : kept) out.push_back(std::move(c.shown));
  return out;
}

}  // namespace kvasir
