#include "sched/mechanisms/device_prices.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace kvasir {
namespace {

constexpr double kKeptOfShare = 0.98922801319397548;  // 2^(-1/64)

bool is_share(double value) {
  return value >= 0 && value <= 1;
}

}  // namespace

double DevicePrices::finish_s(const CostModel& costs, const RequestWork& work) const {
  return (memory + costs.context_s) * work.token_steps + (slot + costs.decode_row_s) * work.steps +
         costs.prefill_row_s * work.prefill.prefill_rows + costs.pair_s * work.prefill.prefill_pairs;
}

void Shortages::observe(Refusal refusal) {
  const auto move = [](double& share, bool to_one) {
    share = share * kKeptOfShare + (to_one ? 1 - kKeptOfShare : 0);
  };
  move(memory_, refusal == Refusal::kMemory);
  move(slots_, refusal == Refusal::kSlots);
}

DevicePrices Shortages::prices(const CostModel& costs, double tokens, double max_num_seqs) const {
  DevicePrices out;
  out.memory = memory_ * costs.weights_s() / std::max(tokens, 1.0);
  out.slot = slots_ * costs.weights_s() / std::max(max_num_seqs, 1.0);
  return out;
}

std::string Shortages::save() const {
  return fmt::format("{} {}", memory_, slots_);
}

Status Shortages::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  Shortages read;
  if (!(in >> read.memory_ >> read.slots_) || !is_share(read.memory_) || !is_share(read.slots_)) {
    return error(ErrorCode::kCorrupt, "not the shares of shortages: '{}'", text);
  }
  *this = read;
  return {};
}

}  // namespace kvasir
