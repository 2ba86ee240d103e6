// Maps the engine's borrowed cells, which have numbers, to slots of contracts and back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <utility>
#include <vector>

#include "cluster/protocol/borrower.h"

namespace kvasir::cluster {

// A cell's number is in use from its grant until the engine has returned the cell. Not thread-safe.
class BorrowedCells {
 public:
  explicit BorrowedCells(uint32_t cells);

  // A run of cells: [first, first + count) are the slots of a contract from first_slot on.
  struct Run {
    uint32_t first = 0;
    uint32_t count = 0;
    uint32_t first_slot = 0;
  };
  // Slots of a contract, in order.
  struct Returned {
    ContractRef contract;
    std::vector<uint32_t> slots;
  };

  uint32_t free() const { return free_; }
  // Numbers for the slots of a contract, the lowest. REQUIRES: blocks <= free()
  std::vector<Run> grant(const ContractRef& contract, uint32_t blocks);
  // The engine returns cells. Returns what the contracts are to be told.
  std::vector<Returned> returned(std::span<const uint32_t> cells);
  // The cells of a contract that the engine still holds, the last slots first.
  std::vector<uint32_t> of(const ContractRef& contract) const;
  // The contract has ended. Returns the cells that the engine still holds and has now lost; their numbers
  // are free when it has returned them.
  std::vector<uint32_t> lose(const ContractRef& contract);
  std::vector<uint32_t> lose_all();

 private:
  struct ByRef {
    bool operator()(const ContractRef& a, const ContractRef& b) const {
      return a.creditor == b.creditor ? a.id < b.id : ByPeer()(a.creditor, b.creditor);
    }
  };
  using Cells = std::map<uint32_t, uint32_t>;  // by slot
  using Contracts = std::map<ContractRef, Cells, ByRef>;
  struct Place {
    Contracts::iterator contract;
    uint32_t slot = 0;
  };

  void make_free(uint32_t cell);

  uint32_t free_ = 0;
  std::map<uint32_t, uint32_t> gaps_;  // free numbers: the first of each run -> how many
  Contracts contracts_;                // what the engine holds of them
  std::map<uint32_t, Place> places_;   // by number
  std::set<uint32_t> lost_;            // and not returned
};

}  // namespace kvasir::cluster
