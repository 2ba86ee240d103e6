// The report of a cluster as tables, one for each kind of thing; an empty one is left out.
#include <fmt/format.h>

#include <algorithm>

#include "apps/cluster/report.h"
#include "base/units.h"

namespace kvasir {
namespace {

constexpr size_t kMostMisfits = 20;

// Text from other instances must not move the terminal's cursor.
std::string printable(const std::string& text) {
  std::string out = text;
  for (char& c : out) {
    const auto byte = static_cast<unsigned char>(c);
    if (byte < 0x20 || byte >= 0x7f) c = '?';
  }
  return out.empty() ? "-" : out;
}

class Columns {
 public:
  explicit Columns(std::vector<std::string> heads) { add(std::move(heads)); }
  void add(std::vector<std::string> row) {
    widths_.resize(std::max(widths_.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths_[i] = std::max(widths_[i], row[i].size());
    rows_.push_back(std::move(row));
  }
  // Nothing if there are only headings.
  std::string text(const std::string& title) const {
    if (rows_.size() == 1) return "";
    std::string out = title.empty() ? "\n" : "\n" + title + "\n";
    for (const std::vector<std::string>& row : rows_) {
      std::string line;
      for (size_t i = 0; i < row.size(); ++i) line += fmt::format("{:<{}}  ", row[i], widths_[i]);
      line.erase(line.find_last_not_of(' ') + 1);
      out += line + "\n";
    }
    return out;
  }

 private:
  std::vector<std::vector<std::string>> rows_;
  std::vector<size_t> widths_;
};

std::string cells_text(uint64_t cells, uint64_t cell_bytes) {
  if (cell_bytes == 0) return fmt::format("{}", cells);
  return fmt::format("{} ({:.1f} MiB)", cells, static_cast<double>(cells * cell_bytes) / kMiB);
}

std::string cells_or_dash(const std::optional<uint64_t>& cells) {
  return cells ? fmt::format("{}", *cells) : "-";
}

// Shortened to the last digits, which differ between two lives of an instance.
std::string short_epoch(uint64_t epoch) {
  const std::string hex = fmt::format("{:x}", epoch);
  return hex.size() > 8 ? hex.substr(hex.size() - 8) : hex;
}

std::string state_of(const ClusterReport::Instance& i) {
  std::string state = i.leads ? "leads" : "member";
  if (i.leaving) state += ", leaving";
  if (i.settling) state += ", settling";
  if (!i.memory) state += ", no status";
  return state;
}

std::string memory_table(const ClusterReport& report) {
  Columns table({"INSTANCE", "EPOCH", "STATE", "FREE", "TOTAL", "ROOM", "LENT", "BORROWED"});
  for (const ClusterReport::Instance& i : report.instances) {
    std::vector<std::string> row = {i.member.id.instance, short_epoch(i.member.id.epoch), state_of(i)};
    if (!i.memory) {
      row.insert(row.end(), 5, "-");
    } else {
      const ClusterReport::Memory& m = *i.memory;
      for (uint64_t cells : {m.free, m.total, m.room, m.lent, m.borrowed}) {
        row.push_back(cells_text(cells, m.cell_bytes));
      }
    }
    table.add(std::move(row));
  }
  return table.text("");
}

std::string address_table(const ClusterReport& report) {
  Columns table({"INSTANCE", "HTTP", "TRANSPORT", "ADDRESS", "LOCATION", "NUMERICS"});
  for (const ClusterReport::Instance& i : report.instances) {
    const Member& m = i.member;
    table.add({m.id.instance, printable(m.http_address),
               printable(m.transport_version.empty() ? m.transport : m.transport_version),
               printable(m.transport_address), printable(i.location),
               m.numerics_id.empty() ? "runs no model" : printable(m.numerics_id)});
  }
  return table.text("");
}

std::string debt_table(const ClusterReport& report) {
  Columns table({"DEBTOR", "CREDITOR", "CELLS", "MIB", "BY THE CREDITOR", "BY THE DEBTOR", "BY THE LEDGER"});
  for (const auto& [pair, debt] : report.debts) {
    table.add({printable(pair.first), printable(pair.second), fmt::format("{}", debt.cells()),
               debt.bytes > 0 ? fmt::format("{:.1f}", static_cast<double>(debt.bytes) / kMiB) : "-",
               cells_or_dash(debt.by_creditor), cells_or_dash(debt.by_debtor),
               cells_or_dash(debt.by_ledger)});
  }
  return table.text("debts");
}

std::string ledger_table(const ClusterReport& report) {
  Columns table({"INSTANCE", "FREE", "TOTAL", "ROOM", "MEMORY", "LOCATION", "HEARD OF", "LENDS"});
  for (const ClusterReport::LedgerLine& line : report.ledger) {
    const uint64_t bytes = report.cell_bytes(line.instance);
    table.add({printable(line.instance), cells_text(line.free, bytes), cells_text(line.total, bytes),
               cells_text(line.room, bytes), printable(line.memory), printable(line.location),
               fmt::format("{} ms ago", line.heard_ms_ago), line.refused ? "has refused" : "yes"});
  }
  return table.text("the gManager's ledger");
}

std::string link_table(const ClusterReport& report) {
  Columns table({"FROM", "TO", "LATENCY US", "MB/S", "WAIT US", "ATTEND US PER LEAF AND ROW"});
  size_t silent = 0;
  for (const ClusterReport::Link& link : report.links) {
    if (!link.cost) {
      ++silent;
      continue;
    }
    table.add({link.from, printable(link.to), fmt::format("{:.0f}", link.cost->latency_us),
               fmt::format("{:.0f}", link.cost->bytes_per_s / 1e6), fmt::format("{:.0f}", link.cost->wait_us),
               fmt::format("{:.2f}", link.cost->attend_us)});
  }
  std::string out = table.text("links, as measured by the asking instance");
  if (silent > 0)
    out += fmt::format("\n{} carried no query yet\n",
                       silent == 1 ? "1 link has" : fmt::format("{} links have", silent));
  return out;
}

std::string notes(const ClusterReport& report) {
  std::string out;
  for (const ClusterReport::Instance& i : report.instances) {
    if (!i.trouble.empty()) out += fmt::format("{}: {}\n", i.member.id.instance, printable(i.trouble));
  }
  for (size_t n = 0; n < std::min(report.misfits.size(), kMostMisfits); ++n) {
    out += printable(report.misfits[n].why) + "\n";
  }
  if (report.misfits.size() > kMostMisfits) {
    out += fmt::format("{} more pairs cannot share memory\n", report.misfits.size() - kMostMisfits);
  }
  if (report.settlements) {
    const ClusterReport::Settlements& s = *report.settlements;
    out += fmt::format("cycles of debts under this gManager: {} settled ({} cells called back), {} not\n",
                       s.done, s.cells, s.failed);
  }
  return out.empty() ? "" : "\n" + out;
}

}  // namespace

std::string to_table(const ClusterReport& report) {
  const size_t n = report.instances.size();
  std::string out = n == 0 ? fmt::format("cluster '{}': no instances", report.cluster)
                           : fmt::format("cluster '{}': {} instance{}", report.cluster, n, n == 1 ? "" : "s");
  out += report.leader
             ? fmt::format(", gManager {} (term {})\n", report.leader->id.instance, report.leader->term)
             : ", no gManager\n";
  return out + memory_table(report) + address_table(report) + debt_table(report) + ledger_table(report) +
         link_table(report) + notes(report);
}

}  // namespace kvasir
