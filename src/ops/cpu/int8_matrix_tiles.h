// gemm_int8 by the matrix registers of AMX, for several rows: one instruction makes the exact integer sums of
// 16 rows with 16 columns over a group. Scales and chains are those of the other tiles, so the bits are the
// same. Included by kernels_avx512.cc only, after body_gemm_int8.h; only these functions are compiled for
// AMX.
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace kvasir::ops {
namespace {

#define KV_AMX __attribute__((target("amx-tile,amx-int8")))

constexpr int64_t kMatrixRows = 16;
constexpr int64_t kSumGroups = 4;  // whose sums are made before they are added to the chains

// Which of the eight registers hold what; the instructions want numbers. Sums of columns 0.. and 16.., twice,
// so that the next ones need not wait until these are stored; rows; weights of columns 0.. and 16...
#define KV_SUMS_LEFT 0
#define KV_SUMS_RIGHT 1
#define KV_NEXT_LEFT 2
#define KV_NEXT_RIGHT 3
#define KV_ROWS 4
#define KV_NEXT_ROWS 5
#define KV_WEIGHTS_LEFT 6
#define KV_WEIGHTS_RIGHT 7

struct alignas(64) MatrixShapes {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  MatrixShapes(int64_t height, int64_t quads) {
    for (int i = 0; i < 8; ++i) {
      const bool weights = i >= KV_WEIGHTS_LEFT, of_rows = i >= KV_ROWS && !weights;
      row_bytes[i] = static_cast<uint16_t>(of_rows ? 4 * quads : 64);
      rows[i] = static_cast<uint8_t>(weights ? quads : height);
    }
  }
};

using MatrixSums = int32_t[kMatrixRows][kPanel];

// The sums of a tile of rows over quads of a group from `quad` on, as many as the shapes say.
template <bool kNext>
KV_AMX inline void matrix_sums(const Int8Tile& t, const UnpackedGroups& w, int64_t g, int64_t quad,
                               MatrixSums& out) {
  const int8_t* rows = t.q + g * kGroup + 4 * quad;
  const uint8_t(*lines)[kLineBytes] = w.values[g] + 2 * quad;
  _tile_loadd(KV_WEIGHTS_LEFT, lines[0], 2 * kLineBytes);
  _tile_loadd(KV_WEIGHTS_RIGHT, lines[1], 2 * kLineBytes);
  if constexpr (kNext) {
    _tile_loadd(KV_NEXT_ROWS, rows, t.k);
    _tile_zero(KV_NEXT_LEFT);
    _tile_zero(KV_NEXT_RIGHT);
    _tile_dpbssd(KV_NEXT_LEFT, KV_NEXT_ROWS, KV_WEIGHTS_LEFT);
    _tile_dpbssd(KV_NEXT_RIGHT, KV_NEXT_ROWS, KV_WEIGHTS_RIGHT);
    _tile_stored(KV_NEXT_LEFT, out[0], sizeof(out[0]));
    _tile_stored(KV_NEXT_RIGHT, out[0] + 16, sizeof(out[0]));
  } else {
    _tile_loadd(KV_ROWS, rows, t.k);
    _tile_zero(KV_SUMS_LEFT);
    _tile_zero(KV_SUMS_RIGHT);
    _tile_dpbssd(KV_SUMS_LEFT, KV_ROWS, KV_WEIGHTS_LEFT);
    _tile_dpbssd(KV_SUMS_RIGHT, KV_ROWS, KV_WEIGHTS_RIGHT);
    _tile_stored(KV_SUMS_LEFT, out[0], sizeof(out[0]));
    _tile_stored(KV_SUMS_RIGHT, out[0] + 16, sizeof(out[0]));
  }
}

inline F sums_as_floats(const int32_t* sums) {
  return _mm512_cvtepi32_ps(_mm512_load_si512(sums));
}

// The chains of a row go on over groups [first, first + count). sums: of the halves of each, if it has two
// scales; row is the one in the tile of rows.
template <int kForm>
inline void add_sums(const Int8Tile& t, const UnpackedGroups& w, const MatrixSums* sums, int64_t first,
                     int64_t count, int64_t row, float* chain) {
  constexpr bool kMin = kForm % 2 == 1, kTwo = kForm >= 2;
  F acc[2] = {f_load(chain), f_load(chain + 16)};
  for (int64_t i = 0; i < count; ++i) {
    const int64_t g = first + i;
    const UnpackedScales from(w, g);
    const F da = f_set1(t.scale(row, g));
    KV_UNROLL
    for (int h = 0; h < 2; ++h) {
      const int64_t at = 16 * h;
      if constexpr (kTwo) {
        F both = f_mul(from.scale(0, at), sums_as_floats(sums[2 * i][row] + at));
        both = f_fma(from.scale(1, at), sums_as_floats(sums[2 * i + 1][row] + at), both);
        if constexpr (kMin) {
          both = f_fma(from.minimum(0, at), f_set1(t.half_sum(row, g, 0)), both);
          both = f_fma(from.minimum(1, at), f_set1(t.half_sum(row, g, 1)), both);
        }
        acc[h] = f_fma(da, both, acc[h]);
      } else {
        acc[h] = f_fma(f_mul(from.scale(0, at), da), sums_as_floats(sums[i][row] + at), acc[h]);
        if constexpr (kMin) acc[h] = f_fma(from.minimum(0, at), f_set1(t.moment(row, g)), acc[h]);
      }
    }
  }
  f_store(chain, acc[0]);
  f_store(chain + 16, acc[1]);
}

// All rows over the unpacked groups. The last tile of rows reaches back over rows that are done.
template <int kForm>
KV_AMX void int8_matrix_tiles(int64_t rows, const Int8Tile& all, const Unpacked& source,
                              const Int8Output* out) {
  constexpr int64_t kHalves = kForm >= 2 ? 2 : 1;
  alignas(64) MatrixSums sums[kSumGroups * kHalves];
  const int64_t height = rows < kMatrixRows ? rows : kMatrixRows;
  for (int64_t done = 0; done < rows;) {
    const int64_t from = done + height > rows ? rows - height : done;
    const Int8Tile t = all.from_row(from);
    for (int64_t first = 0; first < t.groups; first += kSumGroups) {
      const int64_t count = t.groups - first < kSumGroups ? t.groups - first : kSumGroups;
      for (int64_t i = 0; i < count; ++i) {
        if constexpr (kHalves == 2) {
          matrix_sums<false>(t, source.groups, first + i, 0, sums[2 * i]);
          matrix_sums<true>(t, source.groups, first + i, 4, sums[2 * i + 1]);
        } else if (i % 2 == 0) {
          matrix_sums<false>(t, source.groups, first + i, 0, sums[i]);
        } else {
          matrix_sums<true>(t, source.groups, first + i, 0, sums[i]);
        }
      }
      for (int64_t r = done - from; r < height; ++r) {
        add_sums<kForm>(t, source.groups, sums, first, count, r, t.chains + r * kPanel);
      }
    }
    done = from + height;
  }
  if (out != nullptr) out->store(0, rows, all.chains);
}

constexpr ByType<Int8Product> kInt8MatrixProducts = by_type<Int8Product>([]<WeightType T>() -> Int8Product {
  return {0, nullptr, unpack_groups<T, Codes::kSigned>, 0, int8_matrix_tiles<int8_form(kTraitsOf<T>)>};
});

// Rows below which unpacking takes longer than it saves.
constexpr int64_t kLeastMatrixRows = 12;

KV_AMX void gemm_int8_matrix(const GemmArgs& g) {
  const int64_t rows = g.row_end - g.row_begin;
  if (rows < kLeastMatrixRows) {
    gemm_int8(g);
    return;
  }
  const int64_t quads = traits_of(g.w.type).scales == 2 ? 4 : 8;
  const MatrixShapes shapes(rows < kMatrixRows ? rows : kMatrixRows, quads);
  _tile_loadconfig(&shapes);
  gemm_int8_by(kInt8MatrixProducts, g);
  _tile_release();
}

}  // namespace
}  // namespace kvasir::ops
