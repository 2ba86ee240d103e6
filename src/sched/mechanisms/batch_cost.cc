#include "sched/mechanisms/batch_cost.h"

#include "base/check.h"

namespace kvasir {
namespace {

// Seconds of coefficients in operations.
LoadSeconds seconds_of(const LoadSeconds& operations, double per_second) {
  KV_CHECK(per_second > 0, "flops_per_s={}", per_second);
  LoadSeconds out = operations;
  for (double* c : {&out.step_s, &out.request_s, &out.context_s, &out.again_token_s, &out.again_square_s}) {
    *c /= per_second;
  }
  return out;
}

}  // namespace

// Of a model with experts a batch is believed to read them all. n tokens that are recomputed are a prompt's
// first n: n rows, and n (n + 1) / 2 pairs.
BatchCost BatchCost::believed(const CostModel& costs) {
  const LoadSeconds below = {costs.weights_s(), costs.decode_row_s, costs.context_s,
                             costs.prefill_row_s + costs.pair_s / 2, costs.pair_s / 2};
  if (costs.above_knee_s == 0) return {below, {}};
  LoadSeconds above = below;
  above.step_s -= costs.above_knee_s * costs.knee_rows;
  above.request_s += costs.above_knee_s;
  above.again_token_s += costs.above_knee_s;
  return {above, below};
}

BatchCost BatchCost::corrected(const PublishedShape& shape) {
  const double h = shape.hidden, layers = shape.layers;
  const double kv = shape.kv_hidden > 0 ? shape.kv_hidden : h;
  // For a token and a layer: Q and O, K and V; then two products, or the three of a gated unit.
  const double attention = 2 * h * (2 * h + 2 * kv);
  const double feed_forward = shape.feed_forward > 0 ? 6 * h * shape.feed_forward : 16 * h * h;
  const double token = layers * (attention + feed_forward);
  LoadSeconds operations;
  operations.request_s = token + 4 * h * layers + 2 * h * shape.vocabulary;
  operations.context_s = 4 * h * layers;
  operations.again_token_s = token;
  operations.again_square_s = 2 * h * layers;
  BatchCost out{seconds_of(operations, shape.flops_per_s), {}};
  if (shape.bytes_per_s > 0) {
    out.memory.step_s = shape.weight_bytes / shape.bytes_per_s;
    // K and V of what is recomputed are in `context` with all others; its rows are few bytes beside them.
    out.memory.context_s = shape.kv_bytes_per_token / shape.bytes_per_s;
  }
  return out;
}

BatchCost BatchCost::letter(const PublishedShape& shape) {
  const double h = shape.hidden, layers = shape.layers;
  const double token = 24 * h * h * layers;
  const double output = 2 * h * shape.vocabulary;
  LoadSeconds operations;
  operations.request_s = token + 4 * h * layers;  // Equation 3, with the 1 of s_i + 1
  operations.context_s = 4 * h * layers + output;
  operations.again_token_s = token + output;  // Equation 2
  operations.again_square_s = 4 * h * layers;
  return {seconds_of(operations, shape.flops_per_s), {}};
}

}  // namespace kvasir
