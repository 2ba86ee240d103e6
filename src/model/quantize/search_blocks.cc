#include "model/quantize/search_blocks.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <span>
#include <type_traits>

#include "base/check.h"
#include "model/quantize/group_fit.h"
#include "ops/weight_traits.h"

namespace kvasir {
namespace {

using ops::WeightType;

constexpr int kMostValues = 256;
constexpr int kMostGroups = 16;
constexpr int kRefinements = 2;

// A number as f16 holds it.
struct Half {
  uint16_t bits = 0;
  float value = 0;
  bool finite() const { return (bits & 0x7C00) != 0x7C00; }
};
Half half_of(float v) {
  const uint16_t bits = ops::f32_to_f16(v);
  return {bits, ops::f16_to_f32(bits)};
}

// The factors that a type stores for its groups' scales and minima.
struct Factors {
  int lowest;
  int highest;
  int of_largest;  // the factor of the scale of the largest magnitude
};

// A block while it is found: values are (d · scale) q - (dmin · min) in each group.
struct Block {
  Half d, dmin;
  std::array<int, kMostGroups> scales = {}, mins = {};
  std::array<float, kMostValues> q = {};  // codes, as levels
  std::array<Misfit, kMostGroups> misfits = {};
  float squares() const {
    float sum = 0;
    for (const Misfit& m : misfits) sum += m.squares;
    return sum;
  }
};

int nearest_factor(float v, const Factors& f) {
  const float bounded = std::min(std::max(v, static_cast<float>(f.lowest)), static_cast<float>(f.highest));
  return static_cast<int>(std::lrint(bounded));
}

template <typename Levels>
class Search {
 public:
  Search(const float* x, int values, int group_values, bool has_min, Factors factors, const Levels& levels)
      : x_(x, static_cast<size_t>(values)),
        group_(static_cast<size_t>(group_values)),
        groups_(x_.size() / group_),
        has_min_(has_min),
        factors_(factors),
        levels_(levels) {}

  // False: d or dmin does not fit in f16.
  bool run(Block& best) const;

 private:
  std::span<const float> group(size_t j) const { return x_.subspan(j * group_, group_); }
  void choose_factors(size_t j, int scale, int min, Block& block) const;
  bool refine(Block& block) const;

