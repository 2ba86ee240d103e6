// Divides the part of histories that is not kept on the device between recomputing and the link.
//
// Source: eLLM, Section 4.3.1, Equations 6 and 7: of each l1 + l2 layers of the tokens that are not kept, l1
// are swapped in and l2 recomputed, l1 <= 3 and l2 <= 2; of the six the one with the least bubble
//
//   | T_swap(l1) - T_rec(l2) |,   T_swap = (alpha k + beta) l1 / L,   T_rec = V_rec(r) (l2 / L) / FLOPS
//
// Our reading: Equation 7's output layer does not belong to it. A token that is recomputed in layer i needs
// its own result of layer i - 1, so swapped layers cannot lie between: here they are a share of the tokens
// (the oldest are recomputed in all layers) or of the layers (the first ones are recomputed, from token ids).
// Checkpoints of the residual stream before each run of computed layers would be a third way; they are as
// large as K and V of a layer under multi-head attention and larger under grouped-query attention, and come
// over the same link.
#pragma once

#include <array>
#include <cstdint>

namespace kvasir {

// Of l1 + l2 layers: swapped in, recomputed.
struct OverlapConfig {
  uint8_t swapped = 0;
  uint8_t again = 1;
  double again_share() const { return static_cast<double>(again) / (swapped + again); }
  friend bool operator==(const OverlapConfig&, const OverlapConfig&) = default;
};

// The published six, and, for the choice by least time, all or nothing.
constexpr std::array<OverlapConfig, 6> kPublishedOverlaps = {
    {{1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}, {3, 2}}};
constexpr std::array<OverlapConfig, 8> kOverlaps = {
    {{1, 0}, {1, 1}, {2, 1}, {3, 1}, {1, 2}, {2, 2}, {3, 2}, {0, 1}}};

// The seconds that the link, or the computation, would take for everything that is not kept, in all layers.
struct OverlapTimes {
  double layers = 1;   // L
  double swap_s = 0;   // alpha k + beta
  double again_s = 0;  // V_rec / FLOPS without the output layer
};

// Equations 6 and 7: the seconds in which the link or the computation waits for the other.
double bubble_seconds(const OverlapTimes& times, OverlapConfig config);
// The published configuration with the least bubble; the first of equals.
OverlapConfig least_bubble(const OverlapTimes& times);

}  // namespace kvasir
