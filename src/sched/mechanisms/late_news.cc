#include "sched/mechanisms/late_news.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <sstream>

namespace kvasir {
namespace {

double bound_s(uint32_t millis) {
  return millis / 1e3;
}

}  // namespace

void LateNews::begin(Nanos now) {
  before_ = now_;
  now_ = now;
}

void LateNews::note(const SeqView& seq, const TokenDue& due, double least_gap_s) {
  const Slo& slo = seq.slo;
  if (due.missed) {
    const double age_s = to_seconds(now_ - seq.arrival);
    const double since_s = to_seconds(now_ - before_);
    const double first_age_s =
        seq.first_token_time > 0 ? to_seconds(seq.first_token_time - seq.arrival) : age_s;
    const auto missed = [](double after_s, uint32_t millis) {
      return millis > 0 && after_s > bound_s(millis);
    };
    const auto is_news = [&](uint32_t millis) { return age_s - bound_s(millis) <= since_s; };
    if (missed(age_s, slo.e2el_ms) && is_news(slo.e2el_ms)) {
      news_.push_back({Cause::kMissedEnd, seq.id, {}, age_s - bound_s(slo.e2el_ms), bound_s(slo.e2el_ms)});
    }
    if (missed(first_age_s, slo.ttft_ms)) {
      if (is_news(slo.ttft_ms)) {
        news_.push_back(
            {Cause::kMissedTtft, seq.id, {}, first_age_s - bound_s(slo.ttft_ms), bound_s(slo.ttft_ms)});
      }
      return;
    }
    if (missed(age_s, slo.e2el_ms)) return;
    return tell_once({Cause::kMissedGap, seq.id, {}, bound_s(slo.tbt_ms)});
  }
  if (due.behind) {
    const bool mean = slo.tpot_ms > 0 && slo.e2el_ms == 0;
    return tell_once({mean ? Cause::kBehindMean : Cause::kBehindEnd, seq.id, {}, std::max(0.0, -due.left_s)});
  }
  const double gap_s = allowed_gap(slo);
  if (gap_s < least_gap_s) {
    if (std::isinf(least_gap_s)) return tell_once({Cause::kNoGapIsKept, seq.id, {}, gap_s});
    tell_once({Cause::kGapIsGivenUp, seq.id, {}, gap_s, least_gap_s});
  }
}

void LateNews::note_stretched(const SeqView& seq, double stretch) {
  tell_once({Cause::kStretched, seq.id, {}, stretch});
}

void LateNews::tell_once(const Reason& reason) {
  const auto at = std::lower_bound(told_.begin(), told_.end(), raw(reason.seq));
  if (at != told_.end() && *at == raw(reason.seq)) return;
  told_.insert(at, raw(reason.seq));
  news_.push_back(reason);
}

void LateNews::keep_only(const std::vector<uint64_t>& live) {
  std::erase_if(told_, [&](uint64_t id) { return !std::binary_search(live.begin(), live.end(), id); });
}

std::string LateNews::save() const {
  return fmt::format("{} {}", now_, fmt::join(told_, " "));
}

Status LateNews::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  LateNews read;
  bool good = static_cast<bool>(in >> read.now_);
  for (uint64_t id; good && in >> id;) read.told_.push_back(id);
  if (!good || !in.eof() || !std::is_sorted(read.told_.begin(), read.told_.end())) {
    return error(ErrorCode::kCorrupt, "not a list of late requests: '{}'", text);
  }
  *this = std::move(read);
  return {};
}

}  // namespace kvasir
