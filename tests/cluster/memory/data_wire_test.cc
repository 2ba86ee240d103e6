// The bytes of the messages: what goes in comes out, and no bytes make the parser read beyond them.
#include "cluster/memory/data_wire.h"

#include <gtest/gtest.h>

#include <cstring>

#include "base/random.h"

namespace kvasir {
namespace {

AttendBody wire_body() {
  AttendBody body{3, 2, {{4, 6}, {8, 11}}, {}, 1ull << 40, 9};
  for (uint32_t i = 0; i < 12; ++i) append_cell(body.cells, 5, 100 - 2 * i);
  for (uint32_t i = 0; i < 8; ++i) append_cell(body.cells, 6, 7 + i);
  for (uint32_t i : {90, 3, 4, 77, 5, 5, 9}) append_cell(body.cells, 6, i);
  return body;
}

std::vector<std::byte> wire_payload(size_t bytes) {
  std::vector<std::byte> payload(bytes);
  for (size_t i = 0; i < bytes; ++i) payload[i] = static_cast<std::byte>(i * 7);
  return payload;
}

TEST(DataWire, HeadersComeOutAsTheyWentIn) {
  const DataHeader in{DataKind::kReply, DataCode::kBusy, 1ull << 60, 2, 3, 4, 5};
  const auto out = parse_header(make_reply(in, 0));
  ASSERT_TRUE(out);
  EXPECT_EQ(out->kind, in.kind);
  EXPECT_EQ(out->code, in.code);
  EXPECT_EQ(out->sequence, in.sequence);
  EXPECT_EQ(out->debtor_epoch, 2u);
  EXPECT_EQ(out->creditor_epoch, 3u);
  EXPECT_EQ(out->span_ns, 4u);
  EXPECT_EQ(out->waited_ns, 5u);
  EXPECT_EQ(make_reply(in, 0).size(), kDataHeaderBytes);
}

TEST(DataWire, BodiesComeOutAsTheyWentIn) {
  const auto payload = wire_payload(24);
  auto copy = make_copy_message({.kind = DataKind::kWrite}, {8, 9, 10, 24}, payload.size());
  append_bytes(copy, payload);
  CellSpan at;
  std::span<const std::byte> rest;
  ASSERT_TRUE(parse_copy(copy, at, rest));
  EXPECT_EQ(at.contract, 8u);
  EXPECT_EQ(at.index, 9u);
  EXPECT_EQ(at.offset, 10u);
  EXPECT_EQ(at.bytes, 24u);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), payload.begin(), payload.end()));
  EXPECT_FALSE(is_reply(copy));

  const AttendBody in = wire_body();
  auto query = make_attend_message({.kind = DataKind::kAttend}, in, payload.size());
  append_bytes(query, payload);
  EXPECT_EQ(query.size(), kDataHeaderBytes + attend_body_bytes(in) + payload.size());
  AttendBody out;
  ASSERT_TRUE(parse_attend(query, out, rest));
  EXPECT_EQ(out.layer, 3u);
  EXPECT_EQ(out.rows, 2u);
  EXPECT_EQ(out.runs, in.runs);
  EXPECT_EQ(out.cells, in.cells);
  EXPECT_EQ(out.table, in.table);
  EXPECT_EQ(out.known, in.known);
  EXPECT_TRUE(std::equal(rest.begin(), rest.end(), payload.begin(), payload.end()));
}

TEST(DataWire, CellsInStepAreOneRun) {
  const AttendBody body = wire_body();
  ASSERT_GE(body.cells.size(), 2u);
  EXPECT_EQ(body.cells[0], (CellRun{5, 100, static_cast<uint32_t>(-2), 12}));
  EXPECT_EQ(body.cells[1], (CellRun{6, 7, 1, 8}));

  // Whatever they are, the runs name the same cells in the same order.
  Random random(3);
  for (int round = 0; round < 200; ++round) {
    std::vector<std::pair<uint64_t, uint32_t>> cells, named;
    std::vector<CellRun> runs;
    for (int i = 0; i < 40; ++i) cells.emplace_back(random.below(2), static_cast<uint32_t>(random.below(4)));
    for (const auto& [contract, index] : cells) append_cell(runs, contract, index);
    for (const CellRun& run : runs) {
      for (uint32_t i = 0; i < run.count; ++i) named.emplace_back(run.contract, run.first + run.stride * i);
    }
    EXPECT_EQ(named, cells);
  }
}

