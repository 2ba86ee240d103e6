// Which creditor computes which part of a query: the leaves are split by where they lie, and the tree
// merges the partial results that come back.
//
//   leaves     4  5  6  7  8  9 10        creditor A has 4, 5 and 8 to 10, B has 6 and 7
//   A          [4,6)       [8,10)[10,11)  3 records
//   B                [6,8)                1 record
//   asked for  [   4,8   ) [8,10)[10,11)  [4,8) is merged here of A's and B's
//
// No creditor can compute a leaf whose blocks lie at several creditors: such leaves are a share of their
// own.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "cluster/memory/data_wire.h"
#include "cluster/memory/memory_shape.h"

namespace kvasir {

// Where a cell of the tier lies. `creditor`: an index of the caller's.
struct CellPlace {
  static constexpr uint32_t kNowhere = UINT32_MAX;
  uint32_t creditor = kNowhere;
  uint32_t index = 0;  // in the contract
  uint64_t contract = 0;
};

// What one creditor is asked to compute, without layer and rows.
struct LeafShare {
  uint32_t creditor = 0;  // kNowhere: each of these leaves lies at several
  std::vector<LeafRun> runs;
  std::vector<CellRun> cells;  // none if split()
  uint32_t peaks = 0;          // records that come back for a row and KV head

  bool split() const { return creditor == CellPlace::kNowhere; }
  uint32_t leaves() const;
};

// A record that comes back.
struct SharePeak {
  uint32_t share = 0;
  uint32_t record = 0;  // among those of a row and KV head that the share brings
  int level = 0;
};

struct LeafShares {
  LeafRun run;
  std::vector<LeafShare> shares;
  std::vector<SharePeak> peaks;  // left to right
};

// places: of the blocks of the run's leaves, in order. kUnavailable: a cell has no place.
Result<LeafShares> share_leaves(LeafRun run, uint32_t blocks_per_leaf, std::span<const CellPlace> places);

// Merges what came back. records[share]: of `rows` rows, [row][kv head][share.peaks] records. out:
// [row][kv head][peaks of the run] records, as PeerMemory::attend() gives them.
void merge_shares(const MemoryShape& shape, const ops::Kernels& kernels, const LeafShares& shares,
                  uint32_t rows, std::span<const float* const> records, float* out);

}  // namespace kvasir
