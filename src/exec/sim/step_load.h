// What a step asks of a device, and what says how long that truly takes: the simulator's own truth, which no
// policy sees.
#pragma once

#include <cstdint>
#include <vector>

#include "contract/step.h"

namespace kvasir {

// Of a step, whatever device runs it.
struct StepLoad {
  // Rows of prefill or recomputation, behind a history of their sequence. Where they pass some of the layers
  // only, `passed` is the share that they pass; `attended`, that in which they attend (in the last one that a
  // recomputation passes it only writes K and V).
  struct Chunk {
    double rows = 0;
    double history = 0;  // tokens before the first row that are attended to here
    double passed = 1;
    double attended = 1;
    bool again = false;  // dropped cells are computed again
    double remote = 0;   // tokens before the first row that are attended to at peers: a mean over the layers

    // Pairs of a row and a position that it attends to here, in one layer.
    double pairs() const { return rows * history + rows * (rows + 1) / 2; }
  };
  std::vector<Chunk> chunks;
  double decode_rows = 0;
  double decode_context = 0;  // tokens that those attend to here, their own included
  double decode_remote = 0;   // tokens that those attend to at peers: a mean over the layers
  double sampled = 0;         // rows that pass the output layer
  double projected = 0;       // tokens times layers of which K and V are made from X
};

// REQUIRES: layers > 0, and slices pass some of them
StepLoad load_of(const Step& step, uint32_t layers);

// What `load` has of rows that compute dropped cells again, which is taken out of it.
StepLoad take_again(StepLoad& load);

// Immutable, so that any thread may ask.
class StepTimes {
 public:
  virtual ~StepTimes() = default;
  // Without what the step waits for transfers or for peers: how long those take, who has them must say.
  virtual double seconds(const StepLoad& load) const = 0;
};

// A sum over rows and projections, in microseconds: for tests, and as the simplest there is.
struct LinearTimes final : StepTimes {
  double step_us = 200;             // of any step
  double prefill_token_us = 50;     // per row of a prefill or recomputation, in all layers
  double decode_row_us = 20;        // per decoding row, in all layers
  double history_token_us = 0.01;   // per token of history that a row attends to, in all layers
  double projected_token_us = 0.1;  // per token and layer of which K and V are made of X

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
