// The products whose rows are f32 or bf16, written once over sixteen lanes; included after body_gemm.h.
//
// A tile is R rows by P panels side by side, 2 R P accumulators. Many rows take one panel, and weights that
// must be widened are widened once for all of them, a block of K at a time; a few rows take several panels,
// because two chains a row cannot hide the latency of fma. Between blocks of K the chains rest in memory,
// which is exact: no blocking changes a bit.
#pragma once

#include <cstdint>

#include "ops/cpu/body_unpack.h"

namespace kvasir::ops {
namespace {

// Rows that share one widening of a panel; their chains (12 KiB) stay in the nearest cache.
constexpr int64_t kBlockRows = 96;
constexpr int kMostBeside = 4;

// One block of K of one tile. A step is what the operation's inner loop takes at once: one k, or a pair.
struct TileArgs {
  const void* rows;  // the first row, at the block's first step
  int64_t lda;       // elements
  const void* weights[kMostBeside];
  int64_t steps;
  Ahead ahead;    // only where P is 1
  float* chains;  // [R][P][32]
};

template <int R, int P>
inline void load_chains(const float* chains, F (*acc)[P][2]) {
  KV_UNROLL
  for (int r = 0; r < R; ++r) {
    KV_UNROLL
    for (int p = 0; p < P; ++p) {
      acc[r][p][0] = f_load(chains + (r * P + p) * kPanel);
      acc[r][p][1] = f_load(chains + (r * P + p) * kPanel + 16);
    }
  }
}
template <int R, int P>
inline void store_chains(float* chains, F (*acc)[P][2]) {
  KV_UNROLL
  for (int r = 0; r < R; ++r) {
    KV_UNROLL
    for (int p = 0; p < P; ++p) {
      f_store(chains + (r * P + p) * kPanel, acc[r][p][0]);
      f_store(chains + (r * P + p) * kPanel + 16, acc[r][p][1]);
    }
  }
}

// Calls the operation's tile of exactly `rows` rows, 1 <= rows <= R.
template <typename Op, int R, int P>
inline void call_tile(int64_t rows, const TileArgs& t) {
  if (rows == R) {
    Op::template tile<R, P>(t);
  } else if constexpr (R > 1) {
    call_tile<Op, R - 1, P>(rows, t);
  }
}

// Up to kBlockRows rows by P panels. REQUIRES: P == 1 or rows * P <= kFloatRows
template <typename Op, int P>
void gemm_block(const GemmArgs& g, int64_t row, int64_t rows, int64_t panel) {
  constexpr int64_t kSteps = Op::kBlockSteps / P;
  alignas(64) float chains[kBlockRows * kPanel];
  alignas(64) float buffer[Op::kBufferFloats];
  for (int64_t i = 0; i < 2 * rows * P; ++i) f_store(chains + 16 * i, f_zero());
  TileArgs t;
  t.lda = g.lda;
  const int64_t all = Op::steps(g);
  for (int64_t first = 0; first < all; first += kSteps) {
    t.steps = all - first < kSteps ? all - first : kSteps;
    for (int p = 0; p < P; ++p) {
      t.weights[p] = Op::weights(g, panel + p, first, t.steps, buffer + p * (Op::kBufferFloats / P));
    }
    // Blocks of a panel follow one another in memory, and panels too.
    const int64_t tiles = (rows + kFloatRows / P - 1) / (kFloatRows / P);
    int64_t tile = 0;
    for (int64_t done = 0; done < rows; ++tile) {
      const int64_t height = tile_rows(rows - done, kFloatRows / P);
      t.ahead = fetches_of(tile, tiles, t.steps * Op::kStepBytes);
      t.rows = Op::rows(g, row + done, first);
      t.chains = chains + done * P * kPanel;
      call_tile<Op, kFloatRows / P, P>(height, t);
      done += height;
    }
  }
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t p = 0; p < P; ++p) {
      const int64_t column = (panel + p) * kPanel;
      const int64_t columns = g.w.n - column < kPanel ? g.w.n - column : kPanel;
      const float* chain = chains + (r * P + p) * kPanel;
      store_columns(g.c + (row + r) * g.ldc + column, f_load(chain), f_load(chain + 16), columns,
                    g.accumulate);
    }
  }
}

