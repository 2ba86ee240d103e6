// The disk tier beside fio: how fast pieces of some sizes go through the link to the disk and back, and how
// fast the same disk is for a program that does nothing else (fio, if it is installed: the same directory,
// sizes, depth and direct=1), in turns, each at its best.
//
//   disk_speed --dir DIR [--bytes N] [--depth N] [--seconds S] [--repeats N] [--sizes KIB,...]
//
// Pieces are in random order, as extents of a cache are. In "sequential" lines they follow each other.
#include <fmt/core.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <numeric>
#include <string>
#include <vector>

#include "base/check.h"
#include "base/random.h"
#include "base/units.h"
#include "cache/tiers/memory_link.h"

namespace kvasir::bench {
namespace {

constexpr Nanos kLong = 1000 * kNanosPerSecond;

struct Options {
  std::string directory;
  std::string bytes = "2GiB";
  int depth = 32;
  double seconds = 3;
  int repeats = 3;
  std::vector<uint64_t> kib = {24, 98, 1024};
};

struct Case {
  uint64_t piece_bytes;  // what a piece takes on the disk
  bool writes;
  bool random;
};

// A link over some memory and a file of its own in the directory.
class Ours {
 public:
  Ours(const Options& o, uint64_t bytes)
      : bytes_(bytes),
        queued_(2 * static_cast<uint64_t>(o.depth)),
        memory_(64 * kMiB, std::byte{1}),
        unaligned_(std::span(memory_).subspan(16)) {
    Random random(1);
    for (size_t i = 0; i + 8 <= memory_.size(); i += 8) {
      const uint64_t word = random.bits();
      std::memcpy(&memory_[i], &word, sizeof word);
    }
    DiskFileOptions options;
    options.directory = o.directory;
    options.bytes = bytes;
    options.max_piece_bytes = kMiB;
    options.queue_depth = o.depth;
    Result<std::unique_ptr<DiskFile>> file = DiskFile::open(options);
    if (!file.ok()) {
      fmt::print(stderr, "disk_speed: {}\n", file.status().message());
      std::exit(1);
    }
    file_ = *std::move(file);
    path_ = file_->path();
    MemoryLinkOptions link;
    link.memory = {unaligned_, {}, {}};
    link.disk = file_.get();
    link_ = std::make_unique<MemoryLink>(link, clock_);
  }
  ~Ours() {
    link_.reset();
    file_.reset();
    ::unlink(path_.c_str());
  }

  // GB/s of piece after piece for about this long; twice as many are queued as the device has.
  double run(const Case& c, double seconds) {
    const uint64_t pieces = bytes_ / c.piece_bytes;
    std::vector<uint64_t> order(pieces);
    std::iota(order.begin(), order.end(), 0);
    for (uint64_t i = pieces; c.random && i > 1; --i) std::swap(order[i - 1], order[random_.below(i)]);
    const LinkStats before = link_->stats();
    const uint64_t first = next_;
    const Nanos begin = clock_.now();
    const Nanos until = begin + from_seconds(seconds);
    for (uint64_t i = 0; clock_.now() < until; ++i) {
      if (i >= queued_) wait(next_ - queued_);
      start(c, order[i % pieces]);
    }
    wait_for_all();
    const double took = to_seconds(clock_.now() - begin);
    cpu_share_ = (link_->stats().cpu_s - before.cpu_s) / took;
    return static_cast<double>((next_ - first) * c.piece_bytes) / took * 1e-9;
  }
  // Writes every piece of this size once, so that it can be read.
  void fill(uint64_t piece_bytes) {
    for (uint64_t i = 0; i < bytes_ / piece_bytes; ++i) {
      if (i >= queued_) wait(next_ - queued_);
      start({piece_bytes, true, false}, i);
    }
    wait_for_all();
  }
  double cpu_share() const { return cpu_share_; }

 private:
  void start(const Case& c, uint64_t piece) {
    const uint64_t slots = unaligned_.size() / c.piece_bytes;
    const MemoryAddress memory{piece % slots * c.piece_bytes, Tier::kDevice};
    const MemoryAddress disk{piece * c.piece_bytes, Tier::kDisk};
    Segment s{disk, memory, c.piece_bytes};
    if (c.writes) std::swap(s.from, s.to);
    link_->start({TransferId{next_++}, TransferPriority::kPrefetch, {}, {s}});
  }
  void wait(uint64_t n) {
    const bool done = link_->wait(TransferId{n}, kLong) == TransferState::kDone;
    if (done) return;
    for (const TransferDone& d : link_->completed()) {
      if (!d.status.ok()) fmt::print(stderr, "disk_speed: {}\n", d.status.message());
    }
    std::exit(1);
  }

  void wait_for_all() {
    for (uint64_t n = next_ - std::min(next_ - 1, queued_); n < next_; ++n) wait(n);
    link_->completed();
  }

