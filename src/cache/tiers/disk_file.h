// The file of the disk tier: its header, its index, and the checksums of its pieces.
//
//   DIR/kvasir-kv.data    header (1 MiB) | the tier's bytes, preallocated
//   DIR/kvasir-kv.index   which copies they hold and the checksums of their pieces, written at shutdown
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "base/status.h"
#include "base/units.h"
#include "cache/tiers/disk_format.h"
#include "cache/tiers/disk_io.h"
#include "contract/geometry.h"
#include "contract/link.h"

namespace kvasir {

// Pieces begin at a multiple of this and are padded to one: O_DIRECT needs no more on any disk in use.
constexpr uint64_t kDiskAlign = CacheGeometry::kDiskAlignment;

struct DiskFileOptions {
  std::string directory;    // exists
  uint64_t bytes = 0;       // of the tier, rounded down to a multiple of kDiskAlign
  std::string numerics_id;  // a file of another numerics id, model or geometry starts empty
  std::string model;        // the fingerprint
  std::string geometry;     // everything that determines the size and layout of pieces; not interpreted
  uint64_t max_piece_bytes = 0;
  int queue_depth = 32;           // most reads and writes in flight
  MakeDiskIo io = make_uring_io;  // tests put a fake here
};

// Every piece has a 64-bit checksum (XXH3, seeded with the piece's offset, which also detects bytes of
// another place). Checksums are in memory, 8 bytes for each kDiskAlign of the tier. A piece that does not
// match its checksum is not used.
//
// Not thread-safe, except for stats(). One thread at a time begins and ends pieces: the link's for the disk.
class DiskFile {
 public:
  // Takes over the file in the directory if it was closed in order by a server with the same ids, geometry
  // and size; else it is empty, and a log line says why. Either way it counts as not closed in order from now
  // on. Where the file system refuses O_DIRECT, which a log line says, bytes go through the page cache.
  // kNotFound, kIo: the directory is missing, or cannot be written. kExhausted: no room on the disk.
  // kUnavailable: another server has the file. kUnsupported: no io_uring. kInvalidArgument: options.
  static Result<std::unique_ptr<DiskFile>> open(DiskFileOptions options);
  // REQUIRES: nothing is in flight
  ~DiskFile();
  DiskFile(const DiskFile&) = delete;
  DiskFile& operator=(const DiskFile&) = delete;

  uint64_t bytes() const { return options_.bytes; }
  uint64_t max_piece_bytes() const { return options_.max_piece_bytes; }
  int queue_depth() const { return options_.queue_depth; }
  const std::string& path() const { return path_; }
  bool direct() const { return direct_; }
  // The main memory of the buffers for pieces in flight.
  uint64_t buffer_bytes() const {
    return static_cast<uint64_t>(options_.queue_depth) * round_up(options_.max_piece_bytes, kDiskAlign);
  }
  // The main memory of the checksums of a tier with `bytes` bytes.
  static uint64_t checksum_bytes(uint64_t bytes) { return bytes / kDiskAlign * sizeof(uint64_t); }

  // The copies that the file held when it was opened. Empty at the second call, and if it was not taken over.
  std::vector<DiskEntry> load() { return std::exchange(loaded_, {}); }
  // At shutdown: writes the index, and marks the file as closed in order. Leaves out entries whose first
  // piece was never written, or not whole. After a failure, or if a piece is written later, the file starts
  // empty next time. REQUIRES: nothing is in flight
  Status save(std::span<const DiskEntry> entries);

  DiskStats stats() const;

  // --- Reading and writing pieces, for the link.
  DiskIo& io() { return *io_; }
  // The place in the file of the tier's byte `offset`.
  static uint64_t place_of(uint64_t offset);
  // Whether a piece lies within the tier, and is aligned.
  bool has_place_for(uint64_t offset, uint64_t bytes) const;
  // Until the write ends, the piece and any other that overlaps it cannot be read.
  void begin_write(uint64_t offset, uint64_t bytes);
  // result: the completion's. kUnavailable: the piece was not written.
  Status end_write(uint64_t offset, uint64_t checksum, uint64_t bytes, int64_t result);
  // kCorrupt: its bytes could not be read, or are not those that were written. They count as lost.
  Status end_read(uint64_t offset, std::span<const std::byte> piece, int64_t result);
  static uint64_t checksum(uint64_t offset, std::span<const std::byte> piece);

 private:
  DiskFile(DiskFileOptions options, std::string directory);
  Status prepare();
  Status open_file();
  Status check_room() const;
  Status no_room(uint64_t available) const;
  Status allocate();
  void take_over();
  Status write_header(bool clean);
  Status write_block(std::span<const std::byte> block);
  uint64_t file_bytes() const { return place_of(options_.bytes); }
  uint64_t& sum_at(uint64_t offset) { return sums_[offset / kDiskAlign]; }

  const DiskFileOptions options_;
  const std::string path_;
  const std::string index_path_;
  int fd_ = -1;
  bool direct_ = false;
  bool is_new_ = false;
  bool clean_ = false;       // what the header says
  uint64_t generation_ = 0;  // of the header; an index belongs to one
  std::unique_ptr<DiskIo> io_;
  std::vector<uint64_t> sums_;  // by kDiskAlign; 0: no piece begins there
  std::vector<DiskEntry> loaded_;

  struct Counters {
    std::atomic<uint64_t> reads{0}, writes{0}, read_bytes{0}, written_bytes{0}, read_errors{0},
        short_reads{0}, checksum_mismatches{0}, write_errors{0};
  };
  Counters counters_;
};

}  // namespace kvasir
