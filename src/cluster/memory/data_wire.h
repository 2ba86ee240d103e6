// The messages between a debtor and its creditor about bytes that are lent: a fixed header, a small body, and
// the payload (K and V, queries or partial records) in its layout in memory, so that each side copies it
// once.
//
//   header (48 bytes) | write, read: a CellSpan | attend: layer, rows, table, leaf runs, cells | payload
//
// Numbers are little-endian. A parser never reads beyond the given bytes, whatever their content; what it
// returns points into them. Pure functions.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "base/units.h"
#include "cluster/memory/memory_shape.h"

namespace kvasir {

// A query beyond these is malformed.
constexpr uint32_t kMaxQueryRows = 4096;
constexpr uint32_t kMaxQueryLeaves = 65536;
constexpr uint64_t kMaxReplyBytes = 64 * kMiB;

enum class DataKind : uint8_t { kWrite = 1, kRead = 2, kAttend = 3, kReply = 4 };

enum class DataCode : uint8_t {
  kOk = 0,
  kMalformed = 1,   // contradicts itself or our shape
  kStaleEpoch = 2,  // meant for, or sent by, another life of an instance
  kNoCell = 3,      // the contract lends no such cell, or not any more
  kBusy = 4,        // a query: no compute now, so fetch; a copy: too much waits, so send it again
  kTooLate = 5,     // waited longer than the debtor would
  kNoTable = 6,     // a query refers to more of a table of cells than the creditor has: send the cells
};
constexpr DataCode kLastDataCode = DataCode::kNoTable;

struct DataHeader {
  DataKind kind = DataKind::kReply;
  DataCode code = DataCode::kOk;  // of a reply
  uint64_t sequence = 0;          // the debtor's; a reply repeats it
  uint64_t debtor_epoch = 0;
  uint64_t creditor_epoch = 0;
  // Of a request: how long the debtor waits for the reply. Of a reply: how long the creditor worked on it.
  uint64_t span_ns = 0;
  uint64_t waited_ns = 0;  // of a reply: in the creditor's queue
};
constexpr size_t kDataHeaderBytes = 48;

// Bytes [offset, offset + bytes) of a cell.
struct CellSpan {
  uint64_t contract = 0;
  uint32_t index = 0;
  uint64_t offset = 0;
  uint64_t bytes = 0;
};
constexpr size_t kCellSpanBytes = 32;

// The cells first, first + stride, ... of a contract, modulo 2^32, so that a run may also descend.
struct CellRun {
  uint64_t contract = 0;
  uint32_t first = 0;
  uint32_t stride = 0;
  uint32_t count = 0;
  friend bool operator==(const CellRun&, const CellRun&) = default;
};

// Appends a cell to a list of runs; it extends the last run if it continues that run.
void append_cell(std::vector<CellRun>& runs, uint64_t contract, uint32_t index);

struct AttendBody {
  uint32_t layer = 0;  // in the cells' group
  uint32_t rows = 0;
  std::vector<LeafRun> runs;   // ascending
  std::vector<CellRun> cells;  // of the runs' leaves, block by block, without those that the table names
  // The first `known` cells are those of this table (cell_tables.h); 0: none is used.
  uint64_t table = 0;
  uint32_t known = 0;
};
// A long run of cells takes 24 bytes; other cells take 4 bytes each, and 16 bytes for each series of one
// contract.
size_t cell_list_bytes(std::span<const CellRun> cells);
// Without the queries.
size_t attend_body_bytes(const AttendBody& body);

// A message of header and body, with memory set aside for the payload, which the caller appends.
std::vector<std::byte> make_copy_message(const DataHeader& header, const CellSpan& at,
                                         uint64_t payload_bytes);
std::vector<std::byte> make_attend_message(const DataHeader& header, const AttendBody& body,
                                           uint64_t payload_bytes);
std::vector<std::byte> make_reply(const DataHeader& header, uint64_t payload_bytes);

// Null: too short, of another format, or with an unknown kind or code.
std::optional<DataHeader> parse_header(std::span<const std::byte> message);
// Overwrites the header of a message that was made here.
void set_header(std::vector<std::byte>& message, const DataHeader& header);
void append_bytes(std::vector<std::byte>& message, std::span<const std::byte> payload);
// Whether a message is for BorrowedMemory::handle(); else it is for LentMemory::handle().
bool is_reply(std::span<const std::byte> message);

// Parse the body, which follows the header; `payload` is what follows the body. False: cut short. They check
// that the lists are complete, and no other number.
bool parse_copy(std::span<const std::byte> message, CellSpan& at, std::span<const std::byte>& payload);
bool parse_attend(std::span<const std::byte> message, AttendBody& body, std::span<const std::byte>& payload);

}  // namespace kvasir