  const uint64_t bytes_;
  const uint64_t queued_;
  std::vector<std::byte> memory_;
  std::span<std::byte> unaligned_;
  MonotonicClock clock_;
  std::string path_;
  std::unique_ptr<DiskFile> file_;
  std::unique_ptr<MemoryLink> link_;
  Random random_{5};
  uint64_t next_ = 1;
  double cpu_share_ = 0;
};

bool have_fio() {
  return std::system("fio --version >/dev/null 2>&1") == 0;  // NOLINT(cert-env33-c): the PATH is the user's
}

// GB/s, for so long, or, if that is 0, of the whole file once. 0 if fio fails, whose own words are on
// standard error then.
double run_fio(const Options& o, const std::string& file, uint64_t bytes, const Case& c, double seconds) {
  const char* kind = c.random ? (c.writes ? "randwrite" : "randread") : (c.writes ? "write" : "read");
  const std::string command = fmt::format(
      "fio --name=kvasir --filename='{}' --size={} --bs={} --rw={} --ioengine=io_uring --iodepth={} "
      "--direct=1 "
      "{} --randrepeat=1 --norandommap --output-format=json",
      file, bytes / c.piece_bytes * c.piece_bytes, c.piece_bytes, kind, o.depth,
      seconds > 0 ? fmt::format("--time_based --runtime={}", seconds) : "");
  FILE* pipe = ::popen(command.c_str(), "r");  // NOLINT(cert-env33-c)
  if (!pipe) return 0;
  std::string text;
  char buffer[4096];
  while (const size_t n = std::fread(buffer, 1, sizeof buffer, pipe)) text.append(buffer, n);
  ::pclose(pipe);
  const auto json = nlohmann::json::parse(text.substr(std::min(text.find('{'), text.size())), nullptr, false);
  if (json.is_discarded()) return 0;
  return json["jobs"][0][c.writes ? "write" : "read"]["bw_bytes"].get<double>() * 1e-9;
}

int run(const Options& o) {
  const Result<uint64_t> wanted = parse_bytes(o.bytes);
  if (!wanted.ok()) {
    fmt::print(stderr, "disk_speed: {}\n", wanted.status().message());
    return 1;
  }
  const uint64_t bytes = wanted.value();
  const bool fio = have_fio();
  const std::string fio_file = o.directory + "/kvasir-fio.data";
  Ours ours(o, bytes);
  fmt::print("{} in {}, {} pieces in flight, the best of {} times {} s; GB/s\n", format_bytes(bytes),
             o.directory, o.depth, o.repeats, o.seconds);
  if (!fio) fmt::print("fio is not installed (Debian: fio), so there is nothing to measure beside.\n");
  fmt::print("{:>8} {:>10} {:>6} {:>8} {:>8} {:>7} {:>10}\n", "piece", "order", "", "ours", "fio", "ratio",
             "our CPU %");
  for (uint64_t kib : o.kib) {
    const uint64_t piece = round_up(kib * kKiB, kDiskAlign);
    ours.fill(piece);
    if (fio) run_fio(o, fio_file, bytes, {kMiB, true, false}, 0);  // so that reads find bytes
    for (bool random : {true, false}) {
      for (bool writes : {true, false}) {
        const Case c{piece, writes, random};
        double best = 0;
        double best_fio = 0;
        double cpu = 0;
        for (int i = 0; i < o.repeats; ++i) {
          const double now = ours.run(c, o.seconds);
          if (now > best) cpu = ours.cpu_share();
          best = std::max(best, now);
          if (fio) best_fio = std::max(best_fio, run_fio(o, fio_file, bytes, c, o.seconds));
        }
        fmt::print("{:>4} KiB {:>10} {:>6} {:>8.3f} {:>8.3f} {:>7} {:>10.0f}\n", piece / kKiB,
                   random ? "random" : "sequential", writes ? "write" : "read", best, best_fio,
                   best_fio > 0 ? fmt::format("{:.2f}", best / best_fio) : "-", 100 * cpu);
        std::fflush(stdout);
      }
    }
  }
  ::unlink(fio_file.c_str());
  return 0;
}

}  // namespace
}  // namespace kvasir::bench

int main(int argc, char** argv) {
  kvasir::bench::Options options;
  CLI::App app("Measures the disk tier's link beside fio, on a directory of a real disk.");
  app.add_option("--dir", options.directory, "Where the files are made, and deleted at the end")->required();
  app.add_option("--bytes", options.bytes, "Size of the tier, such as 2GiB");
  app.add_option("--depth", options.depth, "Pieces in flight")->check(CLI::Range(1, 1024));
  app.add_option("--seconds", options.seconds, "Of each measurement")->check(CLI::Range(0.1, 600.0));
  app.add_option("--repeats", options.repeats, "Measurements of each kind")->check(CLI::Range(1, 100));
  app.add_option("--sizes", options.kib, "Of pieces, in KiB")->delimiter(',')->check(CLI::Range(4, 1024));
  CLI11_PARSE(app, argc, argv);
  return kvasir::bench::run(options);
}
