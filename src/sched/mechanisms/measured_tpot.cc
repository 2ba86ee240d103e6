#include "sched/mechanisms/measured_tpot.h"

#include <fmt/format.h>

#include <algorithm>
#include <sstream>

namespace kvasir {
namespace {

constexpr double kStays = 31.0 / 32;

}  // namespace

void MeasuredTpot::observe(const View& view) {
  double request_s = 0, tokens = 0;
  bool any = false;
  for (const auto* sequences : {&view.running, &view.waiting}) {
    for (const SeqView& seq : *sequences) {
      if (seq.first_token_time == 0) continue;
      any = true;
      request_s += to_seconds(std::max<Nanos>(0, view.now - std::max(last_, seq.first_token_time)));
      tokens += seq.last_token_time > std::max(last_, seq.first_token_time);
    }
  }
  const bool first = last_ == 0;
  last_ = view.now;
  if (!any) request_s_ = tokens_ = 0;
  if (!any || first) return;
  if (tokens > 0) {
    request_s_ *= kStays;
    tokens_ *= kStays;
  }
  request_s_ += request_s;
  tokens_ += tokens;
}

std::string MeasuredTpot::save() const {
  return fmt::format("{} {} {}", last_, request_s_, tokens_);
}

Status MeasuredTpot::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  MeasuredTpot read;
  if (!(in >> read.last_ >> read.request_s_ >> read.tokens_)) {
    return error(ErrorCode::kCorrupt, "not the state of a measured TPOT: '{}'", text);
  }
  *this = read;
  return {};
}

}  // namespace kvasir
