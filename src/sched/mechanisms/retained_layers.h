// Chooses how many layers of a prompt's keys and values stay on the device, and which.
//
// Source: LayerKV, Section 3.1.1, Equation 4, and Section 3.1.2. L - x layers are offloaded in
//
//   T_offload = beta * seqlen * 2 (L - x) * d_heads * n_heads * f_precision / PCIe bandwidth,
//
// and x is the least for which offloading hides behind the prefill: T_offload <= T_prefill.
//
//   symbol               here                                                              unit
//   2 * d_heads * ...    of the cache as it is stored, per token and layer: KV heads       bytes
//                        only, and one device's share under tensor parallelism
//   PCIe bandwidth       the believed or measured link's, as this device gets it           s a byte
//   L, x                 layer groups                                                      -
//   beta                 `beta`                                                            a factor
//
// x is almost never above 0. A request keeps as many layers as memory allows (Section 3.1.2), and at least x.
#pragma once

#include <cstdint>

#include "contract/cost_model.h"
#include "contract/geometry.h"
#include "contract/layer_set.h"

namespace kvasir {

// Equation 4's x, in layer groups, for a prompt of `tokens` tokens whose prefill takes `prefill_s`.
uint32_t least_retained_groups(const CacheGeometry& geometry, const LinkCost& link, uint32_t tokens,
                               double prefill_s, double beta);

// `count` groups of `among`, spread evenly from the second on: four of eight are 1, 3, 5 and 7, so that the
// groups in between can come while these are computed. REQUIRES: count <= among.count()
LayerSet spread_evenly(const LayerSet& among, uint32_t count);

}  // namespace kvasir
