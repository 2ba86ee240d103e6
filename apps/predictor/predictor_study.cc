#include "apps/predictor/predictor_study.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <iterator>
#include <set>

#include "contract/view.h"

namespace kvasir {
namespace {

constexpr double kFirstStep = 0.7;
constexpr double kPinball = 0.9;
constexpr double kWithin = 50;
constexpr uint32_t kRlpPadding = 100;
constexpr uint32_t kS3Bucket = 50;

double truth(const LengthExample& e) {
  return e.output_tokens;
}

double pinball(double length, double said) {
  return length > said ? kPinball * (length - said) : (1 - kPinball) * (said - length);
}

// The smallest value that a share p of those does not exceed: no constant has a smaller pinball loss.
double quantile(std::vector<double> values, double p) {
  std::sort(values.begin(), values.end());
  const double place = std::ceil(p * static_cast<double>(values.size())) - 1;
  return values[static_cast<size_t>(std::max(0.0, place))];
}

std::vector<double> lengths_of(LengthExamples examples) {
  std::vector<double> out;
  for (const LengthExample& e : examples) out.push_back(truth(e));
  return out;
}

std::vector<double> answers_of(const LengthExample& e) {
  std::vector<double> out(e.again.begin(), e.again.end());
  out.push_back(truth(e));
  return out;
}

uint32_t point_of(const LengthForecast& f, uint32_t limit) {
  return std::min(f.predicted.output_tokens, limit);
}

}  // namespace

void teach(LengthPredictor& predictor, LengthExamples examples) {
  forecast(predictor, examples, /*learning=*/true);
}

void train_in_two_steps(HiddenPredictor& predictor, LengthExamples examples) {
  const auto first = static_cast<size_t>(kFirstStep * static_cast<double>(examples.size()));
  for (const LengthExample& e : examples.first(first)) predictor.learn_length(e.features(), e.output_tokens);
  teach(predictor, examples.subspan(first));
}

std::vector<LengthForecast> forecast(LengthPredictor& predictor, LengthExamples examples, bool learning) {
  std::vector<LengthForecast> out;
  for (const LengthExample& e : examples) {
    const LengthPrediction p = predictor.predict(e.features());
    out.push_back({p, predictor.classes()[p.length_class]});
    if (!learning) continue;
    if (e.cut) {
      predictor.learn_at_least(e.features(), p, e.output_tokens);
    } else {
      predictor.learn(e.features(), p, e.output_tokens);
    }
  }
  return out;
}

uint32_t padded_length(const LengthForecast& forecast, double confidence, Padding padding, uint32_t limit) {
  View view;
  view.length_classes = {forecast.alike};
  SeqView seq;
  seq.prompt_tokens = seq.known_tokens = 1;
  seq.max_total_tokens = 1 + limit;
  seq.predicted = forecast.predicted;
  seq.predicted.length_class = 0;
  return OutputEstimate(view, confidence, {.padding = padding}).output(seq);
}

LengthErrors errors_of(const std::vector<LengthForecast>& forecasts, LengthExamples examples,
                       uint32_t limit) {
  LengthErrors out;
  double told = 0, held = 0;
  for (size_t i = 0; i < examples.size(); ++i) {
    const double length = truth(examples[i]);
    const double said = point_of(forecasts[i], limit);
    out.mean_absolute += std::abs(length - said);
    out.bias += said - length;
    out.within_50 += std::abs(length - said) <= kWithin;
    out.pinball_90 += pinball(length, padded_length(forecasts[i], kPinball, Padding::kQuantile, limit));
    if (forecasts[i].predicted.deviation == Deviation::kUnknown || length == said) continue;
    ++told;
    held += (forecasts[i].predicted.deviation == Deviation::kLonger) == (length > said);
  }
  const auto n = static_cast<double>(examples.size());
  for (double* sum : {&out.mean_absolute, &out.bias, &out.within_50, &out.pinball_90}) *sum /= n;
  out.told = told / n;
  out.held = told > 0 ? held / told : 0;
  return out;
}

LengthErrors errors_of_best_constant(LengthExamples examples) {
  const std::vector<double> lengths = lengths_of(examples);
  const double median = quantile(lengths, 0.5), high = quantile(lengths, kPinball);
  LengthErrors out;
  for (const double length : lengths) {
    out.mean_absolute += std::abs(length - median);
    out.bias += median - length;
    out.within_50 += std::abs(length - median) <= kWithin;
    out.pinball_90 += pinball(length, high);
  }
  const auto n = static_cast<double>(lengths.size());
  for (double* sum : {&out.mean_absolute, &out.bias, &out.within_50, &out.pinball_90}) *sum /= n;
  return out;
}

double error_of_other_answers(LengthExamples examples) {
  double sum = 0, count = 0;
  for (const LengthExample& e : examples) {
    if (e.again.empty()) continue;
    const std::vector<double> answers = answers_of(e);
    for (size_t i = 0; i < answers.size(); ++i) {
      std::vector<double> others = answers;
      others.erase(others.begin() + static_cast<ptrdiff_t>(i));
      // Of an even number the mean of the two in the middle.
      sum += std::abs(answers[i] - (quantile(others, 0.5) + quantile(others, 0.5 + 1e-9)) / 2);
      ++count;
    }
  }
  return count > 0 ? sum / count : 0;
}

double resampling_spread(LengthExamples examples) {
  double sum = 0, count = 0;
  for (const LengthExample& e : examples) {
    const std::vector<double> answers = answers_of(e);
    for (size_t i = 0; i < answers.size(); ++i) {
      for (size_t k = 0; k < i; ++k) {
        sum += std::abs(answers[i] - answers[k]);
        ++count;
      }
    }
  }
  return count > 0 ? sum / count : 0;
}

Provision provision_of(const std::vector<uint32_t>& kept, LengthExamples examples) {
  Provision out;
  double over = 0, under = 0;
  for (size_t i = 0; i < examples.size(); ++i) {
    const double more = static_cast<double>(kept[i]) - truth(examples[i]);
    out.kept += kept[i];
    out.covered += more >= 0;
    over += more > 0;
    under += more < 0;
    (more > 0 ? out.over_tokens : out.under_tokens) += std::abs(more);
  }
  const auto n = static_cast<double>(examples.size());
  out.kept /= n;
  out.covered /= n;
  out.over = over / n;
  if (over > 0) out.over_tokens /= over;
  if (under > 0) out.under_tokens /= under;
  return out;
}

// ---------------------------------------------------------------- the report

namespace {

class Report {
 public:
  Report(LengthExamples examples, uint32_t limit) : limit_(limit) {
    const auto training = static_cast<size_t>(kTrainingShare * static_cast<double>(examples.size()));
    all_ = examples;
    training_ = examples.first(training);
    test_ = examples.subspan(training);
  }

