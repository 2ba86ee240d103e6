#include "cluster/protocol/debt_ledger.h"

#include <algorithm>
#include <string_view>
#include <tuple>

#include "base/mutant.h"

namespace kvasir::cluster {
namespace {

std::vector<std::string_view> parts_of(std::string_view location) {
  std::vector<std::string_view> parts;
  while (!location.empty()) {
    const size_t end = std::min(location.find('/'), location.size());
    parts.push_back(location.substr(0, end));
    location.remove_prefix(std::min(end + 1, location.size()));
  }
  return parts;
}

// Least first.
struct Rank {
  size_t others = 0;
  uint32_t distance = 0;
  bool host = false;
  uint32_t taken = 0;  // UINT32_MAX - room
  const PeerId* id = nullptr;
  friend bool operator<(const Rank& a, const Rank& b) {
    return std::tie(a.others, a.distance, a.host, a.taken) < std::tie(b.others, b.distance, b.host, b.taken);
  }
};

}  // namespace

uint32_t distance(const std::string& a, const std::string& b) {
  const auto left = parts_of(a);
  const auto right = parts_of(b);
  const size_t most = std::max(left.size(), right.size());
  size_t common = 0;
  while (common < std::min(left.size(), right.size()) && left[common] == right[common]) ++common;
  return static_cast<uint32_t>(most - common);
}

void DebtLedger::update(const PeerId& id, InstanceFigures figures, Nanos now) {
  auto it = entries_.find(id);
  bool unsorted = false;  // it may come after instances without room
  if (it == entries_.end()) {
    std::erase_if(entries_, [&](const auto& entry) { return entry.first.instance == id.instance; });
    it = entries_.emplace(id, LedgerEntry{}).first;
    it->second.id = id;
    unsorted = true;
  }
  LedgerEntry& entry = it->second;
  if (figures.room > 0) {
    unsorted = unsorted || entry.refused || entry.figures.room == 0;
    entry.refused = false;
  }
  entry.figures = std::move(figures);
  entry.heard = now;
  entry.sent.clear();
  entry.sent_blocks = 0;
  if (!unsorted) return;
  const auto earlier =
      std::find_if(order_.begin(), order_.end(), [&](const ByRoom& r) { return r.id == id; });
  if (earlier != order_.end()) {
    if (static_cast<size_t>(earlier - order_.begin()) < sorted_) --sorted_;
    order_.erase(earlier);
  }
  order_.push_back({id, UINT32_MAX});
}

void DebtLedger::remove(const PeerId& id) {
  entries_.erase(id);
}

void DebtLedger::expire(Nanos since) {
  std::erase_if(entries_, [&](const auto& entry) { return entry.second.heard < since; });
}

void DebtLedger::clear() {
  entries_.clear();
  order_.clear();
  sorted_ = 0;
}

void DebtLedger::sort() {
  order_.clear();
  for (const auto& [id, entry] : entries_) {
    order_.push_back({id, entry.refused ? 0 : entry.figures.room});
  }
  std::stable_sort(order_.begin(), order_.end(),
                   [](const ByRoom& a, const ByRoom& b) { return a.room > b.room; });
  sorted_ = order_.size();
}

Recommendation DebtLedger::recommend(const PeerId& debtor, uint32_t blocks, bool to_creditors) {
  const LedgerEntry* asker = find(debtor);
  const std::string nowhere;
  const std::string& here = asker ? asker->figures.location : nowhere;
  Recommendation out;
  std::vector<Rank> ranks;
  looked_at_ = 0;
  // Whether it may be asked at all.
  const auto look = [&](const PeerId& id) {
    ++looked_at_;
    const auto it = entries_.find(id);
    if (it == entries_.end() || id.instance == debtor.instance) return false;
    const LedgerEntry& entry = it->second;
    if (entry.refused && !mutant(Mutant::kRefuserRecommended)) return false;
    if (!to_creditors && entry.figures.owed.contains(debtor)) return false;
    const uint32_t room = entry.figures.room - std::min(entry.figures.room, entry.sent_blocks);
    out.largest_room = std::max(out.largest_room, room);
    if (room < blocks) return true;
    const auto others = static_cast<size_t>(std::count_if(
        entry.sent.begin(), entry.sent.end(), [&](const PeerId& sent) { return sent != debtor; }));
    ranks.push_back({others, distance(here, entry.figures.location), !entry.figures.device, UINT32_MAX - room,
                     &it->first});
    return true;
  };
  for (size_t i = sorted_; i < order_.size(); ++i) look(order_[i].id);
  // If no instance has enough, the first of those that may be asked says how much there is.
  for (size_t i = 0, asked = 0; i < sorted_; ++i) {
    if (order_[i].room < blocks && (asked > 0 || order_[i].room == 0)) break;
    if (look(order_[i].id)) ++asked;
  }
  const size_t count = std::min(ranks.size(), kMostCreditors);
  std::partial_sort(ranks.begin(), ranks.begin() + static_cast<std::ptrdiff_t>(count), ranks.end());
  for (size_t i = 0; i < count; ++i) out.creditors.push_back(*ranks[i].id);
  if (count > 0) {
    LedgerEntry& first = entries_.at(out.creditors.front());
    if (std::find(first.sent.begin(), first.sent.end(), debtor) == first.sent.end())
      first.sent.push_back(debtor);
    first.sent_blocks += std::min(blocks, UINT32_MAX - first.sent_blocks);
  }
  return out;
}

void DebtLedger::refused(const PeerId& creditor) {
  const auto it = entries_.find(creditor);
  if (it != entries_.end()) it->second.refused = true;
}

const LedgerEntry* DebtLedger::find(const PeerId& id) const {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : &it->second;
}

std::vector<PeerId> DebtLedger::instances() const {
  std::vector<PeerId> out;
  for (const auto& entry : entries_) out.push_back(entry.first);
  return out;
}

std::vector<Debt> DebtLedger::debts() const {
  std::map<PeerId, uint32_t, ByPeer> number;
  for (const auto& entry : entries_) number.emplace(entry.first, static_cast<uint32_t>(number.size()));
  std::vector<Debt> out;
  for (const auto& [id, entry] : entries_) {
    for (const auto& [debtor, blocks] : entry.figures.lent) {
      const auto it = number.find(debtor);
      if (it == number.end() || debtor == id || blocks == 0) continue;
      out.push_back({it->second, number.at(id), blocks});
    }
  }
  return out;
}

std::string DebtLedger::describe() const {
  std::string out;
  for (const auto& [id, entry] : entries_) {
    out += fmt::format("  {} free {}/{} room {} heard {} sent {} of {}{} lent", name_of(id),
                       entry.figures.free, entry.figures.total, entry.figures.room, entry.heard,
                       entry.sent_blocks, entry.sent.size(), entry.refused ? " refused" : "");
    for (const auto& [debtor, blocks] : entry.figures.lent)
      out += fmt::format(" {}:{}", name_of(debtor), blocks);
    out += " owed";
    for (const auto& [creditor, blocks] : entry.figures.owed) {
      out += fmt::format(" {}:{}", name_of(creditor), blocks);
    }
    out += "\n";
  }
  return out;
}

}  // namespace kvasir::cluster
