#include "cluster/memory/leaf_shares.h"

#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "ops/attention_tree.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

uint32_t share_of_creditor(LeafShares& out, uint32_t creditor) {
  for (uint32_t s = 0; s < out.shares.size(); ++s) {
    if (out.shares[s].creditor == creditor) return s;
  }
  out.shares.push_back({.creditor = creditor, .runs = {}, .cells = {}});
  return static_cast<uint32_t>(out.shares.size() - 1);
}

void add_leaf(LeafShare& share, uint32_t leaf, std::span<const CellPlace> blocks) {
  if (!share.runs.empty() && share.runs.back().end == leaf) {
    ++share.runs.back().end;
  } else {
    share.runs.push_back({leaf, leaf + 1});
  }
  if (share.split()) return;
  for (const CellPlace& place : blocks) append_cell(share.cells, place.contract, place.index);
}

// The runs of all shares, left to right, cut into subtrees.
void add_peaks(LeafShares& out) {
  std::vector<size_t> next(out.shares.size(), 0);
  for (uint32_t at = out.run.first; at < out.run.end;) {
    for (uint32_t s = 0; s < out.shares.size(); ++s) {
      LeafShare& share = out.shares[s];
      if (next[s] == share.runs.size() || share.runs[next[s]].first != at) continue;
      const LeafRun run = share.runs[next[s]++];
      for_each_subtree(run, [&](int level, uint32_t) { out.peaks.push_back({s, share.peaks++, level}); });
      at = run.end;
      break;
    }
  }
}

// Only under its mutant: the first two neighbours of one size change places.
void swap_neighbours(std::vector<SharePeak>& peaks) {
  for (size_t i = 1; i < peaks.size(); ++i) {
    if (peaks[i - 1].level != peaks[i].level) continue;
    std::swap(peaks[i - 1], peaks[i]);
    return;
  }
}

}  // namespace

uint32_t LeafShare::leaves() const {
  uint32_t leaves = 0;
  for (const LeafRun& of : runs) leaves += of.leaves();
  return leaves;
}

Result<LeafShares> share_leaves(LeafRun run, uint32_t blocks_per_leaf, std::span<const CellPlace> places) {
  KV_CHECK(run.end > run.first && places.size() == size_t{run.leaves()} * blocks_per_leaf,
           "run=[{}, {}) blocks_per_leaf={} places={}", run.first, run.end, blocks_per_leaf, places.size());
  LeafShares out{.run = run, .shares = {}, .peaks = {}};
  for (uint32_t leaf = run.first; leaf < run.end; ++leaf) {
    const auto blocks = places.subspan(size_t{leaf - run.first} * blocks_per_leaf, blocks_per_leaf);
    uint32_t creditor = blocks.front().creditor;
    for (const CellPlace& place : blocks) {
      if (place.creditor == CellPlace::kNowhere) {
        return error(ErrorCode::kUnavailable, "leaf {}: its cells are not lent any more; recompute it", leaf);
      }
      if (place.creditor != creditor) creditor = CellPlace::kNowhere;
    }
    add_leaf(out.shares[share_of_creditor(out, creditor)], leaf, blocks);
  }
  add_peaks(out);
  if (mutant(Mutant::kPeerSubtreeOrder)) swap_neighbours(out.peaks);
  return out;
}

void merge_shares(const MemoryShape& shape, const ops::Kernels& kernels, const LeafShares& shares,
                  uint32_t rows, std::span<const float* const> records, float* out) {
  const ops::FlushToZero mode;
  const int64_t record = shape.record_floats();
  const auto record_bytes = static_cast<size_t>(record) * sizeof(float);
  std::vector<float> storage(static_cast<size_t>(
      ops::AttentionTree::storage_floats(shares.run.leaves(), shape.queries_per_kv, shape.kv.head_dim)));
  for (int64_t i = 0; i < int64_t{rows} * shape.kv.kv_heads; ++i) {
    ops::AttentionTree tree(kernels, shape.queries_per_kv, shape.kv.head_dim, storage.data(),
                            shares.run.leaves(), shares.run.first);
    for (const SharePeak& peak : shares.peaks) {
      const float* from = records[peak.share];
      tree.push(from + (i * shares.shares[peak.share].peaks + peak.record) * record, peak.level);
    }
    for (int p = 0; p < tree.peak_count(); ++p, out += record) {
      std::memcpy(out, tree.peak(p).partial, record_bytes);
    }
  }
}

}  // namespace kvasir
