#include "sched/policies/auto_state.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

namespace kvasir {
namespace {

constexpr uint32_t kPlansUntilForgotten = 256;
constexpr size_t kParts = 10;

Status restore_gap(std::string_view text, AutoState& state) {
  std::istringstream in{std::string(text)};
  double least_gap_s = 0;
  uint32_t plans = 0;
  if (!(in >> least_gap_s >> plans)) {
    return error(ErrorCode::kCorrupt, "not the least gap that is kept: '{}'", text);
  }
  state.least_gap_s = least_gap_s < 0 ? std::numeric_limits<double>::infinity() : least_gap_s;
  state.plans = plans;
  return {};
}

}  // namespace

void AutoState::forget_ended(const View& view) {
  if (++plans < kPlansUntilForgotten) return;
  plans = 0;
  if (!credit.any() && !news.any()) return;
  std::vector<uint64_t> live;
  live.reserve(view.running.size() + view.waiting.size());
  for (const auto* all : {&view.running, &view.waiting}) {
    for (const SeqView& seq : *all) live.push_back(raw(seq.id));
  }
  std::sort(live.begin(), live.end());
  credit.keep_only(live);
  news.keep_only(live);
}

std::string AutoState::save() const {
  return fmt::format("{} {}; {}; {}; {}; {}; {}; {}; {}; {}; {}", std::isinf(least_gap_s) ? -1 : least_gap_s,
                     plans, margins.save(), arriving.save(), shortages.save(), credit.save(), stretch.save(),
                     news.save(), turns.save(), returns.save(), scale.save());
}

Status AutoState::restore(std::string_view text) {
  if (std::count(text.begin(), text.end(), ';') != kParts - 1) {
    return error(ErrorCode::kCorrupt, "not a state of the policy auto: '{}'", text);
  }
  std::array<std::string_view, kParts> part;
  for (std::string_view& p : part) {
    const size_t end = text.find(';');
    p = text.substr(0, end);
    if (end != std::string_view::npos) text.remove_prefix(end + 1);
  }
  AutoState read;
  KV_RETURN_IF_ERROR(restore_gap(part[0], read));
  KV_RETURN_IF_ERROR(read.margins.restore(part[1]));
  KV_RETURN_IF_ERROR(read.arriving.restore(part[2]));
  KV_RETURN_IF_ERROR(read.shortages.restore(part[3]));
  KV_RETURN_IF_ERROR(read.credit.restore(part[4]));
  KV_RETURN_IF_ERROR(read.stretch.restore(part[5]));
  KV_RETURN_IF_ERROR(read.news.restore(part[6]));
  KV_RETURN_IF_ERROR(read.turns.restore(part[7]));
  KV_RETURN_IF_ERROR(read.returns.restore(part[8]));
  KV_RETURN_IF_ERROR(read.scale.restore(part[9]));
  *this = std::move(read);
  return {};
}

}  // namespace kvasir
