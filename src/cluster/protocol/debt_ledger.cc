#include "cluster/protocol/debt_ledger.h"

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "base/mutant.h"
#include "base/units.h"

namespace kvasir::cluster {
namespace {

struct Candidate {
  size_t others = 0;
  uint32_t distance = 0;
  uint32_t room = 0;
  uint32_t blocks = 0;    // that it lends
  bool reserved = false;  // it counts against the spare of the reservation
  bool before_own = false;
  LedgerEntry* entry = nullptr;
  // Least first.
  friend bool operator<(const Candidate& a, const Candidate& b) {
    const bool a_host = !a.entry->figures.device, b_host = !b.entry->figures.device;
    return std::tie(a.others, a.distance, a_host, b.room) < std::tie(b.others, b.distance, b_host, a.room);
  }
};

// Divides what they lend in all evenly, as far as each has room: they attend side by side.
void lend_alike(std::vector<Candidate*> creditors) {
  uint64_t left = 0;
  for (const Candidate* c : creditors) left += c->blocks;
  std::sort(creditors.begin(), creditors.end(),
            [](const Candidate* a, const Candidate* b) { return a->room < b->room; });
  for (size_t i = 0; i < creditors.size(); ++i) {
    const uint64_t rest = creditors.size() - i;
    creditors[i]->blocks =
        static_cast<uint32_t>(std::min<uint64_t>(creditors[i]->room, ceil_div(left, rest)));
    left -= creditors[i]->blocks;
  }
}

}  // namespace

std::vector<Due> joined_due(std::vector<Due> due, Nanos step, size_t most) {
  if (due.size() <= most) return due;
  std::sort(due.begin(), due.end(), [](const Due& a, const Due& b) { return a.at < b.at; });
  std::vector<Due> out;
  for (const Due& each : due) {
    if (out.empty() || out.back().at / step != each.at / step) {
      if (out.size() == most) break;
      out.push_back({each.at, 0});
    }
    out.back().at = each.at;
    out.back().blocks += each.blocks;
  }
  return out;
}

uint32_t distance(const std::string& a, const std::string& b) {
  const auto parts = [](std::string_view l) {
    return l.empty() ? 0 : static_cast<uint32_t>(std::count(l.begin(), l.end(), '/') + 1);
  };
  // What both begin with, up to the end of a part in both.
  const size_t same = static_cast<size_t>(
      std::mismatch(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(std::min(a.size(), b.size())),
                    b.begin())
          .first -
      a.begin());
  const auto ends = [&](const std::string& l) { return same == l.size() || l[same] == '/'; };
  uint32_t common =
      static_cast<uint32_t>(std::count(a.begin(), a.begin() + static_cast<std::ptrdiff_t>(same), '/'));
  if (same > 0 && ends(a) && ends(b)) ++common;
  return std::max(parts(a), parts(b)) - common;
}

Nanos DebtLedger::time_of(const PeerId& id, int64_t since_there, int64_t now_there, Nanos now) const {
  const LedgerEntry* entry = find(id);
  const Nanos said = entry ? within_range(now_there) + entry->ahead : now;
  return said - age_of(since_there, now_there);
}

bool DebtLedger::update(const PeerId& id, InstanceFigures figures, Nanos now, int64_t now_there) {
  // The fastest message counts; a clock may gain or lose so much meanwhile.
  constexpr int64_t kDrift = 10'000;
  auto it = entries_.find(id);
  if (it == entries_.end()) {
    const auto earlier = std::find_if(entries_.begin(), entries_.end(),
                                      [&](const auto& entry) { return entry.first.instance == id.instance; });
    if (earlier != entries_.end()) remove(PeerId(earlier->first));
    it = entries_.emplace(id, LedgerEntry{}).first;
    it->second.id = id;
    it->second.ahead = INT64_MAX / 4;
  }
  LedgerEntry& entry = it->second;
  entry.ahead = std::min(entry.ahead + (now - entry.heard) / kDrift, now - within_range(now_there));
  if (figures.own > 0) figures.own_since = time_of(id, figures.own_since, now_there, now);
  for (Due& due : figures.due) due.at = within_range(due.at) + entry.ahead;
  if (figures.room > 0) entry.refused = false;
  const uint32_t own = entry.figures.own, room = entry.sorted;
  lendable_ += figures.lendable;
  lendable_ -= entry.figures.lendable;
  entry.figures = std::move(figures);
  entry.heard = now;
  entry.sent.clear();
  entry.sent_blocks = 0;
  entry.sent_due.clear();
  sort(entry);
  return entry.sorted != room || entry.figures.own != own;
}

void DebtLedger::sort(LedgerEntry& entry) {
  const bool out = entry.refused && !mutant(Mutant::kRefuserRecommended);
  const uint32_t room = out ? 0 : entry.figures.room - std::min(entry.figures.room, entry.sent_blocks);
  if (room == entry.sorted) return;
  if (entry.sorted > 0) by_room_.erase(&entry);
  room_ += room;
  room_ -= entry.sorted;
  entry.sorted = room;
  if (room > 0) by_room_.insert(&entry);
}

void DebtLedger::remove(const PeerId& id) {
  const auto it = entries_.find(id);
  if (it == entries_.end()) return;
  lendable_ -= it->second.figures.lendable;
  it->second.figures.room = 0;
  sort(it->second);
  entries_.erase(it);
}

void DebtLedger::expire(Nanos since) {
  for (auto it = entries_.begin(); it != entries_.end();) {
    const auto entry = it++;
    if (entry->second.heard < since) remove(PeerId(entry->first));
  }
}

void DebtLedger::clear() {
  by_room_.clear();
  entries_.clear();
  room_ = 0;
  lendable_ = 0;
}

bool DebtLedger::may_lend(const LedgerEntry& entry, const PeerId& debtor, bool to_creditors) const {
  if (entry.refused && !mutant(Mutant::kRefuserRecommended)) return false;
  return may_ever_lend(entry, debtor, to_creditors);
}

bool DebtLedger::may_ever_lend(const LedgerEntry& entry, const PeerId& debtor, bool to_creditors) const {
  if (entry.id.instance == debtor.instance) return false;
  return to_creditors || !entry.figures.owed.contains(debtor);
}

uint64_t DebtLedger::lendable_to(const PeerId& debtor) const {
  const LedgerEntry* own = find(debtor);
  return lendable_ - (own ? own->figures.lendable : 0);
}

std::vector<Due> DebtLedger::due_for(const PeerId& debtor, bool to_creditors) const {
  size_t all = 0;
  for (const auto& [id, entry] : entries_) all += entry.figures.due.size() + entry.sent_due.size();
  std::vector<Due> out;
  out.reserve(all);
  for (const auto& [id, entry] : entries_) {
    // One that has refused lends again when its blocks are back.
    if (!may_ever_lend(entry, debtor, to_creditors)) continue;
    out.insert(out.end(), entry.figures.due.begin(), entry.figures.due.end());
    out.insert(out.end(), entry.sent_due.begin(), entry.sent_due.end());
  }
  return out;
}

bool DebtLedger::may_lend_to_any(const LedgerEntry& entry, std::span<const PeerId> debtors,
                                 bool to_creditors) const {
  return std::any_of(debtors.begin(), debtors.end(),
                     [&](const PeerId& debtor) { return may_lend(entry, debtor, to_creditors); });
}

uint64_t DebtLedger::room_not_for(std::span<const PeerId> debtors, bool to_creditors) const {
  uint64_t room = 0;
  for (const LedgerEntry* entry : by_room_)
    room += may_lend_to_any(*entry, debtors, to_creditors) ? 0 : entry->sorted;
  return room;
}

Allocation DebtLedger::allocate(const Demand& demand, Nanos now, bool to_creditors,
                                const std::optional<Reservation>& before, std::span<const PeerId> kept_for) {
  const LedgerEntry* asker = find(demand.debtor);
  const std::string nowhere;
  const std::string& here = asker ? asker->figures.location : nowhere;
  std::vector<Candidate> there;
  uint64_t free = 0, reserved = 0;
  const uint32_t spare = before ? before->spare : UINT32_MAX;
  looked_at_ = 0;
  for (LedgerEntry* entry : by_room_) {
    ++looked_at_;
    if (!may_lend(*entry, demand.debtor, to_creditors)) continue;
    if (may_lend_to_any(*entry, kept_for, to_creditors)) continue;
    const InstanceFigures& f = entry->figures;
    Candidate c{.entry = entry};
    c.before_own = f.own > 0 && goes_first(demand.debtor, demand.since, entry->id, f.own_since);
    const uint32_t kept = c.before_own ? 0 : f.own;
    c.room = std::min(f.room, f.free - std::min(f.free, kept));
    c.room -= std::min(c.room, entry->sent_blocks);
    if (c.room == 0) continue;
    c.others = static_cast<size_t>(std::count_if(entry->sent.begin(), entry->sent.end(),
                                                 [&](const PeerId& sent) { return sent != demand.debtor; }));
    c.distance = distance(here, f.location);
    c.reserved = before && may_lend(*entry, before->debtor, to_creditors);
    if (c.reserved) c.room = std::min(c.room, spare);
    (c.reserved ? reserved : free) += c.room;
    if (c.room > 0) there.push_back(c);
  }

  Allocation out;
  out.room =
      static_cast<uint32_t>(std::min<uint64_t>(free + std::min<uint64_t>(reserved, spare), UINT32_MAX));
  if (there.empty() || out.room < demand.least) return out;
  const bool one =
      std::any_of(there.begin(), there.end(), [&](const Candidate& c) { return c.room >= demand.most; });
  if (one) std::erase_if(there, [&](const Candidate& c) { return c.room < demand.most; });
  std::sort(there.begin(), there.end());
  uint32_t left = std::min(demand.most, out.room), got = 0, spare_left = spare;
  std::vector<Candidate*> on_devices, on_hosts;
  for (Candidate& c : there) {
    if (left == 0 || (on_devices.size() + on_hosts.size() >= kMostCreditors && got >= demand.least)) break;
    if (c.reserved) c.room = std::min(c.room, spare_left);
    c.blocks = std::min(c.room, left);
    if (c.blocks == 0) continue;
    if (c.reserved) {
      c.room = c.blocks;
      spare_left -= c.blocks;
    }
    left -= c.blocks;
    got += c.blocks;
    (c.entry->figures.device ? on_devices : on_hosts).push_back(&c);
  }
  lend_alike(on_devices);
  lend_alike(on_hosts);
  for (const Candidate& c : there) {
    if (c.blocks == 0) continue;
    out.shares.push_back({c.entry->id, c.blocks, c.before_own});
    std::vector<PeerId>& sent = c.entry->sent;
    if (std::find(sent.begin(), sent.end(), demand.debtor) == sent.end()) sent.push_back(demand.debtor);
    c.entry->sent_blocks += std::min(c.blocks, UINT32_MAX - c.entry->sent_blocks);
    if (demand.hold) c.entry->sent_due.push_back({now + *demand.hold, c.blocks});
    sort(*c.entry);
  }
  return out;
}

void DebtLedger::refused(const PeerId& creditor) {
  const auto it = entries_.find(creditor);
  if (it == entries_.end()) return;
  it->second.refused = true;
  sort(it->second);
}

const LedgerEntry* DebtLedger::find(const PeerId& id) const {
  const auto it = entries_.find(id);
  return it == entries_.end() ? nullptr : &it->second;
}

LedgerEntry* DebtLedger::find(const PeerId& id) {
  return const_cast<LedgerEntry*>(std::as_const(*this).find(id));
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
    out +=
        fmt::format("  {} free {}/{} room {} own {} since {} heard {} ahead {} sent {} of {}{}{} lent",
                    name_of(id), entry.figures.free, entry.figures.total, entry.figures.room,
                    entry.figures.own, entry.figures.own_since, entry.heard, entry.ahead, entry.sent_blocks,
                    entry.sent.size(), entry.refused ? " refused" : "", entry.told_who_waits ? " told" : "");
    for (const auto& [debtor, blocks] : entry.figures.lent)
      out += fmt::format(" {}:{}", name_of(debtor), blocks);
    out += " owed";
    for (const auto& [creditor, blocks] : entry.figures.owed) {
      out += fmt::format(" {}:{}", name_of(creditor), blocks);
    }
    for (const std::vector<Due>& all : {entry.figures.due, entry.sent_due}) {
      out += " due";
      for (const Due& due : all) out += fmt::format(" {}:{}", due.at, due.blocks);
    }
    out += "\n";
  }
  return out;
}

}  // namespace kvasir::cluster
