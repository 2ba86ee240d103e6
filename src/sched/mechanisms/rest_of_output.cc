#include "sched/mechanisms/rest_of_output.h"

#include <algorithm>
#include <cmath>

namespace kvasir {
namespace {

// So few say little of a distribution.
constexpr uint64_t kFewestEnded = 20;
constexpr double kLeastRest = 8;  // of one that has outlived what was believed of it
constexpr double kShareOfAge = 0.5;
constexpr size_t kTableSize = 64;
constexpr double kLeastWidth = 16;  // tokens
// A uniform tail with the mean of the exponential one: 2 theta, of which the last two quantiles, at 95 and
// 99 %, are theta ln 5 apart.
constexpr double kTail = 2 / 1.6094379124341003;

// Probability mass `share`, uniform on [low, high].
struct Piece {
  double share, low, high;
};
constexpr size_t kPieces = LengthClass::kQuantiles.size() + 1;

std::array<Piece, kPieces> pieces_of(const LengthClass& alike) {
  const auto& q = LengthClass::kQuantiles;
  const auto& r = alike.residuals;
  std::array<Piece, kPieces> out;
  out.front() = {q.front(), r.front(), r.front()};
  for (size_t i = 1; i < q.size(); ++i) out[i] = {q[i] - q[i - 1], r[i - 1], r[i]};
  const double width = kTail * (r.back() - r[r.size() - 2]);
  out.back() = {1 - q.back(), r.back(), r.back() + width};
  return out;
}

double tail_end(const LengthClass& alike) {
  return pieces_of(alike).back().high;
}

OutputRest moved_by(OutputRest rest, double by) {
  // E[(X + b)^2] = E[X^2] + 2 b E[X] + b^2
  rest.square += by * (2 * rest.mean + by);
  rest.mean += by;
  rest.least += by;
  return rest;
}

OutputRest clamped(OutputRest rest, double most) {
  rest.mean = std::clamp(rest.mean, 1.0, most);
  rest.square = std::clamp(rest.square, rest.mean * rest.mean, most * most);
  rest.least = std::clamp(rest.least, 1.0, rest.mean);
  return rest;
}

OutputRest exactly(double tokens) {
  return {tokens, tokens * tokens, tokens};
}

}  // namespace

std::optional<OutputRest> residual_beyond(const LengthClass& alike, double above) {
  const auto pieces = pieces_of(alike);
  double mass = 0, sum = 0, squares = 0;
  for (const Piece& p : pieces) {
    if (p.high <= above) continue;
    const double low = std::max(p.low, above) - above, high = p.high - above;
    const double share = p.high > p.low ? p.share * (high - low) / (p.high - p.low) : p.share;
    mass += share;
    sum += share * (low + high) / 2;
    squares += share * (low * low + low * high + high * high) / 3;
  }
  if (mass <= 0) return std::nullopt;
  OutputRest out{sum / mass, squares / mass, 0};
  double to_pass = 0.05 * mass;
  for (const Piece& p : pieces) {
    if (p.high <= above) continue;
    const double low = std::max(p.low, above) - above, high = p.high - above;
    const double share = p.high > p.low ? p.share * (high - low) / (p.high - p.low) : p.share;
    out.least = share > 0 ? low + (high - low) * std::min(1.0, to_pass / share) : high;
    to_pass -= share;
    if (to_pass <= 0) break;
  }
  return out;
}

RestOfOutput::Table RestOfOutput::make(const LengthClass& alike) {
  Table t;
  t.made_of = alike;
  t.from = std::floor(alike.residuals.front()) - 1;
  const double span = tail_end(alike) - t.from;
  t.width = std::max(kLeastWidth, span / kTableSize);
  for (double above = t.from;; above += t.width) {
    const auto rest = residual_beyond(alike, above);
    if (!rest) break;
    t.at.push_back(*rest);
  }
  return t;
}

void RestOfOutput::observe(const View& view) {
  tables_.resize(view.length_classes.size());
  for (size_t i = 0; i < tables_.size(); ++i) {
    const LengthClass& now = view.length_classes[i];
    if (now.finished < kFewestEnded || tables_[i].made_of == now) continue;
    tables_[i] = make(now);
  }
}

std::optional<OutputRest> RestOfOutput::look_up(const Table& table, double above) {
  if (table.at.empty()) return std::nullopt;
  if (above <= table.from) return moved_by(table.at.front(), table.from - above);
  const double place = (above - table.from) / table.width;
  const auto i = static_cast<size_t>(place);
  if (i >= table.at.size()) return std::nullopt;
  if (i + 1 == table.at.size()) return moved_by(table.at[i], -(place - static_cast<double>(i)) * table.width);
  const double share = place - static_cast<double>(i);
  const OutputRest &a = table.at[i], &b = table.at[i + 1];
  return OutputRest{a.mean + share * (b.mean - a.mean), a.square + share * (b.square - a.square),
                    a.least + share * (b.least - a.least)};
}

OutputRest RestOfOutput::of(const SeqView& seq) const {
  const double so_far = seq.known_tokens - std::min(seq.known_tokens, seq.prompt_tokens);
  const double most = std::max(1.0, static_cast<double>(seq.max_total_tokens) - seq.known_tokens);
  const double point = seq.predicted.output_tokens;
  const double outlived = std::max(kLeastRest, kShareOfAge * so_far);
  if (point <= 0) return clamped(exactly(outlived), most);
  const size_t c = seq.predicted.length_class;
  if (c < tables_.size() && tables_[c].made_of.finished >= kFewestEnded) {
    const auto rest = look_up(tables_[c], so_far - point);
    if (rest && rest->mean > 0) return clamped(*rest, most);
    return clamped(exactly(outlived), most);
  }
  return clamped(exactly(so_far < point ? point - so_far : outlived), most);
}

uint32_t RestOfOutput::output(const SeqView& seq) const {
  const uint32_t so_far = seq.known_tokens - std::min(seq.known_tokens, seq.prompt_tokens);
  return so_far + static_cast<uint32_t>(std::ceil(of(seq).mean));
}

}  // namespace kvasir
