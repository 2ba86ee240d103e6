// The status of an instance in its cluster, for people to read.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "cluster/memory/borrowed_memory.h"
#include "cluster/memory/lent_memory.h"
#include "cluster/protocol/gmanager.h"
#include "contract/peer_transport.h"

namespace kvasir::cluster {

// One line of the leader's ledger.
struct LedgerLine {
  PeerId id;
  InstanceFigures figures;  // without `due`
  Nanos heard_ago = 0;
  bool refused = false;
};

struct PeerLink {
  PeerId peer;
  std::string address;
  uint32_t lent = 0;             // cells, to it
  uint32_t borrowed = 0;         // cells, of it
  std::optional<PeerCost> cost;  // as measured
};

struct NodeStatus {
  PeerId self;  // epoch 0: it is no member now
  std::string leader;
  uint64_t term = 0;
  double directory_down_s = 0;  // 0: the directory answers
  bool leaving = false;
  std::string location;
  uint32_t free_cells = 0, total_cells = 0, lend_cap = 0, room = 0;
  uint64_t cell_bytes = 0;  // 0: it runs no model
  uint32_t borrowable_cells = 0;
  bool settling = false;                              // a cycle of debts, of which it is a part
  std::vector<PeerLink> links;                        // to each compatible member
  std::map<std::string, std::string> not_compatible;  // the other members, and why
  BorrowedMemoryStats borrowed;
  LentMemoryStats lent;
  // If it leads.
  std::vector<LedgerLine> ledger;
  GManagerCounts counts;
};

// A few figures for a monitor.
struct NodeFigures {
  bool member = false;
  bool leads = false;
  uint32_t peers = 0;           // members with which it can share memory
  double directory_down_s = 0;  // 0: the directory answers
  uint64_t settlements = 0;     // while it led
  BorrowedMemoryStats borrowed;
  LentMemoryStats lent;
};

// One JSON object; docs/cluster.md names its fields.
std::string to_json(const NodeStatus& status);

}  // namespace kvasir::cluster
