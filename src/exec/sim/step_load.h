// The work of a step, and the true time that it takes on a simulated device. Policies see neither: they have
// beliefs of their own (contract/cost_model.h).
#pragma once

#include <cstdint>
#include <vector>

#include "contract/step.h"

namespace kvasir {

// A step's work, on any device.
struct StepLoad {
  // Rows of a prefill, or rows that restore dropped cells, after a history of their sequence. `passed` is the
  // share of the layers that they pass, `attended` the share in which they attend: rows that stop before the
  // last layer only write K and V in theirs.
  struct Chunk {
    double rows = 0;
    double history = 0;  // tokens before the first row whose attention is computed here
    double passed = 1;
    double attended = 1;
    bool restores = false;  // dropped cells, which another slice then reads
    double remote = 0;      // as history, computed at peers: a mean over the layers

    // Pairs of a row and a position that it attends to here, in one layer.
    double pairs() const { return rows * history + rows * (rows + 1) / 2; }
  };
  std::vector<Chunk> chunks;
  double decode_rows = 0;
  double decode_context = 0;  // tokens to which those attend here, their own included
  double decode_remote = 0;   // tokens to which those attend at peers: a mean over the layers
  double sampled = 0;         // rows that pass the output layer
  double projected = 0;       // tokens times layers whose K and V are computed from X
};

// REQUIRES: layers > 0, and slices pass some of them
StepLoad load_of(const Step& step, uint32_t layers);
// The same if as much of each history were at peers in every layer as in this one.
StepLoad load_as_in(const Step& step, uint32_t layer, uint32_t layers);

// Moves the chunks that restore dropped cells out of `load`, and returns them.
StepLoad take_restores(StepLoad& load);

// Immutable; any thread may call it.
class StepTimes {
 public:
  virtual ~StepTimes() = default;
  // Without the time that the step waits for transfers or peers, which links and peers add.
  virtual double seconds(const StepLoad& load) const = 0;
  // The part of seconds() in which cards exchange data with each other.
  virtual double collective_seconds(const StepLoad& /*load*/) const { return 0; }
};

// The simplest model, a sum over rows and projections in microseconds: for tests.
struct LinearTimes final : StepTimes {
  double step_us = 200;             // of any step
  double prefill_token_us = 50;     // per row of a chunk, in all layers
  double decode_row_us = 20;        // per decoding row, in all layers
  double history_token_us = 0.01;   // per token of history that a row attends to, in all layers
  double projected_token_us = 0.1;  // per token and layer whose K and V are computed from X

  LinearTimes() = default;
  LinearTimes(double step, double prefill_token, double decode_row, double history_token,
              double projected_token)
      : step_us(step),
        prefill_token_us(prefill_token),
        decode_row_us(decode_row),
        history_token_us(history_token),
        projected_token_us(projected_token) {}

  double seconds(const StepLoad& load) const override;
};

}  // namespace kvasir
