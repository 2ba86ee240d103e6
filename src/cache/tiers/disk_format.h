// The format of the disk tier's files: the header, and the index beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "cache/blocks/block_hash.h"
#include "contract/ids.h"

namespace kvasir {

// The header region; its first block is written. The rest aligns what follows with the disk's own blocks.
constexpr uint64_t kDiskHeaderRegion = kMiB;
constexpr uint64_t kDiskHeaderBlock = 4096;

// A copy in the file: the pieces of a block's cell lie one behind the other from `offset` on.
struct DiskEntry {
  BlockHash hash;
  Form form = Form::kKv;
  uint32_t group = 0;
  uint64_t offset = 0;
  friend bool operator==(const DiskEntry&, const DiskEntry&) = default;
};

struct DiskHeader {
  bool clean = false;       // closed in order: the index of this generation is whole
  uint64_t generation = 0;  // one more at each opening
  uint64_t bytes = 0;       // of the tier
  std::string numerics_id;
  std::string model;
  std::string geometry;
  std::string index;  // the name of the index file, in the same directory
};

// kInvalidArgument: the strings do not fit into a block. Otherwise kDiskHeaderBlock bytes.
Result<std::vector<std::byte>> encode(const DiskHeader& header);
// kCorrupt: not a header, or a damaged one. kUnsupported: of another version.
Result<DiskHeader> decode(std::span<const std::byte> block);

// sums: the checksum of the piece that begins at each 4096 bytes of the tier; 0: none.
// Replaces the file atomically and flushes it. Only its owner may read it. kIo: that failed.
Status write_disk_index(const std::string& path, uint64_t generation, std::span<const DiskEntry> entries,
                        std::span<const uint64_t> sums);
// Fills `sums` (zeros before). kCorrupt, kNotFound, kIo: there is no index of that generation and of as many
// sums; `sums` may hold anything then.
Result<std::vector<DiskEntry>> read_disk_index(const std::string& path, uint64_t generation,
                                               std::span<uint64_t> sums);

}  // namespace kvasir