// Blocks of rows outside, panels inside: the rows stay in cache while the weights stream past.
template <typename Op>
inline void gemm_blocks(const GemmArgs& g) {
  for (int64_t row = g.row_begin; row < g.row_end;) {
    const int64_t rows = tile_rows(g.row_end - row, kBlockRows);
    for (int64_t panel = g.panel_begin; panel < g.panel_end;) {
      const int64_t left = g.panel_end - panel;
      if constexpr (kFloatRows >= 4) {
        if (4 * rows <= kFloatRows && left >= 4) {
          gemm_block<Op, 4>(g, row, rows, panel);
          panel += 4;
          continue;
        }
      }
      if (2 * rows <= kFloatRows && left >= 2) {
        gemm_block<Op, 2>(g, row, rows, panel);
        panel += 2;
      } else {
        gemm_block<Op, 1>(g, row, rows, panel);
        panel += 1;
      }
    }
    row += rows;
  }
}

// ---------------------------------------------------------------- f32 rows, any weights

// Groups [first, first + groups) of a panel of quantised weights as floats, [k][32]: scale × (value - offset)
// + minimum.
inline void widen_groups(WeightType type, const uint8_t* panel, int64_t first, int64_t groups, float* out) {
  const WeightTraits& t = traits_of(type);
  UnpackedGroups w;
  kUnpackGroups[type](panel, first, groups, &w);
  for (int64_t g = 0; g < groups; ++g) {
    for (int64_t h = 0; h < 2; ++h) {
      F scale[2], min[2];  // of both halves of the group
      for (int64_t s = 0; s < 2; ++s) {
        const int64_t of = t.scales == 2 ? s : 0;
        scale[s] = f_load(w.scales[g][of] + 16 * h);
        min[s] = t.has_min ? f_load(w.mins[g][of] + 16 * h) : f_zero();
      }
      for (int64_t k = 0; k < kGroup; ++k) {
        const int64_t s = k / (kGroup / 2);
        const F v = f_from_bytes(w.values[g][k / 4 * 2 + h], static_cast<int>(8 * (k % 4)), 255, t.offset);
        f_store(out + (g * kGroup + k) * kPanel + 16 * h,
                t.has_min ? f_fma(scale[s], v, min[s]) : f_mul(scale[s], v));
      }
    }
  }
}

// `count` k of a panel from k on as floats, [k][32].
// REQUIRES: not kF32; quantised: k and count are multiples of 32, in one block or on its borders
inline void widen(WeightType type, const uint8_t* panel, int64_t k, int64_t count, float* out) {
  if (traits_of(type).block_values > 1) {
    widen_groups(type, panel, k / kGroup, count / kGroup, out);
    return;
  }
  const uint8_t* line = panel + k * kPanel * 2;
  // Between two blocks of a panel other panels are read: the CPU alone does not foresee the next one.
  for (int64_t i = 0; i < count; ++i) __builtin_prefetch(line + (count + i) * kPanel * 2);
  if (type == WeightType::kF16) {
    for (int64_t i = 0; i < 2 * count; ++i, line += 32) f_store(out + 16 * i, f_load_f16(line));
    return;
  }
  for (int64_t i = 0; i < count; i += 2, line += 2 * kLineBytes, out += 2 * kPanel) {
    f_store(out, f_pair_even(line));
    f_store(out + 16, f_pair_even(line + kLineBytes));
    if (i + 1 == count) return;
    f_store(out + kPanel, f_pair_odd(line));
    f_store(out + kPanel + 16, f_pair_odd(line + kLineBytes));
  }
}

// kF32: read in place. kF16: widened on the way into the tile, for a single tile of rows.
template <WeightType kType>
struct FloatProduct {
  static constexpr int64_t kBlockSteps = 512;
  static constexpr int64_t kBufferFloats = 16;  // unused
  static constexpr int64_t kLine = kPanel * (kType == WeightType::kF32 ? 4 : 2);
  static constexpr int64_t kStepBytes = kLine;

  static int64_t steps(const GemmArgs& g) { return g.w.k; }
  static const void* rows(const GemmArgs& g, int64_t row, int64_t k) { return g.af + row * g.lda + k; }
  static const void* weights(const GemmArgs& g, int64_t panel, int64_t k, int64_t, float*) {
    return g.w.data + panel * g.panel_stride + k * kLine;
  }

