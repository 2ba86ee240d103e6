#include "exec/sim/step_load.h"

#include <algorithm>
#include <span>

#include "ops/numerics.h"

namespace kvasir {
namespace {

// Tokens of these runs, by slice; empty if there are none.
std::vector<double> remote_tokens(const Step& step, std::span<const RemoteLeaves> runs) {
  std::vector<double> out;
  if (runs.empty()) return out;
  out.resize(step.slices.size());
  for (const RemoteLeaves& run : runs) {
    out[run.slice] += static_cast<double>(run.end_leaf - run.first_leaf) * ops::kLeafTokens;
  }
  return out;
}

// With the attention of `runs` at peers, which are those of `of_layers` layers.
StepLoad load_with(const Step& step, uint32_t layers, std::span<const RemoteLeaves> runs,
                   uint32_t of_layers) {
  StepLoad out;
  const std::vector<double> remote = remote_tokens(step, runs);
  for (size_t i = 0; i < step.slices.size(); ++i) {
    const StepSlice& s = step.slices[i];
    if (s.samples) out.sampled += 1;
    if (s.scores) out.sampled += s.tokens.size();
    if (s.kind == RowKind::kDecode) {
      out.decode_rows += 1;
      const double elsewhere = remote.empty() ? 0 : remote[i] / of_layers;
      out.decode_context += s.tokens.end - elsewhere;
      out.decode_remote += elsewhere;
      continue;
    }
    const uint32_t end = std::min(s.end_layer, layers);
    const double passed = end;
    StepLoad::Chunk chunk{static_cast<double>(s.tokens.size()), static_cast<double>(s.tokens.begin)};
    chunk.passed = passed / layers;
    chunk.attended = (end < layers ? passed - 1 : passed) / layers;
    if (!remote.empty() && chunk.attended > 0) {
      chunk.remote = remote[i] / std::max(1.0, chunk.attended * of_layers);
      chunk.history -= chunk.remote;
    }
    // The slice that reads the restored cells may have the same kind; it is the last of its sequence.
    chunk.restores =
        s.kind == RowKind::kRestore && i + 1 < step.slices.size() && step.slices[i + 1].seq == s.seq;
    out.chunks.push_back(chunk);
  }
  for (const KvProjection& p : step.projections) out.projected += p.tokens;
  return out;
}

}  // namespace

StepLoad load_of(const Step& step, uint32_t layers) {
  return load_with(step, layers, step.remote, layers);
}

StepLoad load_as_in(const Step& step, uint32_t layer, uint32_t layers) {
  return load_with(step, layers, step.remote_in(layer), 1);
}

StepLoad take_restores(StepLoad& load) {
  StepLoad restores;
  const auto rest = std::stable_partition(load.chunks.begin(), load.chunks.end(),
                                          [](const StepLoad::Chunk& c) { return !c.restores; });
  restores.chunks.assign(rest, load.chunks.end());
  load.chunks.erase(rest, load.chunks.end());
  return restores;
}

double LinearTimes::seconds(const StepLoad& load) const {
  double us = step_us + decode_row_us * load.decode_rows + history_token_us * load.decode_context +
              projected_token_us * load.projected;
  for (const StepLoad::Chunk& c : load.chunks) {
    us += prefill_token_us * c.rows * c.passed + history_token_us * c.pairs() * c.attended;
  }
  return us * 1e-6;
}

}  // namespace kvasir
