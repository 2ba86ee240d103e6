#include "cache/tiers/disk_format.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>
#include <xxhash.h>

#include <cerrno>
#include <cstring>
#include <string_view>

#include "base/file.h"

namespace kvasir {
namespace {

constexpr uint64_t kHeaderMagic = 0x31564b524953564b;  // "KVSIRKV1"
constexpr uint64_t kIndexMagic = 0x3158444e4956524b;
constexpr uint32_t kVersion = 1;
constexpr uint64_t kAlign = 4096;
constexpr size_t kEntryBytes = 16 + 8 + 4 + 4;
constexpr size_t kSumBytes = 16;
constexpr size_t kIndexFixedBytes = 5 * 8 + 8;  // before the entries, and the checksum behind all

using Bytes = std::vector<std::byte>;

template <typename T>
void put(Bytes& out, T value) {
  const size_t at = out.size();
  out.resize(at + sizeof value);
  std::memcpy(out.data() + at, &value, sizeof value);
}

void put(Bytes& out, const std::string& text) {
  put(out, static_cast<uint32_t>(text.size()));
  const size_t at = out.size();
  out.resize(at + text.size());
  std::memcpy(out.data() + at, text.data(), text.size());
}

// Reads values one behind the other; past the end they are zeros and empty.
class Cursor {
 public:
  explicit Cursor(std::span<const std::byte> bytes) : left_(bytes) {}
  template <typename T>
  T get() {
    T value{};
    if (const auto from = take(sizeof value); !from.empty()) std::memcpy(&value, from.data(), sizeof value);
    return value;
  }
  std::string text() {
    const auto from = take(get<uint32_t>());
    return {reinterpret_cast<const char*>(from.data()), from.size()};
  }

 private:
  std::span<const std::byte> take(size_t n) {
    if (n > left_.size()) {
      left_ = {};
      return {};
    }
    const auto taken = left_.first(n);
    left_ = left_.subspan(n);
    return taken;
  }
  std::span<const std::byte> left_;
};

uint64_t last_word(std::span<const std::byte> bytes) {
  uint64_t word = 0;
  std::memcpy(&word, bytes.last(sizeof word).data(), sizeof word);
  return word;
}

Result<Bytes> read_whole(const std::string& path, uint64_t at_most) {
  const FileDescriptor file(::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK));
  if (file.get() < 0) {
    return error(errno == ENOENT ? ErrorCode::kNotFound : ErrorCode::kIo, "{}: cannot open the index: {}",
                 path, system_reason(errno));
  }
  struct stat info = {};
  if (::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode) ||
      static_cast<uint64_t>(info.st_size) > at_most) {
    return error(ErrorCode::kCorrupt, "{}: this is no index of this file", path);
  }
  Bytes bytes(static_cast<size_t>(info.st_size));
  for (size_t have = 0; have < bytes.size();) {
    const ssize_t n = ::read(file.get(), bytes.data() + have, bytes.size() - have);
    if (n < 0 && errno == EINTR) continue;
    if (n < 0) return error(ErrorCode::kIo, "{}: cannot read the index: {}", path, system_reason(errno));
    if (n == 0) return error(ErrorCode::kCorrupt, "{}: the index was cut short while it was read", path);
    have += static_cast<size_t>(n);
  }
  return bytes;
}

}  // namespace

Result<std::vector<std::byte>> encode(const DiskHeader& header) {
  Bytes out;
  put(out, kHeaderMagic);
  put(out, kVersion);
  put(out, uint32_t{header.clean});
  put(out, header.generation);
  put(out, header.bytes);
  for (const std::string* text : {&header.numerics_id, &header.model, &header.geometry, &header.index}) {
    put(out, *text);
  }
  if (out.size() > kDiskHeaderBlock - sizeof(uint64_t)) {
    return error(ErrorCode::kInvalidArgument,
                 "the disk tier: numerics id, model and geometry take {} bytes, more than a header holds",
                 out.size());
  }
  out.resize(kDiskHeaderBlock - sizeof(uint64_t));
  put(out, XXH3_64bits(out.data(), out.size()));
  return out;
}

