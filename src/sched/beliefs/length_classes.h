// Classes of predicted lengths, and the residuals of finished requests in each class.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/length_predictor.h"
#include "sched/beliefs/text_fields.h"

namespace kvasir {

// Bounds are fixed: 1, 2, 3, 5, 8, 12, ... each 1.5 times the one before, up to beyond 100,000 tokens; the
// last class has no upper end. Each class keeps the residuals of its last kRemembered requests. Used by one
// thread.
class LengthClasses {
 public:
  static constexpr size_t kRemembered = 256;

  LengthClasses();

  uint8_t class_of(uint32_t point) const;
  // A request with a prediction of `point` tokens had `output_tokens`. REQUIRES: point > 0
  void learn(uint32_t point, uint32_t output_tokens);
  const std::vector<LengthClass>& classes() const { return classes_; }

  void save(std::string& out) const;
  // False: save() did not write it.
  bool load(TextFields& in);

 private:
  // The last values, oldest first, and the same values sorted.
  struct Recent {
    std::vector<float> ring;
    std::vector<float> sorted;
    size_t oldest = 0;
    void add(float value);
    float quantile(double p) const;
  };
  void summarise(size_t index);

  std::vector<LengthClass> classes_;
  std::vector<Recent> residuals_;
  std::vector<Recent> lengths_;
};

}  // namespace kvasir
