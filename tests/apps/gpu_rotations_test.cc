#include <gtest/gtest.h>

#include <cmath>

#include "apps/gpu/rotations.h"

namespace kvasir::gpu_program {
namespace {

TEST(Rotations, AreThoseOfLibm) {
  constexpr size_t kPositions = 8192;
  for (const size_t pairs : {32U, 40U, 64U}) {
    const Rotations made = rotations(kPositions, pairs, 500000);
    ASSERT_EQ(made.cosines.size(), kPositions * pairs);
    for (size_t i = 0; i < made.cosines.size(); ++i) {
      const double angle = static_cast<double>(i / pairs) *
                           std::pow(500000.0, -static_cast<double>(i % pairs) / static_cast<double>(pairs));
      ASSERT_NEAR(made.cosines[i], std::cos(angle), 1e-7) << i;
      ASSERT_NEAR(made.sines[i], std::sin(angle), 1e-7) << i;
    }
  }
}

}  // namespace
}  // namespace kvasir::gpu_program
