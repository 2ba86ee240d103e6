#include "cluster/memory/data_wire.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

namespace kvasir {
namespace {

static_assert(std::endian::native == std::endian::little, "numbers are copied as they are");

constexpr uint32_t kDataMagic = 0x3244564b;  // "KVD2"
constexpr size_t kAttendFixedBytes = 32;
constexpr size_t kLeafRunBytes = 8;
// Cells on the wire: contract, count, form; then first and stride, or each by itself.
constexpr size_t kCellGroupBytes = 16;
constexpr size_t kSteppedBytes = 8;
constexpr size_t kListedBytes = 4;
enum CellForm : uint32_t { kStepped = 0, kListed = 1 };
// Runs up to this length are not longer as a list, and join the list before them.
constexpr uint32_t kLongestListedRun = 6;

class DataWriter {
 public:
  // bytes: of all that will be put and appended.
  // With room for the byte by which its sender marks it.
  explicit DataWriter(size_t bytes) { bytes_.reserve(bytes + 1); }
  template <typename T>
  void put(T value) {
    const auto* from = reinterpret_cast<const std::byte*>(&value);
    bytes_.insert(bytes_.end(), from, from + sizeof(T));
  }
  std::vector<std::byte> take() { return std::move(bytes_); }

 private:
  std::vector<std::byte> bytes_;
};

class DataReader {
 public:
  explicit DataReader(std::span<const std::byte> bytes) : bytes_(bytes) {}
  size_t left() const { return bytes_.size(); }
  // REQUIRES: left() >= sizeof(T)
  template <typename T>
  T get() {
    T value;
    std::memcpy(&value, bytes_.data(), sizeof(T));
    bytes_ = bytes_.subspan(sizeof(T));
    return value;
  }
  std::span<const std::byte> rest() const { return bytes_; }

