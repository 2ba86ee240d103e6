// What the directory holds of a cluster, put together for people: from what each member says of itself, and
// from the leader's ledger.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cluster/membership/cluster_keys.h"

namespace kvasir {

struct ClusterReport {
  // Of what one member says of its memory, in cells.
  struct Memory {
    uint64_t cell_bytes = 0;  // 0: it runs no model
    uint64_t free = 0, total = 0, room = 0, lend_cap = 0, borrowable = 0;
    uint64_t lent = 0, borrowed = 0;
  };
  struct Instance {
    Member member;
    bool leads = false;
    std::string status;            // as it was published; empty: none was, or it cannot be read
    std::string trouble;           // then: why there is none
    std::optional<Memory> memory;  // of the status, as what follows
    std::string location;
    bool leaving = false;
    bool frozen = false;  // a cycle of debts is being settled
  };
  // Who says what of one debt, in cells. Each was said at another time, up to some seconds ago.
  struct Debt {
    std::optional<uint64_t> by_creditor, by_debtor, by_ledger;
    uint64_t bytes = 0;  // of cells(); 0: unknown
    // The creditor alone rules over its cells; then what the leader has heard of it.
    uint64_t cells() const {
      return by_creditor ? *by_creditor : by_ledger ? *by_ledger : by_debtor.value_or(0);
    }
  };
  struct Link {
    std::string from, to;
    std::string address;
    uint64_t lent = 0, borrowed = 0;  // cells, of `from`
    // As `from` has measured; nothing where it has not.
    struct Cost {
      double latency_us = 0, bytes_per_s = 0, wait_us = 0, attend_us = 0;
    };
    std::optional<Cost> cost;
  };
  struct LedgerLine {
    std::string instance;
    uint64_t free = 0, total = 0, room = 0;
    std::string memory, location;
    uint64_t heard_ms_ago = 0;
    bool refused = false;
  };
  struct Settlements {
    uint64_t done = 0, failed = 0, cells = 0;
  };
  // Members that cannot share memory.
  struct Misfit {
    std::string a, b;
    std::string why;
  };

  std::string cluster;
  std::optional<Leader> leader;
  std::vector<Instance> instances;                            // by name
  std::map<std::pair<std::string, std::string>, Debt> debts;  // (debtor, creditor)
  std::vector<Link> links;
  std::vector<LedgerLine> ledger;
  std::optional<Settlements> settlements;  // those of the leader
  std::vector<Misfit> misfits;

  uint64_t cell_bytes(const std::string& instance) const;  // 0: unknown
};

// Whatever the directory holds, damaged or not.
ClusterReport report_of(const std::string& cluster, const ClusterContents& contents);

// Lines, each with its end.
std::string to_table(const ClusterReport& report);
// One document, on one line.
std::string to_json(const ClusterReport& report);

}  // namespace kvasir