  std::string text() {
    describe();
    compare();
    resample();
    calibrate();
    provide();
    return std::move(out_);
  }

 private:
  template <typename... Args>
  void line(fmt::format_string<Args...> format, Args&&... args) {
    fmt::format_to(std::back_inserter(out_), format, std::forward<Args>(args)...);
    out_ += '\n';
  }

  void describe() {
    const auto cut = std::count_if(all_.begin(), all_.end(), [](const LengthExample& e) { return e.cut; });
    const std::vector<double> lengths = lengths_of(all_);
    double sum = 0;
    for (const double length : lengths) sum += length;
    const auto n = static_cast<double>(all_.size());
    line("{} requests, in time: {} for training, then {} for the test", all_.size(), training_.size(),
         test_.size());
    line(
        "outputs: mean {:.1f}, median {:.0f}, 90 % within {:.0f} tokens; {:.1f} % were cut, at {} at the "
        "most",
        sum / n, quantile(lengths, 0.5), quantile(lengths, 0.9), 100 * static_cast<double>(cut) / n, limit_);
    std::set<std::vector<Token>> asked;
    for (const LengthExample& e : training_) asked.insert(e.prompt);
    for (size_t i = 0; i < test_.size(); ++i) {
      if (asked.count(test_[i].prompt) == 0) new_.push_back(i);
    }
    line("{} prompts of the test are in the training word for word; the {} others are \"new\"",
         test_.size() - new_.size(), new_.size());
  }

  void row(std::string_view name, const LengthErrors& e, const LengthErrors& constant) {
    line("{:<34} {:>6.1f} {:>6.2f} {:>7.1f} {:>7.1f} {:>6.2f} {:>6.1f} {:>6.1f}", name, e.mean_absolute,
         1 - e.mean_absolute / constant.mean_absolute, 100 * e.within_50, e.pinball_90,
         1 - e.pinball_90 / constant.pinball_90, 100 * e.told, 100 * e.held);
  }

  template <typename T>
  std::vector<T> of_new(std::span<const T> all) const {
    std::vector<T> out;
    for (const size_t i : new_) out.push_back(all[i]);
    return out;
  }

  void compare() {
    line("\n{:<34} {:>6} {:>6} {:>7} {:>7} {:>6} {:>6} {:>6}   {:>6} {:>6}", "on the test", "MAE", "skill",
         "in 50,%", "pinball", "skill", "told,%", "held,%", "new", "skill");
    const std::vector<LengthExample> new_test = of_new(test_);
    const LengthErrors constant = errors_of_best_constant(test_);
    row("the best constant of the test", constant, constant);
    const auto show = [&](std::string_view name, const std::vector<LengthForecast>& said) {
      row(name, errors_of(said, test_, limit_), constant);
      if (new_.empty()) return;
      out_.pop_back();
      const LengthErrors e = errors_of(of_new(std::span<const LengthForecast>(said)), new_test, limit_);
      line("   {:>6.1f} {:>6.2f}", e.mean_absolute,
           1 - e.mean_absolute / errors_of_best_constant(new_test).mean_absolute);
    };
    OnlinePredictor cheap;
    teach(cheap, training_);
    show("online, which has seen the rest", forecast(cheap, test_, false));
    show("online, and learning on", forecast(cheap, test_, true));
    HiddenPredictor from_nothing;
    teach(from_nothing, training_);
    show("hidden, which has seen the rest", forecast(from_nothing, test_, false));
    show("hidden, and learning on", forecast(from_nothing, test_, true));
    HiddenPredictor trained;
    train_in_two_steps(trained, training_);
    show("hidden, trained, before prefill", before_prefill(trained));
    said_ = forecast(trained, test_, false);
    show("hidden, trained", said_);
    show("hidden, trained, and learning on", forecast(trained, test_, true));
    const auto from_row = std::count_if(said_.begin(), said_.end(), [&](const LengthForecast& f) {
      return f.predicted.length_class >= trained.classes().size() / 2;
    });
    line("\"hidden, trained\", of which all that follows is, said {:.0f} % from the row",
         100 * static_cast<double>(from_row) / static_cast<double>(said_.size()));
  }

