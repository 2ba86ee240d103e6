// The kernels of recurrent layers: a causal convolution and the gated delta rule, written once over sixteen
// lanes (body_vector.h has the contract). Lanes are channels and values of a head, never keys, and tokens go
// one after the other, so no cut of a sequence changes a bit.
#pragma once

#include <cstdint>

#ifndef KV_OPS_LANES
#error "include a lanes header and body_vector.h before this file"
#endif

namespace kvasir::ops {
namespace {

void sigmoid_mul(const float* gate, const float* x, int64_t n, float* out) {
  const F one = f_set1(1.0f);
  for_lanes(n, [&](int64_t i, int64_t count) {
    const F g = load_up_to(gate + i, count);
    const F sigmoid = f_div(one, f_add(one, exp_lanes(f_sub(f_set1(-0.0f), g))));
    store_up_to(out + i, f_mul(load_up_to(x + i, count), sigmoid), count);
  });
}

void convolve(const ConvolutionArgs& a) {
  const F one = f_set1(1.0f);
  for (int64_t r = 0; r < a.rows; ++r) {
    float* x = a.x + r * a.stride;
    const F newest = f_load(x);
    F sum = f_zero();
    for (int64_t t = 0; t + 1 < a.taps; ++t) {
      const F then = f_load(a.history + 16 * t);
      sum = f_fma(then, f_load(a.weights + t * a.weights_stride), sum);
      if (t > 0) f_store(a.history + 16 * (t - 1), then);
    }
    sum = f_fma(newest, f_load(a.weights + (a.taps - 1) * a.weights_stride), sum);
    if (a.taps > 1) f_store(a.history + 16 * (a.taps - 2), newest);
    f_store(x, f_div(sum, f_add(one, exp_lanes(f_sub(f_set1(-0.0f), sum)))));
  }
}

template <int kUnits>
inline void delta_rule_units(const DeltaRuleArgs& a, int64_t first) {
  float* const state = a.state + first * a.keys * 16;
  const int64_t unit = a.keys * 16;
  for (int64_t r = 0; r < a.rows; ++r) {
    const float *q = a.q + r * a.stride, *k = a.k + r * a.stride, *v = a.v + r * a.stride + 16 * first;
    float* const out = a.out + r * a.out_stride + 16 * first;
    const F decay = f_set1(a.decay[r * a.gate_stride]), beta = f_set1(a.beta[r * a.gate_stride]);
    F known[kUnits], change[kUnits], sum[kUnits];
    KV_UNROLL
    for (int u = 0; u < kUnits; ++u) known[u] = f_zero();
    for (int64_t i = 0; i < a.keys; ++i) {
      const F key = f_set1(k[i]);
      KV_UNROLL
      for (int u = 0; u < kUnits; ++u)
        known[u] = f_fma(f_mul(f_load(state + u * unit + 16 * i), decay), key, known[u]);
    }
    KV_UNROLL
    for (int u = 0; u < kUnits; ++u) {
      change[u] = f_mul(f_sub(f_load(v + 16 * u), known[u]), beta);
      sum[u] = f_zero();
    }
    for (int64_t i = 0; i < a.keys; ++i) {
      const F key = f_set1(k[i]), query = f_set1(q[i]);
      KV_UNROLL
      for (int u = 0; u < kUnits; ++u) {
        float* const at = state + u * unit + 16 * i;
        const F next = f_fma(key, change[u], f_mul(f_load(at), decay));
        f_store(at, next);
        sum[u] = f_fma(next, query, sum[u]);
      }
    }
    KV_UNROLL
    for (int u = 0; u < kUnits; ++u) f_store(out + 16 * u, sum[u]);
  }
}

void delta_rule(const DeltaRuleArgs& a) {
  int64_t unit = 0;
  for (; unit + 4 <= a.units; unit += 4) delta_rule_units<4>(a, unit);
  for (; unit < a.units; ++unit) delta_rule_units<1>(a, unit);
}

}  // namespace
}  // namespace kvasir::ops
