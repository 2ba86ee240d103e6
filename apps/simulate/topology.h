// The nodes of simulated instances and the networks between them.
#pragma once

#include <cstdint>

#include "apps/simulate/catalog/network.h"

namespace kvasir {

// Instances are numbered from 0; those of a node are neighbours.
struct Topology {
  uint32_t instances = 1;
  uint32_t per_node = 1;  // instances on one node
  // An instance's links, which send at the same time: one for each of its stages, for that stage's layers.
  uint32_t ways = 1;
  NetworkSpec inside;   // a node
  NetworkSpec between;  // nodes

  uint32_t node_of(uint32_t instance) const { return instance / per_node; }
  const NetworkSpec& way(uint32_t a, uint32_t b) const { return node_of(a) == node_of(b) ? inside : between; }
  double bytes_per_s(uint32_t a, uint32_t b) const { return ways * way(a, b).usable(); }
  double latency_s(uint32_t a, uint32_t b) const { return way(a, b).latency_s; }
};

}  // namespace kvasir