  template <int R, int P>
  static void tile(const TileArgs& t) {
    const auto* a = static_cast<const float*>(t.rows);
    F acc[R][P][2];
    load_chains<R, P>(t.chains, acc);
    for (int64_t k = 0; k < t.steps; ++k) {
      F w[P][2];
      KV_UNROLL
      for (int p = 0; p < P; ++p) {
        const uint8_t* line = static_cast<const uint8_t*>(t.weights[p]) + k * kLine;
        if constexpr (kType == WeightType::kF32) {
          w[p][0] = f_load(reinterpret_cast<const float*>(line));
          w[p][1] = f_load(reinterpret_cast<const float*>(line) + 16);
        } else {
          w[p][0] = f_load_f16(line);
          w[p][1] = f_load_f16(line + kLine / 2);
        }
      }
      KV_UNROLL
      for (int r = 0; r < R; ++r) {
        const F x = f_set1(a[r * t.lda + k]);
        KV_UNROLL
        for (int p = 0; p < P; ++p) {
          acc[r][p][0] = f_fma(x, w[p][0], acc[r][p][0]);
          acc[r][p][1] = f_fma(x, w[p][1], acc[r][p][1]);
        }
      }
    }
    store_chains<R, P>(t.chains, acc);
  }
};

// Any type, widened into a buffer ahead.
struct WidenedProduct : FloatProduct<WeightType::kF32> {
  static constexpr int64_t kBlockSteps = 128;
  static constexpr int64_t kBufferFloats = kBlockSteps * kPanel;

  static const void* weights(const GemmArgs& g, int64_t panel, int64_t k, int64_t count, float* buffer) {
    widen(g.w.type, g.w.data + panel * g.panel_stride, k, count, buffer);
    return buffer;
  }
};

void gemm_f32(const GemmArgs& g) {
  if (g.w.type == WeightType::kF32) {
    gemm_blocks<FloatProduct<WeightType::kF32>>(g);
  } else if (g.w.type == WeightType::kF16 && g.row_end - g.row_begin <= kFloatRows) {
    gemm_blocks<FloatProduct<WeightType::kF16>>(g);
  } else {
    gemm_blocks<WidenedProduct>(g);
  }
}

// ---------------------------------------------------------------- bf16 rows and weights

// What every product of bf16 pairs has in common: nothing is widened ahead, a step is a pair of k.
struct PairProduct {
  static constexpr int64_t kStepBytes = 2 * kLineBytes;
  static constexpr int64_t kBlockSteps = 256;
  static constexpr int64_t kBufferFloats = 16;  // unused

  static int64_t steps(const GemmArgs& g) { return (g.w.k + 1) / 2; }
  static const void* rows(const GemmArgs& g, int64_t row, int64_t pair) {
    return g.ab + row * g.lda + 2 * pair;
  }
  static const void* weights(const GemmArgs& g, int64_t panel, int64_t pair, int64_t, float*) {
    return g.w.data + panel * g.panel_stride + pair * 2 * kLineBytes;
  }
};

// Two fma a pair, the odd element first.
struct TwoFmaProduct : PairProduct {
  template <int R, int P>
  static void tile(const TileArgs& t) {
    const auto* a = static_cast<const uint16_t*>(t.rows);
    F acc[R][P][2];
    load_chains<R, P>(t.chains, acc);
    for (int64_t i = 0; i < t.steps; ++i) {
      // The odd elements of all rows first, so that half of the weights at a time fill registers.
      KV_UNROLL
      for (int odd = 1; odd >= 0; --odd) {
        F w[P][2];
        KV_UNROLL
        for (int p = 0; p < P; ++p) {
          const auto* line = static_cast<const uint8_t*>(t.weights[p]) + i * 2 * kLineBytes;
          w[p][0] = odd ? f_pair_odd(line) : f_pair_even(line);
          w[p][1] = odd ? f_pair_odd(line + kLineBytes) : f_pair_even(line + kLineBytes);
        }
        KV_UNROLL
        for (int r = 0; r < R; ++r) {
          const uint16_t* pair = a + r * t.lda + 2 * i;
          const F x = odd ? f_set1_odd(pair) : f_set1_even(pair);
          KV_UNROLL
          for (int p = 0; p < P; ++p) {
            acc[r][p][0] = f_fma(x, w[p][0], acc[r][p][0]);
            acc[r][p][1] = f_fma(x, w[p][1], acc[r][p][1]);
          }
        }
      }
    }
    store_chains<R, P>(t.chains, acc);
  }
};

void gemm_bf16(const GemmArgs& g) {
  gemm_blocks<TwoFmaProduct>(g);
}

}  // namespace
}  // namespace kvasir::ops
