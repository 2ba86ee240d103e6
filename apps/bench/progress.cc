#include "apps/bench/progress.h"

#include <fmt/format.h>

#include <ostream>

namespace kvasir {
namespace {

constexpr Nanos kTerminalPeriod = kNanosPerSecond / 4;
constexpr Nanos kLinePeriod = 10 * kNanosPerSecond;
constexpr int64_t kBarWidth = 24;

}  // namespace

std::string progress_text(const LoadProgress& now, const LoadProgress& before) {
  const double span = to_seconds(now.elapsed - before.elapsed);
  const double speed = span > 0 ? static_cast<double>(now.chunks - before.chunks) / span : 0;
  std::string text = fmt::format("{}/{} done, {} running, {} failed, {:.0f} tok/s", now.ended, now.total,
                                 now.in_flight, now.failed, speed);
  if (now.ended > 0 && now.ended < now.total) {
    const double left = static_cast<double>(now.total - now.ended) / static_cast<double>(now.ended);
    text += fmt::format(", {:.0f} s left", to_seconds(now.elapsed) * left);
  }
  return text;
}

ProgressLine::ProgressLine(std::ostream& err, bool terminal, std::string name)
    : err_(err), terminal_(terminal), name_(name.empty() ? name : name + ": ") {}

ProgressLine::~ProgressLine() {
  if (terminal_) err_ << "\r\x1b[K" << std::flush;
}

Nanos ProgressLine::period() const {
  return terminal_ ? kTerminalPeriod : kLinePeriod;
}

void ProgressLine::show(const LoadProgress& progress) {
  const std::string text = name_ + progress_text(progress, before_);
  before_ = progress;
  if (!terminal_) {
    err_ << text << std::endl;
    return;
  }
  const int64_t full = progress.total > 0 ? kBarWidth * progress.ended / progress.total : 0;
  err_ << fmt::format("\r[{:#<{}}{:.<{}}] {}\x1b[K", "", full, "", kBarWidth - full, text) << std::flush;
}

}  // namespace kvasir
