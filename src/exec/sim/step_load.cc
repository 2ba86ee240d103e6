#include "exec/sim/step_load.h"

#include <algorithm>

namespace kvasir {

StepLoad load_of(const Step& step, uint32_t layers) {
  StepLoad out;
  for (size_t i = 0; i < step.slices.size(); ++i) {
    const StepSlice& s = step.slices[i];
    if (s.samples) out.sampled += 1;
    if (s.kind == RowKind::kDecode) {
      out.decode_rows += 1;
      out.decode_context += s.tokens.end;
      continue;
    }
    const uint32_t end = std::min(s.end_layer, layers);
    const double passed = end - s.first_layer;
    StepLoad::Chunk chunk{static_cast<double>(s.tokens.size()), static_cast<double>(s.tokens.begin)};
    chunk.passed = passed / layers;
    chunk.attended = (end < layers ? passed - 1 : passed) / layers;
    // Rows that go on from a history are of the kind, too: behind those that compute it again come those that
    // read it.
    chunk.again =
        s.kind == RowKind::kRecompute && i + 1 < step.slices.size() && step.slices[i + 1].seq == s.seq;
    out.chunks.push_back(chunk);
  }
  for (const KvProjection& p : step.projections) out.projected += p.tokens;
  return out;
}

StepLoad take_again(StepLoad& load) {
  StepLoad again;
  const auto rest = std::stable_partition(load.chunks.begin(), load.chunks.end(),
                                          [](const StepLoad::Chunk& c) { return !c.again; });
  again.chunks.assign(rest, load.chunks.end());
  load.chunks.erase(rest, load.chunks.end());
  return again;
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
