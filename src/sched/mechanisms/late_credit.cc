#include "sched/mechanisms/late_credit.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <sstream>

namespace kvasir {
namespace {

constexpr double kShareOfTime = 0.02;  // phi

}  // namespace

std::vector<LateCredit::Debtor>::iterator LateCredit::place_of(uint64_t id) {
  return std::lower_bound(on_credit_.begin(), on_credit_.end(), id,
                          [](const Debtor& d, uint64_t wanted) { return d.id < wanted; });
}

void LateCredit::earn(Nanos now, double most_s) {
  if (last_ > 0 && now > last_) balance_s_ += kShareOfTime * to_seconds(now - last_);
  balance_s_ = std::min(balance_s_, most_s);
  last_ = now;
}

bool LateCredit::has_turn(SeqId first, double cost_s) {
  if (next_ != raw(first)) next_ = covers(cost_s) ? raw(first) : 0;
  return next_ == raw(first);
}

void LateCredit::spend(SeqId id, double cost_s) {
  next_ = 0;
  const auto at = place_of(raw(id));
  if (at != on_credit_.end() && at->id == raw(id)) return;
  balance_s_ -= cost_s;
  on_credit_.insert(at, {raw(id), ++turns_, cost_s});
}

void LateCredit::note_cost(SeqId id, double cost_s) {
  const auto at = place_of(raw(id));
  if (at == on_credit_.end() || at->id != raw(id)) return;
  balance_s_ -= std::max(0.0, cost_s - at->least_s);
  at->least_s = cost_s;
}

uint64_t LateCredit::turn_of(SeqId id) const {
  const auto at = std::lower_bound(on_credit_.begin(), on_credit_.end(), raw(id),
                                   [](const Debtor& d, uint64_t wanted) { return d.id < wanted; });
  return at == on_credit_.end() || at->id != raw(id) ? 0 : at->turn;
}

void LateCredit::keep_only(const std::vector<uint64_t>& live) {
  std::erase_if(on_credit_,
                [&](const Debtor& d) { return !std::binary_search(live.begin(), live.end(), d.id); });
}

std::string LateCredit::save() const {
  std::string out = fmt::format("{} {} {} {}", last_, balance_s_, next_, turns_);
  for (const Debtor& d : on_credit_) {
    fmt::format_to(std::back_inserter(out), " {} {} {}", d.id, d.turn, d.least_s);
  }
  return out;
}

Status LateCredit::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  LateCredit read;
  bool good = static_cast<bool>(in >> read.last_ >> read.balance_s_ >> read.next_ >> read.turns_);
  for (Debtor d; good && in >> d.id;) {
    good = static_cast<bool>(in >> d.turn >> d.least_s) && d.turn > 0 && d.turn <= read.turns_ &&
           (read.on_credit_.empty() || read.on_credit_.back().id < d.id);
    read.on_credit_.push_back(d);
  }
  if (!good || !in.eof()) {
    return error(ErrorCode::kCorrupt, "not the state of a late credit: '{}'", text);
  }
  *this = std::move(read);
  return {};
}

}  // namespace kvasir
