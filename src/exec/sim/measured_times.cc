#include "exec/sim/measured_times.h"

#include <algorithm>
#include <array>
#include <utility>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr size_t kConstants = 4;

template <typename Tables>
auto constants_of(Tables& t) {
  return std::array{&t.step_s, &t.chunk_s, &t.decode_s, &t.projected_s};
}
template <typename Tables>
auto curves_of(Tables& t) {
  return std::array{&t.rows, &t.sampled, &t.pairs, &t.spans, &t.contexts};
}
static_assert(std::tuple_size_v<decltype(constants_of(std::declval<MeasuredTables&>()))> == kConstants);

// How much of an amount lies between a knot and the next.
double between(const std::vector<double>& knots, size_t i, double amount) {
  const double end = i + 1 < knots.size() ? std::min(amount, knots[i + 1]) : amount;
  return std::max(0.0, end - knots[i]);
}

struct Amounts {
  double chunks = 0, rows = 0, pairs = 0, spans = 0;
};

Amounts amounts_of(const StepLoad& load) {
  Amounts a;
  a.rows = load.decode_rows;
  for (const StepLoad::Chunk& c : load.chunks) {
    a.chunks += c.passed;
    a.rows += c.rows * c.passed;
    a.pairs += c.pairs() * c.attended;
    a.spans += (c.history + c.rows) * c.attended;
  }
  return a;
}

}  // namespace

double TimeCurve::at(double amount) const {
  double seconds = 0;
  for (size_t i = 0; i < knots.size() && amount > knots[i]; ++i) {
    seconds += slopes[i] * between(knots, i, amount);
  }
  return seconds;
}

std::vector<double> measured_terms(const MeasuredTables& tables, const StepLoad& load) {
  const Amounts a = amounts_of(load);
  std::vector<double> terms = {1, a.chunks, load.decode_rows, load.projected};
  const std::array amounts = {a.rows, load.sampled, a.pairs, a.spans, load.decode_context};
  const auto curves = curves_of(tables);
  for (size_t c = 0; c < curves.size(); ++c) {
    const std::vector<double>& knots = curves[c]->knots;
    for (size_t i = 0; i < knots.size(); ++i) terms.push_back(between(knots, i, amounts[c]));
  }
  return terms;
}

std::vector<double> coefficients(const MeasuredTables& tables) {
  std::vector<double> values;
  for (const double* constant : constants_of(tables)) values.push_back(*constant);
  for (const TimeCurve* curve : curves_of(tables)) {
    values.insert(values.end(), curve->slopes.begin(), curve->slopes.end());
  }
  return values;
}

void set_coefficients(MeasuredTables& tables, const std::vector<double>& values) {
  size_t used = 0;
  for (double* constant : constants_of(tables)) *constant = values.at(used++);
  for (TimeCurve* curve : curves_of(tables)) {
    curve->slopes.resize(curve->knots.size());
    for (double& slope : curve->slopes) slope = values.at(used++);
  }
  KV_CHECK(used == values.size(), "{} coefficients of {}", values.size(), used);
}

MeasuredTimes::MeasuredTimes(MeasuredTables tables) : tables_(std::move(tables)) {
  for (const TimeCurve* c : curves_of(tables_)) {
    KV_CHECK(c->knots.size() == c->slopes.size() && std::is_sorted(c->knots.begin(), c->knots.end()) &&
                 (c->knots.empty() || c->knots.front() == 0),
             "a curve with {} knots and {} slopes", c->knots.size(), c->slopes.size());
  }
}

double MeasuredTimes::executor_seconds(const StepLoad& load) const {
  const Amounts a = amounts_of(load);
  return tables_.step_s + tables_.chunk_s * a.chunks + tables_.decode_s * load.decode_rows +
         tables_.projected_s * load.projected + tables_.rows.at(a.rows) + tables_.sampled.at(load.sampled) +
         tables_.pairs.at(a.pairs) + tables_.spans.at(a.spans) + tables_.contexts.at(load.decode_context);
}

double MeasuredTimes::engine_seconds(const StepLoad& load) const {
  const double sequences = static_cast<double>(load.chunks.size()) + load.decode_rows;
  return tables_.engine_step_s + tables_.engine_sequence_s * sequences;
}

double MeasuredTimes::seconds(const StepLoad& load) const {
  return executor_seconds(load) + engine_seconds(load);
}

}  // namespace kvasir
