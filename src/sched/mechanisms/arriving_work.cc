#include "sched/mechanisms/arriving_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <sstream>

#include "sched/mechanisms/new_arrivals.h"
#include "sched/mechanisms/token_due.h"

namespace kvasir {
namespace {

constexpr double kArrivalSeconds = 30;
constexpr double kForgottenRequests = 1e-3;  // a weight that says nothing any more
constexpr int kClassesPerOctave = 4;

// Infinite gaps are all alike.
int gap_key(double gap_s) {
  if (std::isinf(gap_s)) return std::numeric_limits<int>::max();
  return static_cast<int>(std::floor(kClassesPerOctave * std::log2(gap_s)));
}

}  // namespace

void ArrivingWork::decay_to(Nanos now) {
  if (now <= last_) return;
  const double left = std::exp(-to_seconds(now - last_) / kArrivalSeconds);
  for (GapClass& c : classes_) {
    c.requests *= left;
    c.worth *= left;
    c.prompt_tokens *= left;
    c.output_tokens *= left;
  }
  std::erase_if(classes_, [](const GapClass& c) { return c.requests < kForgottenRequests; });
  last_ = now;
}

GapClass& ArrivingWork::class_of(double gap_s) {
  const int key = gap_key(gap_s);
  auto at = std::find_if(classes_.begin(), classes_.end(),
                         [&](const GapClass& c) { return gap_key(c.gap_s) >= key; });
  if (at == classes_.end() || gap_key(at->gap_s) != key) {
    at = classes_.insert(at, GapClass{});
    at->gap_s = gap_s;
  }
  at->gap_s = std::min(at->gap_s, gap_s);
  return *at;
}

void ArrivingWork::observe(const View& view) {
  for_each_new_arrival(view, newest_, [&](const SeqView& seq) {
    if (first_ == 0) first_ = last_ = std::max<Nanos>(seq.arrival, 1);
    decay_to(seq.arrival);
    GapClass& c = class_of(allowed_gap(seq.slo));
    c.requests += 1;
    c.worth += seq.weight;
    c.prompt_tokens += seq.prompt_tokens - seq.cached_tokens;
    c.output_tokens += std::max(1u, seq.predicted.output_tokens);
  });
  if (first_ > 0) decay_to(view.now);
}

double ArrivingWork::seconds() const {
  // What a steady rate would have left by now; the first second says too little.
  const double watched = std::max(1.0, to_seconds(last_ - first_));
  return kArrivalSeconds * -std::expm1(-watched / kArrivalSeconds);
}

double ArrivingWork::prompt_tokens_per_s() const {
  double tokens = 0;
  for (const GapClass& c : classes_) tokens += c.prompt_tokens;
  return tokens / seconds();
}

std::string ArrivingWork::save() const {
  std::string out = fmt::format("{} {} {}", newest_, first_, last_);
  for (const GapClass& c : classes_) {
    // 0: none
    fmt::format_to(std::back_inserter(out), " {} {} {} {} {}", std::isinf(c.gap_s) ? 0 : c.gap_s, c.requests,
                   c.worth, c.prompt_tokens, c.output_tokens);
  }
  return out;
}

Status ArrivingWork::restore(std::string_view text) {
  std::istringstream in{std::string(text)};
  ArrivingWork read;
  bool good = static_cast<bool>(in >> read.newest_ >> read.first_ >> read.last_);
  for (GapClass c; good && in >> c.gap_s;) {
    good =
        static_cast<bool>(in >> c.requests >> c.worth >> c.prompt_tokens >> c.output_tokens) && c.gap_s >= 0;
    if (c.gap_s == 0) c.gap_s = std::numeric_limits<double>::infinity();
    read.classes_.push_back(c);
  }
  if (!good || !in.eof()) return error(ErrorCode::kCorrupt, "not the state of arriving work: '{}'", text);
  *this = std::move(read);
  return {};
}

}  // namespace kvasir
