#include "sched/mechanisms/late_credit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <sstream>

namespace kvasir {
namespace {

constexpr double kShareOfTime = 0.05;  // phi

}  // namespace

void LateCredit::earn(Nanos now, double most_s) {
  if (most_s > 0 && last_ > 0 && now > last_) balance_s_ += kShareOfTime * to_seconds(now - last_);
  balance_s_ = std::min(balance_s_, most_s);
  last_ = now;
}

bool LateCredit::has_turn(SeqId first, double cost_s) {
  if (turn_ != raw(first)) turn_ = covers(cost_s) ? raw(first) : 0;
  return turn_ == raw(first);
}

void LateCredit::spend(SeqId id, double cost_s) {
  balance_s_ = std::max(0.0, balance_s_ - cost_s);
  turn_ = 0;
  const auto at = std::lower_bound(on_credit_.begin(), on_credit_.end(), raw(id));
  if (at == on_credit_.end() || *at != raw(id)) on_credit_.insert(at, raw(id));
}

bool LateCredit::runs_on_credit(SeqId id) const {
  return std::binary_search(on_credit_.begin(), on_credit_.end(), raw(id));
}

void LateCredit::keep_only(const std::vector<uint64_t>& live) {
  std::erase_if(on_credit_, [&](uint64_t id) { return !std::binary_search(live.begin(), live.end(), id); });
}

std::string LateCredit::save() const {
  return fmt::format("{} {} {} {}", last_, balance_s_, turn_, fmt::join(on_credit_, " "));
}

Status LateCredit::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  LateCredit read;
  bool good = static_cast<bool>(in >> read.last_ >> read.balance_s_ >> read.turn_);
  for (uint64_t id; good && in >> id;) read.on_credit_.push_back(id);
  if (!good || !in.eof() || !std::is_sorted(read.on_credit_.begin(), read.on_credit_.end())) {
    return error(ErrorCode::kCorrupt, "not the state of a late credit: '{}'", text);
  }
  *this = std::move(read);
  return {};
}

}  // namespace kvasir
