// What the tiles of int8 products take: rows, and a source of weights. Included after body_unpack.h.
#pragma once

#include <cstdint>

namespace kvasir::ops {
namespace {

constexpr int64_t kAllRows = int64_t{1} << 62;

// Rows of the largest tile of unpacked weights, of the largest that reads a panel; and the rows of a product
// up to which tiles read the panel.
struct TileHeights {
  int unpacked;
  int packed;
  int64_t packed_rows;
};

// Some rows, over groups of K from one on. Pointers are to the first row, at the first group.
struct Int8Tile {
  int64_t groups;
  int32_t offset;  // of the unsigned weights
  const int8_t* q;
  int64_t k;  // from one row of q to the next
  const float* scales;
  const int16_t* sums;
  const float* moments;
  int64_t row_groups;  // from one row of scales and moments to the next
  float* chains;       // [rows][32]

  Int8Tile from_row(int64_t r) const { return moved(r * k, r * row_groups, chains + r * kPanel); }
  Int8Tile from_group(int64_t g) const { return moved(g * kGroup, g, chains); }
  Int8Tile moved(int64_t values, int64_t by, float* to) const {
    return {groups, offset, q + values, k, scales + by, sums + 2 * by, moments + by, row_groups, to};
  }

  float scale(int64_t r, int64_t g) const { return scales[r * row_groups + g]; }
  float moment(int64_t r, int64_t g) const { return moments[r * row_groups + g]; }
  // Of q over a half of a group.
  int32_t sum(int64_t r, int64_t g, int64_t half) const {
    const int16_t* negated = sums + 2 * (r * row_groups + g);
    return half == 1 ? -negated[1] : negated[1] - negated[0];
  }
  float half_sum(int64_t r, int64_t g, int64_t half) const { return static_cast<float>(sum(r, g, half)); }
  // What integer sums begin with: the weights' offset times the rows' sums, taken off.
  int32_t start(int64_t r, int64_t g) const { return offset * sums[2 * (r * row_groups + g)]; }
  int32_t half_start(int64_t r, int64_t g, int64_t half) const { return -offset * sum(r, g, half); }
};

// All groups of a product, from a row on.
inline Int8Tile int8_tile_of(const GemmArgs& g, int64_t row, float* chains) {
  const int64_t row_groups = g.a.k / kGroup, at = row * row_groups;
  return {g.groups,          traits_of(g.w.type).offset, g.a.q + row * g.a.k, g.a.k, g.a.scales + at,
          g.a.sums + 2 * at, g.a.moments + at,           row_groups,          chains};
}

// Where a tile has its weights from: unpacked before, or unpacked on the way out of a panel.
struct Unpacked {
  const UnpackedGroups& groups;
  const uint8_t* codes;  // as bytes
  int64_t stride;        // from one group's to the next
  Ahead ahead() const { return {}; }
  void fetch(Ahead&, int64_t) const {}
  template <int kQuad, int kHalf>
  B bytes(int64_t group) const {
    return b_load(codes + group * stride + (2 * kQuad + kHalf) * kLineBytes);
  }
  UnpackedScales scales(int64_t group) const { return {groups, group}; }
};
template <WeightType T>
struct Packed {
  const uint8_t* panel;
  Ahead fetches;
  Ahead ahead() const { return fetches; }
  void fetch(Ahead& ahead, int64_t group) const {
    fetch_ahead<GroupPlaces<T>::kShare>(ahead, group, panel + group * GroupPlaces<T>::kShare);
  }
  template <int kQuad, int kHalf>
  B bytes(int64_t group) const {
    return unpack_bytes<T, kQuad, kHalf>(GroupPlaces<T>::lines(panel, group));
  }
  GroupScales<T> scales(int64_t group) const { return GroupPlaces<T>::scales(panel, group); }
};
// For a row alone: what comes soon is fetched at every step.
template <WeightType T>
struct PackedAlone : Packed<T> {
  void fetch(Ahead&, int64_t group) const { fetch_group<T>(this->panel, group + kBlockGroups); }
};

}  // namespace
}  // namespace kvasir::ops
