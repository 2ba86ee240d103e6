// Lists of cells that a query names instead of spelling them out. The cells of a long history lie scattered
// at their creditor, and are the same for each layer of a group and from step to step but for those that were
// added: so a list is sent once, and later queries name "the first `known` of table t" and list only the
// cells that follow these.
//
//   query 1   table 7, known 0, cells a b c d      the creditor keeps 7: a b c d
//   query 2   table 7, known 4                     a b c d
//   query 3   table 7, known 4, cells e            the creditor keeps 7: a b c d e
//
// A table only ever grows: another list gets another number. So whichever message is lost, a creditor either
// has the cells that the debtor means, or has too few of them and says so.
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

// The tables of one debtor with one creditor. Both ends hold the same tables, because the sequence of
// queries alone determines them. Not thread-safe.
class CellTables {
 public:
  static constexpr size_t kMaxTables = 1024;
  static constexpr size_t kMaxRuns = size_t{1} << 20;  // of all tables, 24 MiB

  CellTables() = default;
  // Not copyable: the maps hold iterators into tables_.
  CellTables(const CellTables&) = delete;
  CellTables& operator=(const CellTables&) = delete;
  CellTables(CellTables&&) = default;
  CellTables& operator=(CellTables&&) = default;

  // At the debtor, right before a query is sent: refers to a table for the cells that the creditor
  // already knows. body.cells: before, all cells; afterwards, those that the creditor does not know yet.
  void shorten(AttendBody& body);
  // At the creditor, when the query arrives: fills in the cells that the query refers to. False: too
  // little of the table is known.
  bool complete(AttendBody& body);
  // At the debtor: the creditor has too little of the table.
  void forget(uint64_t table);
  // At the debtor: the creditor is gone. If it returns, all lists are sent again under other numbers.
  void forget_all();

  size_t tables() const { return tables_.size(); }
  size_t runs() const { return runs_; }

 private:
  using Cell = std::pair<uint64_t, uint32_t>;  // contract, index
  struct Table {
    uint64_t id;
    Cell first;  // its key in by_first_cell_
    std::vector<CellRun> cells;
    uint64_t count;
  };
  using Place = std::list<Table>::iterator;

  Place find_like(std::span<const CellRun> cells);
  void add(uint64_t id, std::span<const CellRun> cells);
  void grow(Place at, std::span<const CellRun> cells);
  void used(Place at) { tables_.splice(tables_.begin(), tables_, at); }
  void erase(Place at);
  // Drops the least recently used tables first.
  void make_room();

  std::list<Table> tables_;  // most recently used first
  std::unordered_map<uint64_t, Place> by_id_;
  std::multimap<Cell, Place> by_first_cell_;
  size_t runs_ = 0;
  uint64_t next_id_ = 1;
};

// How many cells runs name.
uint64_t count_cells(std::span<const CellRun> runs);

}  // namespace kvasir
