#include <fmt/format.h>
#include <stdlib.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>

#include "apps/profile/measure.h"
#include "base/units.h"
#include "cache/tiers/disk_file.h"
#include "cache/tiers/memory_link.h"
#include "runtime/serving_device.h"

namespace kvasir {
namespace {

constexpr uint64_t kDiskBytes = 64 * kMiB;  // of the file
constexpr Nanos kPatience = 20 * kNanosPerSecond;
constexpr int kFewestRuns = 3;

// A folder that is removed, with its contents, at the end.
class ScratchFolder {
 public:
  static Result<std::unique_ptr<ScratchFolder>> make(const std::string& parent) {
    std::string path = parent + "/kvasir-profile-XXXXXX";
    if (!mkdtemp(path.data())) {
      return error(ErrorCode::kIo, "--kv-offloading-dir {}: no folder can be made in it", parent);
    }
    return std::unique_ptr<ScratchFolder>(new ScratchFolder(path));
  }
  ~ScratchFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  const std::string& path() const { return path_; }

 private:
  explicit ScratchFolder(std::string path) : path_(std::move(path)) {}
  const std::string path_;
};

class LinkMachine {
 public:
  LinkMachine(MemoryLink& link, const MonotonicClock& clock, uint64_t piece)
      : link_(link), clock_(clock), piece_(piece) {}

  // Seconds of a transfer, from its start until its end is seen.
  Result<double> run(Tier from, Tier to, uint64_t bytes) {
    Transfer t;
    t.id = TransferId{++transfers_};
    t.priority = TransferPriority::kNeededNow;
    // On a disk each piece is a segment of its own.
    const bool disk = from == Tier::kDisk || to == Tier::kDisk;
    const uint64_t piece = disk ? piece_ : bytes;
    for (uint64_t at = 0; at < bytes; at += piece) t.segments.push_back({{at, from}, {at, to}, piece});
    const Nanos begin = clock_.now();
    link_.start(std::move(t));
    const TransferState state = link_.wait(TransferId{transfers_}, kPatience);
    const Nanos took = clock_.now() - begin;
    (void)link_.completed();
    if (state != TransferState::kDone) {
      return error(ErrorCode::kIo, "a transfer of {} from {} to {} did not end", format_bytes(bytes),
                   name(from), name(to));
    }
    return to_seconds(took);
  }

 private:
  MemoryLink& link_;
  const MonotonicClock& clock_;
  const uint64_t piece_;
  uint64_t transfers_ = 0;
};

struct Direction {
  ProfiledTransfer shown;
  std::vector<uint64_t> sizes;
  std::vector<std::vector<double>> seconds;  // by size
};

Direction direction(Tier from, Tier to, std::vector<uint64_t> sizes) {
  Direction d;
  d.shown.from = from;
  d.shown.to = to;
  d.seconds.resize(sizes.size());
  d.sizes = std::move(sizes);
  return d;
}

// Runs every size in turn until the deadline. Writes come first, because only what was written to the disk
// can be read.
Status run_all(LinkMachine& machine, std::vector<Direction>& all, const MonotonicClock& clock,
               Nanos deadline) {
  for (int round = 0; round < kFewestRuns || (round < 200 && clock.now() < deadline); ++round) {
    for (Direction& d : all) {
      for (size_t i = 0; i < d.sizes.size(); ++i) {
        if (round >= 1 && clock.now() > deadline) break;
        KV_ASSIGN_OR_RETURN(const double seconds, machine.run(d.shown.from, d.shown.to, d.sizes[i]));
        // The first round touches pages and buffers for the first time.
        if (round == 0) d.seconds[i].clear();
        d.seconds[i].push_back(seconds);
        if (round == 1) d.seconds[i].erase(d.seconds[i].begin());
      }
    }
  }
  return {};
}

}  // namespace

Result<std::vector<ProfiledTransfer>> measure_links(const Subject& subject, const MonotonicClock& clock,
                                                    Nanos deadline) {
  const RuntimeOptions& options = subject.options;
  ServingDevice& device = *subject.device;
  std::vector<ProfiledTransfer> out;
  const bool host = options.kv_offloading_bytes > 0, disk = options.kv_offloading_disk_bytes > 0;
  if (!host && !disk) return out;
  const uint64_t memory = std::min(device.device_tier().size(), device.host_tier().size());
  const uint64_t piece = round_up(subject.layout.largest_piece_bytes(), kDiskAlign);
  MemoryLinkOptions o = link_options(options, device);
  std::unique_ptr<ScratchFolder> folder;
  std::unique_ptr<DiskFile> file;
  if (disk) {
    KV_ASSIGN_OR_RETURN(folder, ScratchFolder::make(options.kv_offloading_dir));
    DiskFileOptions made;
    made.directory = folder->path();
    made.bytes = std::min(kDiskBytes, options.kv_offloading_disk_bytes);
    made.numerics_id = made.model = made.geometry = "profile";
    made.max_piece_bytes = piece;
    KV_ASSIGN_OR_RETURN(file, DiskFile::open(std::move(made)));
    o.disk = file.get();
    KV_ASSIGN_OR_RETURN(o.disk_buffers, device.disk_buffers(file->buffer_bytes()));
  }
  MemoryLink link(std::move(o), clock);
  LinkMachine machine(link, clock, piece);
  std::vector<Direction> all;
  if (host) {
    std::vector<uint64_t> sizes = {16 * kKiB, 256 * kKiB, 2 * kMiB, 16 * kMiB};
    std::erase_if(sizes, [&](uint64_t size) { return size > memory; });
    all.push_back(direction(Tier::kDevice, Tier::kHost, sizes));
    all.push_back(direction(Tier::kHost, Tier::kDevice, sizes));
  }
  if (disk) {
    std::vector<uint64_t> sizes;
    for (uint64_t pieces : {1, 4, 16, 64}) {
      if (pieces * piece <= std::min(file->bytes(), memory)) sizes.push_back(pieces * piece);
    }
    all.push_back(direction(Tier::kDevice, Tier::kDisk, sizes));
    all.push_back(direction(Tier::kDisk, Tier::kDevice, sizes));
  }
  KV_RETURN_IF_ERROR(run_all(machine, all, clock, deadline));
  for (Direction& d : all) {
    for (size_t i = 0; i < d.sizes.size(); ++i) {
      std::vector<double>& s = d.seconds[i];
      std::sort(s.begin(), s.end());
      d.shown.seen.push_back({static_cast<double>(d.sizes[i]), s[s.size() / 2]});
    }
    out.push_back(std::move(d.shown));
  }
  return out;
}

}  // namespace kvasir
