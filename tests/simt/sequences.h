// Sequences with K and V in frames of the simulated device, for tests of attention.
#pragma once

#include <algorithm>
#include <vector>

#include "base/leaf_tokens.h"
#include "ops/gpu/leaf_work.h"
#include "ops/gpu/reference.h"
#include "simt/kernels.h"

namespace kvasir::simt {

struct SequenceShape {
  int heads = 4;
  int kv_heads = 2;
  int head_dim = 64;
  int block_tokens = 64;
  int q_dim() const { return heads * head_dim; }
  int kv_dim() const { return kv_heads * head_dim; }
  int width() const { return q_dim() + 2 * kv_dim(); }
};

// What a step has of one sequence: rows at positions [begin, end), and a history before them.
struct Rows {
  int begin;
  int end;
};

// The layer that is used is the second one of the second group of two.
class Sequences {
 public:
  // K and V are written for [0, end) of each, or only for the history; bytes of other positions are no
  // numbers.
  Sequences(const SequenceShape& shape, const std::vector<Rows>& all, uint64_t seed,
            bool rows_are_written = true)
      : shape_(shape), random_(seed), tables_(all.size()) {
    size_t blocks = 0;
    for (const Rows& r : all) blocks += static_cast<size_t>(blocks_of(r.end));
    // Places in a random order; two groups a block, and as many staged places.
    std::vector<uint64_t> places(3 * blocks);
    for (size_t i = 0; i < places.size(); ++i) places[i] = i * cell_bytes();
    for (size_t i = places.size(); i > 1; --i) std::swap(places[i - 1], places[random_.below(i)]);
    memory.resize(places.size() * cell_bytes(), std::byte{0xFF});
    for (size_t s = 0; s < all.size(); ++s) {
      for (int b = 0; b < 2 * blocks_of(all[s].end); ++b) {
        tables_[s].push_back({places.back(), places.back() + plane_bytes()});
        places.pop_back();
      }
      ops::gpu::SlicePlace slice = {tables_[s].data(), 0, 0, 0, 0};
      if (s % 2 == 1) stage(slice, blocks_of(all[s].end), places);
      slices.push_back(slice);
      for (int p = all[s].begin; p < all[s].end; ++p) {
        rows.push_back({0, static_cast<uint32_t>(p), static_cast<uint32_t>(s),
                        static_cast<float>(random_.unit() + 0.5), 0});
      }
      const int64_t values = int64_t{all[s].end} * shape.kv_dim();
      k.push_back(random_bf16(random_, values, 2));
      v.push_back(random_bf16(random_, values));
      const int written = rows_are_written ? all[s].end : all[s].begin;
      for (int p = 0; p < written; ++p) write(s, p);
    }
    q = random_bf16(random_, static_cast<int64_t>(rows.size()) * shape.q_dim());
  }

  ops::gpu::KvLayer layer() {
    ops::gpu::KvLayer kv = {};
    kv.memory = memory.data();
    kv.slices = slices.data();
    kv.staged = staged.data();
    kv.groups = 2;
    kv.group = 1;
    kv.layer = 3;
    kv.block_tokens = static_cast<uint32_t>(shape_.block_tokens);
    kv.layer_offset = 2 * plane_bytes();
    kv.kv_heads = shape_.kv_heads;
    kv.head_dim = shape_.head_dim;
    return kv;
  }

  // The place of a K (or V) value of a position.
  uint16_t* place(size_t slice, int position, int dim, bool is_k) {
    const auto block = static_cast<uint32_t>(position / shape_.block_tokens);
    const ops::gpu::SlicePlace& s = slices[slice];
    ops::gpu::KvPlace at = tables_[slice][2 * block + 1];
    at = {at.k + 2 * plane_bytes(), at.v + 2 * plane_bytes()};
    if (block >= s.staged_begin && block < s.staged_end) {
      const ops::gpu::KvPlace other =
          staged[3 * (s.staged_end - s.staged_begin) + s.first_staged + block - s.staged_begin];
      if (other.k != ops::gpu::KvPlace::kAbsent) at = other;
    }
    auto* plane = reinterpret_cast<uint16_t*>(memory.data() + (is_k ? at.k : at.v));
    return plane + ops::kv_offset(dim / shape_.head_dim, position % shape_.block_tokens,
                                  dim % shape_.head_dim, shape_.head_dim, shape_.block_tokens);
  }

  void write(size_t slice, int position) {
    for (int d = 0; d < shape_.kv_dim(); ++d) {
      const auto at = static_cast<size_t>(position * shape_.kv_dim() + d);
      *place(slice, position, d, true) = k[slice][at];
      *place(slice, position, d, false) = v[slice][at];
    }
  }

  // The KV head's part of the row of position 0.
  const uint16_t* k_of(const ops::gpu::RowPlace& row, int head) const { return part_of(k, row, head); }
  const uint16_t* v_of(const ops::gpu::RowPlace& row, int head) const { return part_of(v, row, head); }

  std::vector<std::byte> memory;
  std::vector<ops::gpu::KvPlace> staged;
  std::vector<ops::gpu::SlicePlace> slices;
  std::vector<ops::gpu::RowPlace> rows;
  std::vector<std::vector<uint16_t>> k, v;  // by slice: [position][kv head][head_dim]
  std::vector<uint16_t> q;                  // [row][head][head_dim]

 private:
  size_t plane_bytes() const { return static_cast<size_t>(2 * shape_.block_tokens * shape_.kv_dim()); }
  size_t cell_bytes() const { return 4 * plane_bytes(); }
  int blocks_of(int tokens) const { return (tokens + shape_.block_tokens - 1) / shape_.block_tokens; }

  // All blocks but the last have staged places, every third of them absent.
  void stage(ops::gpu::SlicePlace& slice, int blocks, std::vector<uint64_t>& places) {
    slice.staged_end = static_cast<uint32_t>(blocks - 1);
    slice.first_staged = static_cast<uint32_t>(staged.size());
    for (int layer = 0; layer < 4; ++layer) {
      for (uint32_t b = 0; b < slice.staged_end; ++b) {
        const bool absent = layer != 3 || b % 3 == 2;
        staged.push_back(absent ? ops::gpu::KvPlace{ops::gpu::KvPlace::kAbsent, ops::gpu::KvPlace::kAbsent}
                                : ops::gpu::KvPlace{places.back(), places.back() + plane_bytes()});
        if (!absent) places.pop_back();
      }
    }
  }

  const uint16_t* part_of(const std::vector<std::vector<uint16_t>>& of, const ops::gpu::RowPlace& row,
                          int head) const {
    return of[row.slice].data() + head / (shape_.heads / shape_.kv_heads) * shape_.head_dim;
  }

  SequenceShape shape_;
  Random random_;
  std::vector<std::vector<ops::gpu::KvPlace>> tables_;
};

}  // namespace kvasir::simt
