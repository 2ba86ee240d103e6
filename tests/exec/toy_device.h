// A model and a device whose times are worked out by hand.
#pragma once

#include "exec/sim/device.h"

namespace kvasir::test {

// Four layers of 8 heads on 2 KV heads of 64; a layer has 512 * (512 + 2 * 128 + 512) + 3 * 512 * 1024
// weights.
inline ModelShape toy_model() {
  ModelShape m;
  m.name = "toy";
  m.layers = 4;
  m.hidden = 512;
  m.heads = 8;
  m.kv_heads = 2;
  m.head_dim = 64;
  m.ffn = 1024;
  m.vocab = 4096;
  m.max_positions = 2048;
  return m;
}

// 2^40 FLOP/s and 2^30 bytes/s, whatever the shape; a launch of 1 ms for each product and 2, 3, 4 ms for
// prefill, decode and elementwise. The maximum is as good as sharp. An all-reduce of any size takes 2^-10 s
// on two cards and 2^-9 s on four; sending, 2^-8 s.
inline DeviceSpec toy_device() {
  const Curve compute{{0, 1}, {40, 40}}, read{{0, 1}, {30, 30}}, none{{0, 1}, {0, 0}};
  DeviceSpec d;
  d.name = "toy";
  d.memory_bytes = 1 << 30;
  d.memory_bytes_per_s = 1 << 30;
  d.flops = 1099511627776.0;
  d.pcie = {1e9, 0.5, 0.5};
  d.gemm = {1e-3, 0, 50, {compute, none, none}, {read, none}};
  d.prefill_attention = {2e-3, 0, 50, {compute, none, none}, {}};
  d.prefill_ceiling_log2 = 50;
  d.decode_grouped = {3e-3, 0, 50, {}, {read, none, none}};
  d.decode_single = d.decode_grouped;
  d.elementwise = {4e-3, 0, 50, {}, {read}};
  d.all_reduce[2] = {{0, 30}, {-10, -10}};
  d.all_reduce[4] = {{0, 30}, {-9, -9}};
  d.eager_all_reduce_s = 0.5;
  d.send_recv = {{0, 30}, {-8, -8}};
  return d;
}

}  // namespace kvasir::test
