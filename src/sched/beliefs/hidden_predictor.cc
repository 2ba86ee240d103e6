#include "sched/beliefs/hidden_predictor.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <numeric>
#include <utility>

#include "base/random.h"
#include "sched/beliefs/predictor_text.h"

namespace kvasir {
namespace {

constexpr std::string_view kHidden = "hidden";

constexpr uint64_t kSignStream = 7;
constexpr uint64_t kWidestRow = 1 << 20;
constexpr double kMostOfElement = 1e15;
constexpr double kFarthest = 5;       // deviations from the mean
constexpr double kLeastShare = 1e-4;  // of the mean variance of all elements
constexpr float kLargestElement = 1e6;
constexpr double kComparedMemory = 500;  // requests, of the errors that are compared
constexpr double kFewestErrors = 20;     // of them before the row is believed
constexpr double kLengthVariance =
    1;  // variance of log lengths that all features together are believed to explain, at first
constexpr double kOddsVariance = 4;  // likewise, of log-odds

}  // namespace

HiddenPredictor::HiddenPredictor() {
  gather_classes();
}

bool HiddenPredictor::reads(const PromptFeatures& features) const {
  const size_t width = features.hidden.size();
  return width > 0 && (scale_.mean.empty() || scale_.mean.size() == width);
}

void HiddenPredictor::begin(size_t width) {
  scale_.mean.assign(width, 0);
  scale_.square.assign(width, 0);
  const size_t directions = std::min(width, kDirections);
  signs_.clear();
  if (width > kDirections) {
    const auto length = static_cast<float>(1 / std::sqrt(static_cast<double>(width)));
    signs_.resize(width * kDirections);
    for (size_t i = 0; i < signs_.size(); ++i) {
      const uint64_t bits = random_bits(kSignStream, i / kDirections, i % kDirections / 64);
      signs_[i] = (bits >> (i % kDirections % 64) & 1) != 0 ? length : -length;
    }
  }
  const size_t features = directions + kPlain;
  length_ = RecursiveLeastSquares(features, kLengthVariance / static_cast<double>(features));
  direction_ = RecursiveLeastSquares(features + 1, kOddsVariance / static_cast<double>(features + 1));
  x_.assign(features + 1, 0);
}

// A row that equals the one before says nothing of how rows differ, and one that is not of numbers nothing at
// all.
void HiddenPredictor::add_to_scale(std::span<const float> row) {
  if (std::any_of(row.begin(), row.end(), [](float e) { return !(std::abs(e) <= kLargestElement); })) return;
  if (scale_.mean.empty()) begin(row.size());
  const auto same = [&] {
    return std::equal(row.begin(), row.end(), scale_.last.begin(), scale_.last.end());
  };
  if (same()) return;
  scale_.last.assign(row.begin(), row.end());
  ++scale_.rows;
  for (size_t i = 0; i < row.size(); ++i) {
    const double from_mean = double{row[i]} - scale_.mean[i];
    scale_.mean[i] += from_mean / static_cast<double>(scale_.rows);
    scale_.square[i] += from_mean * (double{row[i]} - scale_.mean[i]);
  }
  if (scale_.rows == kRowsToScale) scale_.finish();
}

// An element that hardly differed is not believed to be as precise as it looked.
void HiddenPredictor::Scale::finish() {
  const double all = std::accumulate(square.begin(), square.end(), 0.0) / static_cast<double>(square.size());
  inverse.clear();
  for (const double s : square) {
    const double variance = std::max(s, kLeastShare * all) / static_cast<double>(kRowsToScale);
    inverse.push_back(variance > 0 ? 1 / std::sqrt(variance) : 0);
  }
}

std::span<double> HiddenPredictor::read(const PromptFeatures& features) {
  const size_t directions = length_.size() - kPlain;
  std::fill_n(x_.begin(), directions, 0.0);
  for (size_t i = 0; i < scale_.mean.size(); ++i) {
    double z = (double{features.hidden[i]} - scale_.mean[i]) * scale_.inverse[i];
    z = std::isfinite(z) ? std::clamp(z, -kFarthest, kFarthest) : 0;
    if (signs_.empty()) {
      x_[i] = z;
      continue;
    }
    const float* signs = signs_.data() + i * kDirections;
    for (size_t k = 0; k < kDirections; ++k) x_[k] += z * double{signs[k]};
  }
  x_[directions] = (std::log(1.0 + static_cast<double>(features.prompt.size())) - 5) / 2;
  x_[directions + 1] = double{std::clamp(features.temperature, 0.0f, 2.0f)} - 0.7;
  x_[directions + 2] = double{std::clamp(features.top_p, 0.0f, 1.0f)} - 0.9;
  return x_;
}

std::span<const double> HiddenPredictor::with_length(std::span<double> x, double linear) const {
  x.back() = linear;
  return x;
}

bool HiddenPredictor::row_is_better() const {
  return point_.known() && (error_row_.count < kFewestErrors ? error_before_.count == 0
                                                             : error_row_.value <= error_before_.value);
}

LengthPrediction HiddenPredictor::from_row(std::span<double> x) const {
  const double linear = length_.of(x.first(length_.size()));
  LengthPrediction out;
  out.output_tokens = point_.tokens(linear);
  out.length_class = static_cast<uint8_t>(before_.classes().size() + classes_.class_of(out.output_tokens));
  out.deviation = point_.direction(direction_.of(with_length(x, linear)));
  return out;
}

LengthPrediction HiddenPredictor::predict(const PromptFeatures& features) {
  if (!reads(features) || !scale_.known() || !row_is_better()) return before_.predict(features);
  return from_row(read(features));
}

void HiddenPredictor::learn_length(const PromptFeatures& features, uint32_t output_tokens) {
  before_.learn(features, {}, output_tokens);
  if (!reads(features)) return;
  if (!scale_.known()) return add_to_scale(features.hidden);
  const std::span<const double> x = read(features).first(length_.size());
  length_.correct(x, point_.finished(length_.of(x), output_tokens), point_.noise());
}

void HiddenPredictor::compare(double error_before, double error_row) {
  error_before_.add(error_before, kComparedMemory);
  error_row_.add(error_row, kComparedMemory);
}

void HiddenPredictor::learn_from_row(const PromptFeatures& features, uint32_t output_tokens) {
  const std::span<double> x = read(features);
  const std::span<const double> row = x.first(length_.size());
  const double linear = length_.of(row);
  if (point_.known()) {
    const LengthPrediction mine = from_row(x);
    classes_.learn(mine.output_tokens, output_tokens);
    if (mine.output_tokens != output_tokens) {
      const bool longer = output_tokens > mine.output_tokens;
      point_.direction_was(direction_.of(with_length(x, linear)), longer);
      learn_direction(x, longer);
    }
  }
  length_.correct(row, point_.finished(linear, output_tokens), point_.noise());
}

void HiddenPredictor::learn(const PromptFeatures& features, const LengthPrediction&, uint32_t output_tokens) {
  const LengthPrediction cheap = before_.predict(features);
  if (reads(features) && !scale_.known()) {
    add_to_scale(features.hidden);
  } else if (reads(features)) {
    if (point_.known() && cheap.output_tokens > 0) {
      const auto error = [&](const LengthPrediction& p) {
        return std::abs(static_cast<double>(p.output_tokens) - static_cast<double>(output_tokens));
      };
      compare(error(cheap), error(from_row(read(features))));
    }
    learn_from_row(features, output_tokens);
  }
  before_.learn(features, cheap, output_tokens);
  gather_classes();
}

void HiddenPredictor::learn_at_least(const PromptFeatures& features, const LengthPrediction&,
                                     uint32_t output_tokens) {
  const LengthPrediction cheap = before_.predict(features);
  before_.learn_at_least(features, cheap, output_tokens);
  if (!reads(features) || !scale_.known() || !point_.known()) return;
  const LengthPrediction mine = from_row(read(features));
  // At the least. Without it a predictor that predicts too little would look the better one.
  const auto error = [&](const LengthPrediction& p) {
    return std::max(0.0, static_cast<double>(output_tokens) - static_cast<double>(p.output_tokens));
  };
  if (cheap.output_tokens > 0) compare(error(cheap), error(mine));
  if (output_tokens <= mine.output_tokens) return;
  learn_from_row(features, output_tokens);
  gather_classes();
}

// One step of Newton's towards the more likely odds.
void HiddenPredictor::learn_direction(std::span<const double> x, bool longer) {
  const double p = squash(direction_.of(x));
  const double curvature = std::max(p * (1 - p), 0.05);
  direction_.correct(x, ((longer ? 1 : 0) - p) / curvature, 1 / curvature);
}

void HiddenPredictor::gather_classes() {
  all_classes_ = before_.classes();
  all_classes_.insert(all_classes_.end(), classes_.classes().begin(), classes_.classes().end());
}

// ---------------------------------------------------------------- as text

std::string HiddenPredictor::save() const {
  std::string out = predictor_head(kHidden);
  before_.save_fields(out);
  fmt::format_to(std::back_inserter(out), "row {} {}\n", scale_.mean.size(), scale_.rows);
  for (size_t i = 0; i < scale_.mean.size(); ++i) {
    fmt::format_to(std::back_inserter(out), "{} {}\n", scale_.mean[i], scale_.square[i]);
  }
  length_.save(out);
  direction_.save(out);
  point_.save(out);
  classes_.save(out);
  for (const ForgettingMean* error : {&error_before_, &error_row_}) {
    fmt::format_to(std::back_inserter(out), "error {} {}\n", error->value, error->count);
  }
  return out + "end\n";
}

Status HiddenPredictor::load(std::string_view text) {
  const auto corrupt = [] { return not_of_predictor(kHidden); };
  TextFields in(text);
  // Nothing is taken over before all of it is read.
  HiddenPredictor loaded;
  if (!read_predictor_head(kHidden, in) || !loaded.before_.load_fields(in)) return corrupt();
  uint64_t width = 0, rows = 0;
  if (!in.word("row") || !in.number(kWidestRow, width) || !in.number(kRowsToScale, rows)) return corrupt();
  if ((width == 0) != (rows == 0)) return corrupt();
  std::vector<double> means, squares;  // a width that the text has no room for costs no memory
  for (size_t i = 0; i < width; ++i) {
    double mean = 0, square = 0;
    if (!in.real(kMostOfElement, mean) || !in.real(kMostOfElement, square) || square < 0) return corrupt();
    means.push_back(mean);
    squares.push_back(square);
  }
  if (width > 0) {
    loaded.begin(width);
    loaded.scale_.mean = std::move(means);
    loaded.scale_.square = std::move(squares);
    loaded.scale_.rows = rows;
    if (rows == kRowsToScale) loaded.scale_.finish();
  }
  if (!loaded.length_.load(in) || !loaded.direction_.load(in) || !loaded.point_.load(in) ||
      !loaded.classes_.load(in)) {
    return corrupt();
  }
  for (ForgettingMean* error : {&loaded.error_before_, &loaded.error_row_}) {
    if (!in.word("error") || !in.real(1e9, error->value) || !in.real(kComparedMemory, error->count) ||
        error->count < 0) {
      return corrupt();
    }
  }
  if (!in.word("end") || !in.at_end()) return corrupt();
  loaded.gather_classes();
  *this = std::move(loaded);
  return {};
}

}  // namespace kvasir
