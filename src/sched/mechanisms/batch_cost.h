// The time of a step in which each request of a batch decodes one token, and part of its history is
// recomputed or comes over a link.
//
// Source: eLLM, Sections 4.2.1 and 4.3, Equations 2 to 4 and 7 to 9:
//
//   V_rec = sum_i (24 h^2 L s_i r + 4 h L s_i^2 r^2 + 2 h V s_i r)
//   V_dec = sum_i (24 h^2 L + 4 h L (s_i + 1) + 2 h V s_i)
//   T(b, r) = (V_rec + V_dec) / FLOPS
//
//   symbol   here                                         unit
//   b        BatchLoad::requests
//   s_i      the length of a request                      tokens
//   r        the share of it that is not on the device
//   h, L, V  PublishedShape::hidden, layers, vocabulary
//   FLOPS    PublishedShape::flops_per_s                  1/s
//
// Our reading (corrected()): the output layer belongs to a token that is sampled, so 2 h V once for each
// request and never for what is recomputed; the attention of what is recomputed is causal, so 2 and
// not 4; the products of a layer are those of its real shape, and K and V have the bytes that they have; and
// a step is no faster than memory delivers weights, K and V: T is the greater of the two. believed() takes
// the coefficients of the fitted belief instead, which know all that a profile has seen; its knee is the
// same maximum of two sums. letter() is the published form.
#pragma once

#include <algorithm>

#include "contract/cost_model.h"

namespace kvasir {

// Of a batch: sums over its requests.
struct BatchLoad {
  double requests = 0;
  double context = 0;  // tokens: of s_i
  // Tokens that are recomputed, times the share of the layers that they pass; and likewise their squares.
  double again_tokens = 0;
  double again_squares = 0;
  friend bool operator==(const BatchLoad&, const BatchLoad&) = default;
};

// Coefficients of a sum over a BatchLoad, in seconds.
struct LoadSeconds {
  double step_s = 0;
  double request_s = 0;
  double context_s = 0;
  double again_token_s = 0;
  double again_square_s = 0;
  double of(const BatchLoad& load) const {
    return step_s + request_s * load.requests + context_s * load.context + again_token_s * load.again_tokens +
           again_square_s * load.again_squares;
  }
  // The part of the recomputed tokens.
  double again(const BatchLoad& load) const {
    return again_token_s * load.again_tokens + again_square_s * load.again_squares;
  }
};

// What the formulas need of a model and a device.
struct PublishedShape {
  double hidden = 0;
  double layers = 0;
  double vocabulary = 0;
  double feed_forward = 0;  // width; 0: 4 * hidden in two products, the published 16 h^2
  double kv_hidden = 0;     // KV heads times their size; 0: hidden
  double flops_per_s = 0;
  double bytes_per_s = 0;         // of the device's memory; 0: without the bound by bandwidth
  double weight_bytes = 0;        // read by each step
  double kv_bytes_per_token = 0;  // in all layers
};

struct BatchCost {
  LoadSeconds compute;
  LoadSeconds memory;  // of bytes read, beside which the computation goes on; all 0 where `compute` has both

  // Section 4.3.2, with the kernels K1 (what is recomputed) and K2 (the rest) fused at their best: neither
  // slows the other, so T is the greater of the times that they take alone.
  bool fused = false;

  double seconds(const BatchLoad& load) const {
    if (!fused) return in_one_pass(load);
    return std::max(in_one_pass({load.requests, load.context, 0, 0}),
                    in_one_pass({0, 0, load.again_tokens, load.again_squares}));
  }
  double in_one_pass(const BatchLoad& load) const { return std::max(compute.of(load), memory.of(load)); }

  static BatchCost believed(const CostModel& costs);
  static BatchCost corrected(const PublishedShape& shape);
  static BatchCost letter(const PublishedShape& shape);
};

}  // namespace kvasir
