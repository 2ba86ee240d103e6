// Lists of cells that a query names instead of spelling them out. The cells of a long history lie scattered
// at their creditor, and are the same for each layer of a group and from step to step but for those that were
// added: so a list is told once, later queries say "the first `known` of table t" and only what stands
// behind.
//
//   query 1   table 7, known 0, cells a b c d      the creditor keeps 7: a b c d
//   query 2   table 7, known 4                     a b c d
//   query 3   table 7, known 4, cells e            the creditor keeps 7: a b c d e
//
// A table is never anything but longer: another list gets another number. So whatever is lost on the way, a
// creditor either has the cells that the debtor means, or too few of them, which it says.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <span>
#include <unordered_map>
#include <utility>
#include <vector>

#include "cluster/memory/data_wire.h"

namespace kvasir {

// Those of one debtor with one creditor. Both ends keep the same: what they hold is decided by the queries
// alone, in their order. Not thread-safe.
class CellTables {
 public:
  static constexpr size_t kMaxTables = 1024;
  static constexpr size_t kMaxRuns = size_t{1} << 20;  // of all tables, 24 MiB

  CellTables() = default;
  // They hold places in their own lists.
  CellTables(const CellTables&) = delete;
  CellTables& operator=(const CellTables&) = delete;
  CellTables(CellTables&&) = default;
  CellTables& operator=(CellTables&&) = default;

  // At the debtor, right before a query is sent: names a table instead of what the creditor was told of it.
  // body.cells: all of them before, those to be told afterwards.
  void shorten(AttendBody& body);
  // At the creditor, when it arrives: the cells that are meant. False: too little of the table is here.
  bool complete(AttendBody& body);
  // At the debtor: the creditor has too little of it.
  void forget(uint64_t table);
  // At the debtor: the creditor is gone. If it is back it is told all anew, by other numbers.
  void forget_all();

  size_t tables() const { return tables_.size(); }
  size_t runs() const { return runs_; }

 private:
  using Cell = std::pair<uint64_t, uint32_t>;  // contract, index
  struct Table {
    uint64_t id;
    Cell first;  // as by_first_cell_ has it
    std::vector<CellRun> cells;
    uint64_t count;
  };
  using Place = std::list<Table>::iterator;

  Place find_like(std::span<const CellRun> cells);
  void add(uint64_t id, std::span<const CellRun> cells);
  void grow(Place at, std::span<const CellRun> cells);
  void used(Place at) { tables_.splice(tables_.begin(), tables_, at); }
  void erase(Place at);
  // Those used longest ago go first.
  void make_room();

  std::list<Table> tables_;  // the last used one first
  std::unordered_map<uint64_t, Place> by_id_;
  std::multimap<Cell, Place> by_first_cell_;
  size_t runs_ = 0;
  uint64_t next_id_ = 1;
};

// How many cells runs name.
uint64_t count_cells(std::span<const CellRun> runs);

}  // namespace kvasir