  // What it says of a request that waits.
  std::vector<LengthForecast> before_prefill(HiddenPredictor& predictor) const {
    std::vector<LengthExample> waiting(test_.begin(), test_.end());
    for (LengthExample& e : waiting) e.hidden.clear();
    return forecast(predictor, waiting, false);
  }

  void resample() {
    std::vector<LengthExample> asked;
    std::vector<LengthForecast> said;
    for (size_t i = 0; i < test_.size(); ++i) {
      if (test_[i].again.empty()) continue;
      asked.push_back(test_[i]);
      said.push_back(said_[i]);
    }
    if (asked.empty()) return;
    line("\n{} requests of the test were answered {} times: two answers differ by {:.1f} tokens in the mean;",
         asked.size(), 1 + asked.front().again.size(), resampling_spread(asked));
    line("the median of the others errs by {:.1f}, hidden on these by {:.1f}, their best constant by {:.1f}",
         error_of_other_answers(asked), errors_of(said, asked, limit_).mean_absolute,
         errors_of_best_constant(asked).mean_absolute);
  }

  std::vector<uint32_t> padded(double confidence, Padding padding) const {
    std::vector<uint32_t> out;
    for (const LengthForecast& f : said_) out.push_back(padded_length(f, confidence, padding, limit_));
    return out;
  }

  void calibrate() {
    line("\nconfidence, %:      50     70     80     90     95");
    for (const auto& [name, padding] : {std::pair{"quantile: covered, %", Padding::kQuantile},
                                        std::pair{"Equation 3: covered,%", Padding::kHoeffding}}) {
      std::string cells;
      for (const double c : {.5, .7, .8, .9, .95}) {
        fmt::format_to(std::back_inserter(cells), " {:>6.1f}",
                       100 * provision_of(padded(c, padding), test_).covered);
      }
      line("{:<21}{}", name, cells);
    }
  }

  // Of the tokens by which some of `kept` are off.
  std::string spread(const std::vector<uint32_t>& kept, double sign) const {
    std::vector<double> off;
    for (size_t i = 0; i < test_.size(); ++i) {
      const double more = sign * (static_cast<double>(kept[i]) - truth(test_[i]));
      if (more > 0) off.push_back(more);
    }
    if (off.empty()) return "-";
    return fmt::format("{:.0f} {:.0f} {:.0f}", quantile(off, 0.1), quantile(off, 0.5), quantile(off, 0.9));
  }

  void provide() {
    line("\n{:<32} {:>6} {:>7} {:>6} {:>14} {:>8} {:>6} {:>14}", "kept for an output", "mean", "over, %",
         "by", "10 50 90 %", "under, %", "by", "10 50 90 %");
    const auto provide_row = [&](std::string_view name, const std::vector<uint32_t>& kept) {
      const Provision p = provision_of(kept, test_);
      line("{:<32} {:>6.1f} {:>7.1f} {:>6.1f} {:>14} {:>8.1f} {:>6.1f} {:>14}", name, p.kept, 100 * p.over,
           p.over_tokens, spread(kept, 1), 100 * (1 - p.covered), p.under_tokens, spread(kept, -1));
    };
    std::vector<uint32_t> rlp, s3;
    for (const LengthForecast& f : said_) {
      rlp.push_back(std::min(limit_, f.predicted.output_tokens + kRlpPadding));
      s3.push_back(std::min(limit_, (f.predicted.output_tokens + kS3Bucket - 1) / kS3Bucket * kS3Bucket));
    }
    provide_row("100 tokens more (rlp)", rlp);
    provide_row("the upper end of a bucket (s3)", s3);
    for (const double c : {.5, .8, .9, .95}) {
      provide_row(fmt::format("quantile, {:.0f} %", 100 * c), padded(c, Padding::kQuantile));
    }
    for (const double c : {.5, .8, .9}) {
      provide_row(fmt::format("Equation 3, {:.0f} %", 100 * c), padded(c, Padding::kHoeffding));
    }
  }

  const uint32_t limit_;
  LengthExamples all_, training_, test_;
  std::vector<size_t> new_;  // of test_
  std::vector<LengthForecast> said_;
  std::string out_;
};

}  // namespace

std::string predictor_report(LengthExamples examples, uint32_t limit) {
  return Report(examples, limit).text();
}

}  // namespace kvasir