 private:
  std::span<const std::byte> bytes_;
};

void put_header(DataWriter& out, const DataHeader& header) {
  out.put(kDataMagic);
  out.put(static_cast<uint8_t>(header.kind));
  out.put(static_cast<uint8_t>(header.code));
  out.put(uint16_t{0});
  out.put(header.sequence);
  out.put(header.debtor_epoch);
  out.put(header.creditor_epoch);
  out.put(header.span_ns);
  out.put(header.waited_ns);
}

// Groups of runs that go as one: visit(runs, cells). A long run is a group of its own.
template <typename Visit>
void for_each_group(std::span<const CellRun> runs, Visit visit) {
  for (size_t begin = 0; begin < runs.size();) {
    uint32_t cells = runs[begin].count;
    size_t end = begin + 1;
    if (cells <= kLongestListedRun) {
      for (; end < runs.size() && runs[end].contract == runs[begin].contract; ++end) {
        if (runs[end].count > kLongestListedRun) break;
        cells += runs[end].count;
      }
    }
    visit(runs.subspan(begin, end - begin), cells);
    begin = end;
  }
}

bool is_listed(std::span<const CellRun> group) {
  return group.front().count <= kLongestListedRun;
}

void put_group(DataWriter& out, std::span<const CellRun> group, uint32_t cells) {
  out.put(group.front().contract);
  out.put(cells);
  if (!is_listed(group)) {
    out.put(uint32_t{kStepped});
    out.put(group.front().first);
    out.put(group.front().stride);
    return;
  }
  out.put(uint32_t{kListed});
  for (const CellRun& run : group) {
    for (uint32_t i = 0; i < run.count; ++i) out.put(run.first + run.stride * i);
  }
}

bool get_group(DataReader& in, std::vector<CellRun>& cells) {
  if (in.left() < kCellGroupBytes) return false;
  const auto contract = in.get<uint64_t>();
  const auto count = in.get<uint32_t>();
  const auto form = in.get<uint32_t>();
  if (count == 0) return false;
  if (form == kStepped) {
    if (in.left() < kSteppedBytes) return false;
    const auto first = in.get<uint32_t>();
    cells.push_back({contract, first, in.get<uint32_t>(), count});
    return true;
  }
  if (form != kListed || in.left() < uint64_t{count} * kListedBytes) return false;
  for (uint32_t i = 0; i < count; ++i) append_cell(cells, contract, in.get<uint32_t>());
  return true;
}

DataReader behind_header(std::span<const std::byte> message) {
  return DataReader(message.subspan(std::min(message.size(), kDataHeaderBytes)));
}

}  // namespace

void append_cell(std::vector<CellRun>& runs, uint64_t contract, uint32_t index) {
  if (!runs.empty() && runs.back().contract == contract) {
    CellRun& last = runs.back();
    if (last.count == 1) {
      last.stride = index - last.first;
      last.count = 2;
      return;
    }
    if (index == last.first + last.stride * last.count) {
      ++last.count;
      return;
    }
  }
  runs.push_back({contract, index, 0, 1});
}

size_t cell_list_bytes(std::span<const CellRun> cells) {
  size_t bytes = 0;
  for_each_group(cells, [&](std::span<const CellRun> group, uint32_t count) {
    bytes += kCellGroupBytes + (is_listed(group) ? count * kListedBytes : kSteppedBytes);
  });
  return bytes;
}

size_t attend_body_bytes(const AttendBody& body) {
  return kAttendFixedBytes + body.runs.size() * kLeafRunBytes + cell_list_bytes(body.cells);
}

std::vector<std::byte> make_copy_message(const DataHeader& header, const CellSpan& at,
                                         uint64_t payload_bytes) {
  DataWriter out(kDataHeaderBytes + kCellSpanBytes + payload_bytes);
  put_header(out, header);
  out.put(at.contract);
  out.put(at.index);
  out.put(uint32_t{0});
  out.put(at.offset);
  out.put(at.bytes);
  return out.take();
}

std::vector<std::byte> make_attend_message(const DataHeader& header, const AttendBody& body,
                                           uint64_t payload_bytes) {
  DataWriter out(kDataHeaderBytes + attend_body_bytes(body) + payload_bytes);
  put_header(out, header);
  out.put(body.layer);
  out.put(body.rows);
  out.put(static_cast<uint32_t>(body.runs.size()));
  uint32_t groups = 0;
  for_each_group(body.cells, [&](std::span<const CellRun>, uint32_t) { ++groups; });
  out.put(groups);
  out.put(body.table);
  out.put(body.known);
  out.put(uint32_t{0});
  for (const LeafRun& run : body.runs) {
    out.put(run.first);
    out.put(run.end);
  }
  for_each_group(body.cells,
                 [&](std::span<const CellRun> group, uint32_t cells) { put_group(out, group, cells); });
  return out.take();
}

std::vector<std::byte> make_reply(const DataHeader& header, uint64_t payload_bytes) {
  DataWriter out(kDataHeaderBytes + payload_bytes);
  put_header(out, header);
  return out.take();
}

std::optional<DataHeader> parse_header(std::span<const std::byte> message) {
  if (message.size() < kDataHeaderBytes) return std::nullopt;
  DataReader in(message);
  if (in.get<uint32_t>() != kDataMagic) return std::nullopt;
  const auto kind = in.get<uint8_t>();
  const auto code = in.get<uint8_t>();
  if (kind < static_cast<uint8_t>(DataKind::kWrite) || kind > static_cast<uint8_t>(DataKind::kReply)) {
    return std::nullopt;
  }
  if (code > static_cast<uint8_t>(kLastDataCode) || in.get<uint16_t>() != 0) return std::nullopt;
  DataHeader header;
  header.kind = static_cast<DataKind>(kind);
  header.code = static_cast<DataCode>(code);
  header.sequence = in.get<uint64_t>();
  header.debtor_epoch = in.get<uint64_t>();
  header.creditor_epoch = in.get<uint64_t>();
  header.span_ns = in.get<uint64_t>();
  header.waited_ns = in.get<uint64_t>();
  return header;
}

void set_header(std::vector<std::byte>& message, const DataHeader& header) {
  DataWriter out(kDataHeaderBytes);
  put_header(out, header);
  const std::vector<std::byte> bytes = out.take();
  std::copy(bytes.begin(), bytes.end(), message.begin());
}

void append_bytes(std::vector<std::byte>& message, std::span<const std::byte> payload) {
  message.insert(message.end(), payload.begin(), payload.end());
}

bool is_reply(std::span<const std::byte> message) {
  const auto header = parse_header(message);
  return header && header->kind == DataKind::kReply;
}

bool parse_copy(std::span<const std::byte> message, CellSpan& at, std::span<const std::byte>& payload) {
  DataReader in = behind_header(message);
  if (in.left() < kCellSpanBytes) return false;
  at.contract = in.get<uint64_t>();
  at.index = in.get<uint32_t>();
  if (in.get<uint32_t>() != 0) return false;
  at.offset = in.get<uint64_t>();
  at.bytes = in.get<uint64_t>();
  payload = in.rest();
  return true;
}

bool parse_attend(std::span<const std::byte> message, AttendBody& body, std::span<const std::byte>& payload) {
  DataReader in = behind_header(message);
  if (in.left() < kAttendFixedBytes) return false;
  body.layer = in.get<uint32_t>();
  body.rows = in.get<uint32_t>();
  const auto runs = in.get<uint32_t>();
  const auto groups = in.get<uint32_t>();
  body.table = in.get<uint64_t>();
  body.known = in.get<uint32_t>();
  if (in.get<uint32_t>() != 0) return false;
  if (in.left() < uint64_t{runs} * kLeafRunBytes + uint64_t{groups} * kCellGroupBytes) return false;
  body.runs.resize(runs);
  for (LeafRun& run : body.runs) {
    run.first = in.get<uint32_t>();
    run.end = in.get<uint32_t>();
  }
  body.cells.clear();
  for (uint32_t g = 0; g < groups; ++g) {
    if (!get_group(in, body.cells)) return false;
  }
  payload = in.rest();
  return true;
}

}  // namespace kvasir
