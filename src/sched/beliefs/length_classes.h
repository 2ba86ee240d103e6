// Classes of predicted lengths, and how far from the point those were that have finished.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "contract/length_predictor.h"
#include "sched/beliefs/text_fields.h"

namespace kvasir {

// Bounds are fixed: 1, 2, 3, 5, 8, 12, ... each half as large again as the one before, up to beyond 100,000
// tokens; the last class has no upper end. Of each class the residuals of the last kRemembered requests are
// kept. Used by one thread.
class LengthClasses {
 public:
  static constexpr size_t kRemembered = 256;

  LengthClasses();

  uint8_t class_of(uint32_t point) const;
  // A request that was predicted to have `point` tokens had so many. REQUIRES: point > 0
  void learn(uint32_t point, uint32_t output_tokens);
  const std::vector<LengthClass>& classes() const { return classes_; }

  void save(std::string& out) const;
  // False: not what save() wrote.
  bool load(TextFields& in);

 private:
  // The last values, oldest first, and the same in order.
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
