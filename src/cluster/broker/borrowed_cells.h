// Maps the engine's borrowed cells, which have numbers, to slots of contracts and back.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "cluster/protocol/borrower.h"

namespace kvasir::cluster {

// A cell's number is in use from its grant until the engine has returned the cell and its contract has given
// it up or ended. Not thread-safe.
class BorrowedCells {
 public:
  explicit BorrowedCells(uint32_t cells) : places_(cells) {}

  struct Place {
    ContractRef contract;
    uint32_t slot = 0;
    bool returned = false;  // by the engine
    bool lost = false;
  };
  // A run of cells: [first, first + count) are the slots of a contract from first_slot on.
  struct Run {
    uint32_t first = 0;
    uint32_t count = 0;
    uint32_t first_slot = 0;
  };

  uint32_t free() const;
  // Numbers for the slots of a contract, in as few runs as possible. REQUIRES: blocks <= free()
  std::vector<Run> grant(const ContractRef& contract, uint32_t blocks);
  // The engine returns a cell. Returns its place if the contract is to be told; otherwise the number is free
  // at once.
  std::optional<Place> returned(uint32_t cell);
  // The slots have been given back to the peer: their numbers are free.
  void given_back(uint32_t cell) { places_[cell].reset(); }
  // The cells of a contract that the engine still holds, the last slots first.
  std::vector<uint32_t> of(const ContractRef& contract) const;
  // The contract has ended. Returns the cells that the engine still holds and has now lost; their numbers
  // are free when it has returned them.
  std::vector<uint32_t> lose(const ContractRef& contract);
  std::vector<uint32_t> lose_all();

 private:
  std::vector<uint32_t> lose_those(const ContractRef* contract);

  std::vector<std::optional<Place>> places_;  // by number
};

}  // namespace kvasir::cluster
