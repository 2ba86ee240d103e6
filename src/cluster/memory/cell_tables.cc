#include "cluster/memory/cell_tables.h"

#include <algorithm>

#include "base/mutant.h"

namespace kvasir {
namespace {

// Lists up to this size are spelt out: a table would save nothing.
constexpr size_t kShortBytes = 32;

// Whether `cells` begins with all of `prefix`; both were made by append_cell(), which makes the same runs of
// the same cells.
bool begins_with(std::span<const CellRun> cells, std::span<const CellRun> prefix) {
  if (prefix.empty()) return true;
  if (cells.size() < prefix.size()) return false;
  const size_t last = prefix.size() - 1;
  if (!std::equal(prefix.begin(), prefix.end() - 1, cells.begin())) return false;
  const CellRun &a = cells[last], &b = prefix[last];
  return a.contract == b.contract && a.first == b.first && a.count >= b.count &&
         (b.count == 1 || a.stride == b.stride);
}

// Appends cells [begin, end) of a list.
void append_cells(std::vector<CellRun>& to, std::span<const CellRun> cells, uint64_t begin, uint64_t end) {
  uint64_t at = 0;  // of the run's first cell
  for (const CellRun& run : cells) {
    const uint64_t first = std::clamp(begin, at, at + run.count) - at;
    const uint64_t last = std::clamp(end, at, at + run.count) - at;
    for (uint64_t i = first; i < last; ++i) {
      append_cell(to, run.contract, run.first + run.stride * static_cast<uint32_t>(i));
    }
    at += run.count;
  }
}

}  // namespace

uint64_t count_cells(std::span<const CellRun> runs) {
  uint64_t count = 0;
  for (const CellRun& run : runs) count += run.count;
  return count;
}

void CellTables::shorten(AttendBody& body) {
  if (body.cells.size() <= 1 || body.cells.size() > kMaxRuns) return;
  const uint64_t count = count_cells(body.cells);
  const auto table = find_like(body.cells);
  if (table == tables_.end()) {
    if (cell_list_bytes(body.cells) <= kShortBytes) return;
    body.table = next_id_++;
    add(body.table, body.cells);
    return;
  }
  used(table);
  body.table = table->id;
  const uint64_t known = std::min(table->count, count);
  std::vector<CellRun> behind;
  append_cells(behind, body.cells, known, count);
  if (count > table->count) grow(table, body.cells);
  body.known = static_cast<uint32_t>(known);
  body.cells = std::move(behind);
}

bool CellTables::complete(AttendBody& body) {
  if (body.table == 0) return true;
  const auto found = by_id_.find(body.table);
  if (found == by_id_.end()) {
    if (body.known > 0) return false;
    if (body.cells.size() <= kMaxRuns && !body.cells.empty()) add(body.table, body.cells);
    return true;
  }
  const Place table = found->second;
  if (table->count < body.known) return false;
  used(table);
  std::vector<CellRun> all;
  if (body.known == table->count) {
    all = table->cells;
  } else {
    append_cells(all, table->cells, 0, body.known);
  }
  const bool grows = body.known + count_cells(body.cells) > table->count;
  append_cells(all, body.cells, 0, UINT64_MAX);
  if (grows) grow(table, all);
  body.cells = std::move(all);
  return true;
}

void CellTables::forget(uint64_t table) {
  const auto found = by_id_.find(table);
  if (found != by_id_.end()) erase(found->second);
}

CellTables::Place CellTables::find_like(std::span<const CellRun> cells) {
  const auto [begin, end] = by_first_cell_.equal_range({cells.front().contract, cells.front().first});
  for (auto at = begin; at != end; ++at) {
    const Place table = at->second;
    if (mutant(Mutant::kCellTableReused)) return table;
    if (begins_with(cells, table->cells) || begins_with(table->cells, cells)) return table;
  }
  return tables_.end();
}

void CellTables::add(uint64_t id, std::span<const CellRun> cells) {
  const Cell first = {cells.front().contract, cells.front().first};
  tables_.push_front({id, first, {cells.begin(), cells.end()}, count_cells(cells)});
  const Place at = tables_.begin();
  by_id_.emplace(id, at);
  by_first_cell_.emplace(first, at);
  runs_ += cells.size();
  make_room();
}

void CellTables::grow(Place at, std::span<const CellRun> cells) {
  runs_ += cells.size() - at->cells.size();
  at->cells = std::vector<CellRun>(cells.begin(), cells.end());  // of no more memory than it needs
  at->count = count_cells(cells);
  make_room();
}

void CellTables::erase(Place at) {
  const auto [begin, end] = by_first_cell_.equal_range(at->first);
  by_first_cell_.erase(std::find_if(begin, end, [&](const auto& entry) { return entry.second == at; }));
  by_id_.erase(at->id);
  runs_ -= at->cells.size();
  tables_.erase(at);
}

void CellTables::forget_all() {
  while (!tables_.empty()) erase(tables_.begin());
}

void CellTables::make_room() {
  while (tables_.size() > kMaxTables || runs_ > kMaxRuns) erase(std::prev(tables_.end()));
}

}  // namespace kvasir