TEST(DataWire, CellsTakeFewBytes) {
  AttendBody body{0, 1, {{0, 1}}, {}};
  const size_t empty = attend_body_bytes(body);
  for (uint32_t i = 0; i < 1000; ++i) append_cell(body.cells, 1, 3 * i);
  EXPECT_EQ(attend_body_bytes(body), empty + 24);
  body.cells.clear();
  Random random(9);
  for (uint32_t i = 0; i < 1000; ++i) append_cell(body.cells, 1, static_cast<uint32_t>(random.bits()));
  EXPECT_EQ(attend_body_bytes(body), empty + 16 + 4 * 1000);
  AttendBody out;
  std::span<const std::byte> rest;
  ASSERT_TRUE(parse_attend(make_attend_message({.kind = DataKind::kAttend}, body, 0), out, rest));
  EXPECT_EQ(out.cells, body.cells);
}

TEST(DataWire, EveryTruncationIsSeen) {
  const auto query = make_attend_message({.kind = DataKind::kAttend}, wire_body(), 0);
  const auto copy = make_copy_message({.kind = DataKind::kRead}, {1, 2, 3, 4}, 0);
  AttendBody body;
  CellSpan at;
  std::span<const std::byte> rest;
  for (size_t n = 0; n < query.size(); ++n) {
    // Exact heap blocks, so that a sanitizer sees a byte too many.
    const std::vector<std::byte> cut(query.begin(), query.begin() + static_cast<std::ptrdiff_t>(n));
    EXPECT_FALSE(parse_attend(cut, body, rest)) << n;
    EXPECT_EQ(parse_header(cut).has_value(), n >= kDataHeaderBytes);
  }
  for (size_t n = 0; n < copy.size(); ++n) {
    EXPECT_FALSE(parse_copy(std::span(copy).first(n), at, rest)) << n;
  }
}

TEST(DataWire, AnythingMayCome) {
  Random random(4);
  const auto good = make_attend_message({.kind = DataKind::kAttend}, wire_body(), 0);
  int accepted = 0;
  for (int round = 0; round < 20000; ++round) {
    std::vector<std::byte> bytes = good;
    if (round % 4 == 0) {
      bytes.assign(random.below(200), {});
      for (auto& b : bytes) b = static_cast<std::byte>(random.below(256));
    }
    for (uint64_t i = random.below(4); i > 0 && !bytes.empty(); --i) {
      // Counts and the like: small changes, and extremes.
      const size_t at = random.below(bytes.size());
      bytes[at] = random.below(2) ? static_cast<std::byte>(random.below(256)) : std::byte{0xff};
    }
    bytes.resize(random.below(3) ? bytes.size() : random.below(bytes.size() + 40));
    AttendBody body;
    CellSpan at;
    std::span<const std::byte> rest;
    const bool whole = parse_attend(bytes, body, rest);
    accepted += whole;
    if (whole) {
      EXPECT_LE(kDataHeaderBytes + 32 + 8 * body.runs.size() + rest.size(), bytes.size());
    }
    if (parse_copy(bytes, at, rest)) {
      EXPECT_EQ(kDataHeaderBytes + kCellSpanBytes + rest.size(), bytes.size());
    }
    if (const auto header = parse_header(bytes)) {
      EXPECT_LE(header->code, kLastDataCode);
    }
  }
  EXPECT_GT(accepted, 1000);  // of which the rest of the checks is LentMemory's
}

TEST(DataWire, OtherFormatsAreNoHeaders) {
  auto reply = make_reply({}, 0);
  EXPECT_TRUE(is_reply(reply));
  for (const auto& [at, value] : {std::pair{0, 0x4c}, {4, 0}, {4, 5}, {5, 7}, {6, 1}, {7, 1}}) {
    auto other = reply;
    other[static_cast<size_t>(at)] = static_cast<std::byte>(value);
    EXPECT_FALSE(parse_header(other)) << at;
    EXPECT_FALSE(is_reply(other)) << at;
  }
}

}  // namespace
}  // namespace kvasir