  const std::span<const float> x_;
  const size_t group_, groups_;
  const bool has_min_;
  const Factors factors_;
  const Levels& levels_;
};

template <typename Levels>
bool Search<Levels>::run(Block& best) const {
  std::array<Fit, kMostGroups> fits;
  float scale = 0, min = 0;
  for (size_t j = 0; j < groups_; ++j) {
    if constexpr (std::is_same_v<Levels, UniformLevels>) {
      fits[j] = has_min_ ? fit_scale_and_min(group(j), levels_) : fit_scale(group(j), levels_);
    } else {
      fits[j] = fit_scale(group(j), levels_);
    }
    if (std::fabs(fits[j].scale) > std::fabs(scale)) scale = fits[j].scale;
    min = std::max(min, fits[j].min);
  }
  best.d = half_of(scale / static_cast<float>(factors_.of_largest));
  best.dmin = half_of(min / static_cast<float>(factors_.highest));
  if (!best.d.finite() || !best.dmin.finite()) return false;
  for (size_t j = 0; j < groups_; ++j) {
    const auto start = [this](float wanted, const Half& unit) {
      return nearest_factor(unit.value == 0 ? 0 : wanted / unit.value, factors_);
    };
    const int first_min = has_min_ ? start(fits[j].min, best.dmin) : 0;
    choose_factors(j, start(fits[j].scale, best.d), first_min, best);
  }
  for (int i = 0; i < kRefinements; ++i) {
    if (!refine(best)) break;
  }
  return true;
}

template <typename Levels>
void Search<Levels>::choose_factors(size_t j, int scale, int min, Block& block) const {
  bool found = false;
  float q[32];
  for (const int min_step : {0, -1, 1}) {
    const int m = min + min_step;
    if (m < 0 || m > factors_.highest || (min_step != 0 && block.dmin.value == 0)) continue;
    for (const int step : {0, -1, 1}) {
      const int s = scale + step;
      if (s < factors_.lowest || s > factors_.highest || (step != 0 && block.d.value == 0)) continue;
      const Fit fit = {block.d.value * static_cast<float>(s), block.dmin.value * static_cast<float>(m)};
      const Misfit misfit = assign_codes(group(j), fit, levels_, q);
      if (found && misfit.squares >= block.misfits[j].squares) continue;
      found = true;
      block.misfits[j] = misfit;
      block.scales[j] = s;
      block.mins[j] = m;
      std::copy_n(q, group_, block.q.data() + j * group_);
    }
  }
}

// Takes the d and dmin that suit factors and codes best, if that is better; else the block stays as it was.
template <typename Levels>
bool Search<Levels>::refine(Block& block) const {
  // Σ over groups of: s² Σq², s m Σq, n m², s Σxq, m Σx.
  float ss = 0, sm = 0, mm = 0, xs = 0, xm = 0;
  for (size_t j = 0; j < groups_; ++j) {
    const Misfit& g = block.misfits[j];
    const auto s = static_cast<float>(block.scales[j]), m = static_cast<float>(block.mins[j]);
    ss += s * s * g.qq;
    sm += s * m * g.q;
    mm += static_cast<float>(group_) * m * m;
    xs += s * g.xq;
    xm += m * g.x;
  }
  Block next = block;
  const float determinant = ss * mm - sm * sm;
  if (determinant > 0) {
    next.d = half_of((xs * mm - sm * xm) / determinant);
    next.dmin = half_of((sm * xs - ss * xm) / determinant);
  } else if (ss > 0) {
    next.d = half_of((xs + sm * block.dmin.value) / ss);
  }
  if (!next.d.finite() || !next.dmin.finite() || next.dmin.value < 0) return false;
  for (size_t j = 0; j < groups_; ++j) choose_factors(j, block.scales[j], block.mins[j], next);
  if (next.squares() >= block.squares()) return false;
  block = next;
  return true;
}

using Codes = std::array<uint8_t, kMostValues>;

// The levels of a block as unsigned codes, the lowest being 0.
Codes codes_of(const Block& block, float lowest) {
  Codes out = {};
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(block.q[i] - lowest);
  return out;
}
Codes indices_of(const Block& block) {
  Codes out = {};
  for (size_t i = 0; i < out.size(); ++i) {
    const int value = static_cast<int>(block.q[i]) + 128;
    for (size_t c = 0; c < 16; ++c) {
      if (ops::kIq4Lookup[c] == value) out[i] = static_cast<uint8_t>(c);
    }
  }
  return out;
}

void put_half(const Half& h, uint8_t* out) {
  std::memcpy(out, &h.bits, 2);
}
void put_bits(int value, int shift, uint8_t& byte) {
  byte = static_cast<uint8_t>(byte | value << shift);
}
// `bits` bits, from bit `from` on, of `count` codes: byte l of the c-th 32 bytes has those of codes that are
// 32 apart.
void put_codes(const Codes& codes, int from, int bits, uint8_t* out) {
  const auto fields = static_cast<size_t>(8 / bits);
  for (size_t i = 0; i < codes.size(); ++i) {
    const int field = codes[i] >> from & ((1 << bits) - 1);
    put_bits(field, static_cast<int>(i / 32 % fields) * bits, out[i / 32 / fields * 32 + i % 32]);
  }
}
void write_q2_k(const Block& b, uint8_t* out) {
  for (size_t j = 0; j < 16; ++j) out[j] = static_cast<uint8_t>(b.scales[j] | b.mins[j] << 4);
  put_codes(codes_of(b, 0), 0, 2, out + 16);
  put_half(b.d, out + 80);
  put_half(b.dmin, out + 82);
}
void write_q3_k(const Block& b, uint8_t* out) {
  const Codes codes = codes_of(b, -4);
  put_codes(codes, 2, 1, out);
  put_codes(codes, 0, 2, out + 32);
  for (size_t j = 0; j < 16; ++j) {
    const int scale = b.scales[j] + 32;
    put_bits(scale & 15, j < 8 ? 0 : 4, out[96 + j % 8]);
    put_bits(scale >> 4, static_cast<int>(j / 4 * 2), out[104 + j % 4]);
  }
  put_half(b.d, out + 108);
}
void write_q4_or_q5_k(bool fifth, const Block& b, uint8_t* out) {
  put_half(b.d, out);
  put_half(b.dmin, out + 2);
  uint8_t* packed = out + 4;
  for (size_t j = 0; j < 4; ++j) {
    packed[j] = static_cast<uint8_t>(b.scales[j] | b.scales[j + 4] >> 4 << 6);
    packed[j + 4] = static_cast<uint8_t>(b.mins[j] | b.mins[j + 4] >> 4 << 6);
    packed[j + 8] = static_cast<uint8_t>((b.scales[j + 4] & 15) | (b.mins[j + 4] & 15) << 4);
  }
  const Codes codes = codes_of(b, 0);
  if (fifth) put_codes(codes, 4, 1, out + 16);
  put_codes(codes, 0, 4, out + (fifth ? 48 : 16));
}
void write_q6_k(const Block& b, uint8_t* out) {
  const Codes codes = codes_of(b, -32);
  // Of each 128 values, 64 bytes have the low bits of the first half below those of the second.
  for (size_t i = 0; i < 128; ++i) {
    const size_t at = i / 64 * 128 + i % 64;
    out[i] = static_cast<uint8_t>((codes[at] & 15) | (codes[at + 64] & 15) << 4);
  }
  put_codes(codes, 4, 2, out + 128);
  for (size_t j = 0; j < 16; ++j) out[192 + j] = static_cast<uint8_t>(b.scales[j]);
  put_half(b.d, out + 208);
}
void write_iq4_xs(const Block& b, uint8_t* out) {
  put_half(b.d, out);
  const Codes codes = indices_of(b);
  for (size_t j = 0; j < 8; ++j) {
    const int scale = b.scales[j] + 32;
    put_bits(scale >> 4, static_cast<int>(j % 4 * 2), out[2 + j / 4]);
    put_bits(scale & 15, static_cast<int>(j % 2 * 4), out[4 + j / 2]);
    put_nibbles(codes.data() + 32 * j, out + 8 + 16 * j);
  }
}
void write_iq4_nl(const Block& b, uint8_t* out) {
  put_half(b.d, out);
  put_nibbles(indices_of(b).data(), out + 2);
}

// What is tried: see fit_scale. Found on Gaussian and on heavy-tailed rows.
constexpr UniformLevels kQ2K = {0, 3, 2.0F, 0.1F, 16};
constexpr UniformLevels kQ4K = {0, 15, 13.0F, 0.2F, 16};
constexpr UniformLevels kQ5K = {0, 31, 29.0F, 0.25F, 12};
constexpr UniformLevels kQ3K = {-4, 3, 2.5F, 0.1F, 25};
constexpr UniformLevels kQ6K = {-32, 31, 30.0F, 0.25F, 12};
constexpr TableLevels kIq4 = {96, 4, 12};

template <typename Levels>
bool search(const float* x, WeightType type, Factors factors, const Levels& levels, Block& out) {
  const ops::WeightTraits& t = ops::kWeightTraits[static_cast<size_t>(type)];
  return Search(x, t.block_values, 32 / t.scales, t.has_min, factors, levels).run(out);
}

}  // namespace

bool quantize_by_search(WeightType type, const float* x, uint8_t* out) {
  constexpr Factors kOfQ2K = {0, 15, 15}, kOf6Bits = {0, 63, 63}, kOf8Bits = {-128, 127, -128};
  constexpr Factors kOf6SignedBits = {-32, 31, -32}, kNone = {1, 1, 1};
  std::memset(out, 0, ops::row_bytes(type, ops::block_values(type)));
  Block b;
  switch (type) {
    case WeightType::kQ2K:
      if (!search(x, type, kOfQ2K, kQ2K, b)) return false;
      write_q2_k(b, out);
      return true;
    case WeightType::kQ3K:
      if (!search(x, type, kOf6SignedBits, kQ3K, b)) return false;
      write_q3_k(b, out);
      return true;
    case WeightType::kQ4K:
    case WeightType::kQ5K: {
      const bool fifth = type == WeightType::kQ5K;
      if (!search(x, type, kOf6Bits, fifth ? kQ5K : kQ4K, b)) return false;
      write_q4_or_q5_k(fifth, b, out);
      return true;
    }
    case WeightType::kQ6K:
      if (!search(x, type, kOf8Bits, kQ6K, b)) return false;
      write_q6_k(b, out);
      return true;
    case WeightType::kIq4Xs:
      if (!search(x, type, kOf6SignedBits, kIq4, b)) return false;
      write_iq4_xs(b, out);
      return true;
    case WeightType::kIq4Nl:
      if (!search(x, type, kNone, kIq4, b)) return false;
      write_iq4_nl(b, out);
      return true;
    default:
      KV_CHECK(false, "{}", ops::weight_type_name(type));
  }
}

}  // namespace kvasir
