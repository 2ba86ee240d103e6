// A report on a cluster for people: its directory, the status of each member, and the leader's ledger.
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
  // The memory of one member, in cells, by its own status.
  struct Memory {
    uint64_t cell_bytes = 0;  // 0: it runs no model
    uint64_t free = 0, total = 0, room = 0, lend_cap = 0, borrowable = 0;
    uint64_t lent = 0, borrowed = 0;
  };
  struct Instance {
    Member member;
    bool leads = false;
    std::string status;            // as it says; empty: there is none, or it cannot be read
    std::string trouble;           // why there is no status
    std::optional<Memory> memory;  // this and what follows are from the status
    std::string location;
    bool leaving = false;
    bool settling = false;  // a cycle of debts is being settled
  };
  // One debt, in cells, as each side says. The figures are of different moments.
  struct Debt {
    std::optional<uint64_t> by_creditor, by_debtor, by_ledger;
    uint64_t bytes = 0;  // of cells(); 0: unknown
    // The creditor's figure counts most, because it alone decides over its cells; then the leader's.
    uint64_t cells() const {
      return by_creditor ? *by_creditor : by_ledger ? *by_ledger : by_debtor.value_or(0);
    }
  };
  struct Link {
    std::string from, to;
    std::string address;
    uint64_t lent = 0, borrowed = 0;  // cells, of `from`
    // As `from` has measured it, if it has.
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

// What each member answers when it is asked for its status: the text, or why there is none. By instance.
using ClusterStatuses = std::map<std::string, Result<std::string>>;

// Takes any contents and answers, also damaged ones. An answer of another life than the member's is none.
ClusterReport report_of(const std::string& cluster, const ClusterContents& contents,
                        const ClusterStatuses& statuses);

// Lines, each with its end.
std::string to_table(const ClusterReport& report);
// One document, on one line.
std::string to_json(const ClusterReport& report);

}  // namespace kvasir
