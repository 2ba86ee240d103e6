#include "apps/bench/rates.h"

#include <array>
#include <cmath>

#include "apps/bench/parse_text.h"

namespace kvasir {
namespace {

constexpr double kLeast = 1e-6;
constexpr double kMost = 1e9;
constexpr size_t kMaxPoints = 1000;

std::optional<RateSpec> parse_rate(std::string_view text) {
  RateSpec rate;
  if (text == "inf") return rate;
  if (text.ends_with('x')) {
    rate.of_capacity = true;
    text.remove_suffix(1);
  }
  const std::optional<double> value = parse_number(text);
  if (!value.has_value()) return std::nullopt;
  rate.value = *value;
  return rate;
}

// 0.1 + 2 * 0.1 is meant as 0.3.
double rounded(double value) {
  const double unit = std::pow(10.0, std::floor(std::log10(value)) - 11);
  return std::stod(fmt::format("{:.12g}", std::round(value / unit) * unit));
}

Status bad_rate(std::string_view flag, std::string_view text) {
  return error(
      ErrorCode::kInvalidArgument,
      "{} {}: expected requests per second of at least {:g} and at most {:g}, or inf; a list as 1,2, "
      "a range first:last:step as 1:8:0.5, or multiples of the capacity as 0.5x",
      flag, text, kLeast, kMost);
}

Status add_range(std::string_view flag, std::string_view text, std::vector<RateSpec>* out) {
  std::array<RateSpec, 3> parts;  // first, last, step
  std::string_view rest = text;
  for (size_t i = 0; i < parts.size(); ++i) {
    const size_t colon = i + 1 < parts.size() ? rest.find(':') : rest.size();
    if (colon == std::string_view::npos) return bad_rate(flag, text);
    const std::optional<RateSpec> part = parse_rate(rest.substr(0, colon));
    if (!part.has_value() || !std::isfinite(part->value)) return bad_rate(flag, text);
    parts[i] = *part;
    rest.remove_prefix(std::min(colon + 1, rest.size()));
  }
  const auto& [first, last, step] = parts;
  if (first.of_capacity != last.of_capacity || first.of_capacity != step.of_capacity) {
    return error(ErrorCode::kInvalidArgument, "{} {}: all of a range's numbers end in x, or none", flag,
                 text);
  }
  if (first.value < kLeast || last.value > kMost) return bad_rate(flag, text);
  if (last.value < first.value || step.value <= 0) {
    return error(ErrorCode::kInvalidArgument,
                 "{} {}: a range ascends: first:last:step with last >= first and step > 0", flag, text);
  }
  const double steps = std::floor((last.value - first.value) / step.value + 1e-9);
  if (steps >= static_cast<double>(kMaxPoints)) {
    return error(ErrorCode::kInvalidArgument, "{} {}: more than {} rates", flag, text, kMaxPoints);
  }
  for (int i = 0; i <= static_cast<int>(steps); ++i) {
    out->push_back({rounded(first.value + i * step.value), first.of_capacity});
  }
  return Status();
}

}  // namespace

std::string RateSpec::text() const {
  return std::isinf(value) ? "inf" : fmt::format("{}{}", value, of_capacity ? "x" : "");
}

Result<std::vector<RateSpec>> parse_rates(std::string_view flag, std::string_view text) {
  std::vector<RateSpec> rates;
  for (std::string_view part : split_commas(text)) {
    if (part.find(':') != std::string_view::npos) {
      KV_RETURN_IF_ERROR(add_range(flag, part, &rates));
    } else {
      const std::optional<RateSpec> rate = parse_rate(part);
      if (!rate.has_value()) return bad_rate(flag, part);
      if (std::isfinite(rate->value) && (rate->value < kLeast || rate->value > kMost)) {
        return bad_rate(flag, part);
      }
      rates.push_back(*rate);
    }
    if (rates.size() > kMaxPoints) {
      return error(ErrorCode::kInvalidArgument, "{} {}: more than {} rates", flag, part, kMaxPoints);
    }
  }
  if (rates.empty()) return bad_rate(flag, text);
  return rates;
}

Result<std::vector<double>> resolve_rates(std::string_view flag, const std::vector<RateSpec>& rates,
                                          std::optional<double> capacity) {
  KV_CHECK(!capacity.has_value() || (std::isfinite(*capacity) && *capacity > 0), "capacity={}", *capacity);
  std::vector<double> out;
  for (const RateSpec& rate : rates) {
    if (rate.of_capacity && !capacity.has_value()) {
      return error(ErrorCode::kInvalidArgument,
                   "{} {}: the capacity of a server is not known here; measure it with --max-concurrency and "
                   "no rate, and give requests per second",
                   flag, rate.text());
    }
    out.push_back(rate.of_capacity ? rate.value * *capacity : rate.value);
  }
  return out;
}

}  // namespace kvasir
