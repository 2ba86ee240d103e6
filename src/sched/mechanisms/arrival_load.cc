#include "sched/mechanisms/arrival_load.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <sstream>

#include "sched/mechanisms/new_arrivals.h"

namespace kvasir {
namespace {

constexpr double kMemorySeconds = 30;
constexpr double kHighestConfidence = 0.999;

}  // namespace

double confidence_at(double load, const ConfidenceOptions& options) {
  const double c = options.fixed > 0 ? options.fixed : options.most / (1 + options.falling * load);
  return std::clamp(c, 0.0, kHighestConfidence);
}

void ArrivalLoad::decay_to(Nanos now) {
  if (now <= last_) return;
  const double left = std::exp(-to_seconds(now - last_) / kMemorySeconds);
  arrivals_ *= left;
  prompt_tokens_ *= left;
  output_tokens_ *= left;
  last_ = now;
}

void ArrivalLoad::observe(const View& view) {
  for_each_new_arrival(view, newest_, [&](const SeqView& seq) {
    if (first_ == 0) first_ = last_ = std::max<Nanos>(seq.arrival, 1);
    decay_to(seq.arrival);
    arrivals_ += 1;
    prompt_tokens_ += seq.prompt_tokens;
    output_tokens_ += seq.predicted.output_tokens;
  });
  if (first_ > 0) decay_to(view.now);
}

double ArrivalLoad::rate() const {
  if (first_ == 0) return 0;
  // What a steady rate would have left by now; the first second says too little.
  const double watched = std::max(1.0, to_seconds(last_ - first_));
  return arrivals_ / (kMemorySeconds * -std::expm1(-watched / kMemorySeconds));
}

double ArrivalLoad::capacity(const View& view) const {
  if (!view.costs.known() || arrivals_ <= 0) return 0;
  const double prompt = prompt_tokens_ / arrivals_;
  const double output = std::max(1.0, output_tokens_ / arrivals_);
  const double tokens = static_cast<double>(view.geometry.block_tokens) * view.total_cells(Tier::kDevice) /
                        view.geometry.groups();
  const double batch =
      std::clamp(tokens / (prompt + output / 2), 1.0, static_cast<double>(view.limits.max_num_seqs));
  const CostModel& c = view.costs;
  const double prefill = c.rows_seconds(prompt);
  const double decode = c.decode_seconds(batch, batch * (prompt + output / 2)) / batch;
  const double seconds = prefill + output * decode;
  return seconds > 0 ? 1 / seconds : 0;
}

double ArrivalLoad::load(const View& view) const {
  const double most = capacity(view);
  return most > 0 ? rate() / most : 0;
}

std::string ArrivalLoad::save() const {
  return fmt::format("{} {} {} {} {} {}", newest_, first_, last_, arrivals_, prompt_tokens_, output_tokens_);
}

Status ArrivalLoad::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  ArrivalLoad read;
  if (!(in >> read.newest_ >> read.first_ >> read.last_ >> read.arrivals_ >> read.prompt_tokens_ >>
        read.output_tokens_)) {
    return error(ErrorCode::kCorrupt, "not the state of an arrival load: '{}'", text);
  }
  *this = read;
  return {};
}

}  // namespace kvasir