Result<DiskHeader> decode(std::span<const std::byte> block) {
  if (block.size() != kDiskHeaderBlock) return error(ErrorCode::kCorrupt, "it has no header");
  Cursor in(block);
  if (in.get<uint64_t>() != kHeaderMagic) return error(ErrorCode::kCorrupt, "it has no header");
  if (const auto version = in.get<uint32_t>(); version != kVersion) {
    return error(ErrorCode::kUnsupported, "its format is version {}, not {}", version, kVersion);
  }
  if (XXH3_64bits(block.data(), block.size() - sizeof(uint64_t)) != last_word(block)) {
    return error(ErrorCode::kCorrupt, "its header is damaged");
  }
  DiskHeader header;
  header.clean = in.get<uint32_t>() == 1;
  header.generation = in.get<uint64_t>();
  header.bytes = in.get<uint64_t>();
  for (std::string* text : {&header.numerics_id, &header.model, &header.geometry, &header.index}) {
    *text = in.text();
  }
  return header;
}

Status write_disk_index(const std::string& path, uint64_t generation, std::span<const DiskEntry> entries,
                        std::span<const uint64_t> sums) {
  uint64_t pieces = 0;
  for (uint64_t sum : sums) pieces += sum != 0;
  Bytes out;
  out.reserve(kIndexFixedBytes + entries.size() * kEntryBytes + pieces * kSumBytes);
  put(out, kIndexMagic);
  put(out, generation);
  put(out, uint64_t{sums.size()});
  put(out, uint64_t{entries.size()});
  put(out, pieces);
  for (const DiskEntry& e : entries) {
    put(out, e.hash.words[0]);
    put(out, e.hash.words[1]);
    put(out, e.offset);
    put(out, e.group);
    put(out, static_cast<uint32_t>(e.form));
  }
  for (size_t i = 0; i < sums.size(); ++i) {
    if (sums[i] == 0) continue;
    put(out, uint64_t{i});
    put(out, sums[i]);
  }
  put(out, XXH3_64bits(out.data(), out.size()));

  const Status status = replace_file(path, out, 0600);
  if (status.ok()) return {};
  return error(status.code(), "cannot write the index, so the disk tier starts empty next time: {}",
               status.message());
}

Result<std::vector<DiskEntry>> read_disk_index(const std::string& path, uint64_t generation,
                                               std::span<uint64_t> sums) {
  const auto most = kIndexFixedBytes + sums.size() * (kEntryBytes + kSumBytes);
  KV_ASSIGN_OR_RETURN(const Bytes bytes, read_whole(path, most));
  const Status damaged = error(ErrorCode::kCorrupt, "{}: the index is damaged", path);
  if (bytes.size() < kIndexFixedBytes) return damaged;
  const size_t summed = bytes.size() - sizeof(uint64_t);
  if (XXH3_64bits(bytes.data(), summed) != last_word(bytes)) return damaged;
  Cursor in(bytes);
  if (in.get<uint64_t>() != kIndexMagic) return damaged;
  if (in.get<uint64_t>() != generation) {
    return error(ErrorCode::kCorrupt, "{}: the index is of another run", path);
  }
  const auto slots = in.get<uint64_t>();
  const auto count = in.get<uint64_t>();
  const auto pieces = in.get<uint64_t>();
  if (slots != sums.size() || count > slots || pieces > slots ||
      bytes.size() != kIndexFixedBytes + count * kEntryBytes + pieces * kSumBytes) {
    return damaged;
  }
  std::vector<DiskEntry> entries(count);
  for (DiskEntry& e : entries) {
    e.hash.words[0] = in.get<uint64_t>();
    e.hash.words[1] = in.get<uint64_t>();
    e.offset = in.get<uint64_t>();
    e.group = in.get<uint32_t>();
    const auto form = in.get<uint32_t>();
    if (form >= kForms || e.offset % kAlign != 0 || e.offset / kAlign >= slots) return damaged;
    e.form = static_cast<Form>(form);
  }
  for (uint64_t i = 0; i < pieces; ++i) {
    const auto slot = in.get<uint64_t>();
    if (slot >= slots) return damaged;
    sums[slot] = in.get<uint64_t>();
  }
  return entries;
}

}  // namespace kvasir
