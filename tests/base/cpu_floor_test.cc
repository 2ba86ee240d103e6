// What a CPU below x86-64-v2 is told.
#include "base/cpu_floor.h"

#include <gtest/gtest.h>

#include <string>

namespace kvasir {
namespace {

// The features as Intel's manual numbers them (volume 2A, CPUID, tables 3-10 and 3-8): SSE3, SSSE3,
// CMPXCHG16B, SSE4.1, SSE4.2, POPCNT; LAHF-SAHF.
constexpr uint32_t kBasic = 1u << 0 | 1u << 9 | 1u << 13 | 1u << 19 | 1u << 20 | 1u << 23;
constexpr uint32_t kExtended = 1u << 0;

std::string missing(uint32_t basic, uint32_t extended, size_t size = 128) {
  std::string text(size, '?');
  const size_t length = missing_cpu_features({basic, extended}, text.data(), size);
  EXPECT_EQ(text[length], '\0');
  text.resize(length);
  return text;
}

TEST(CpuFloorTest, NamesWhatIsMissing) {
  EXPECT_EQ(missing(kBasic, kExtended), "");
  EXPECT_EQ(missing(~0u, ~0u), "");
  EXPECT_EQ(missing(kBasic & ~(1u << 23), kExtended), "popcnt");
  EXPECT_EQ(missing(kBasic & ~(1u << 19 | 1u << 20), 0), "sse4_1 sse4_2 lahf_lm");
  EXPECT_EQ(missing(~kBasic, ~kExtended), "sse3 ssse3 cx16 sse4_1 sse4_2 popcnt lahf_lm");
}

TEST(CpuFloorTest, ALineThatIsTooShortIsNotOverrun) {
  for (size_t size = 1; size < 60; ++size) EXPECT_LT(missing(0, 0, size).size(), size);
  EXPECT_EQ(missing(0, 0, 11), "sse3 ssse3");
}

TEST(CpuFloorTest, ALesserCpuEndsTheProgram) {
  require_cpu_floor({kBasic, kExtended});
  EXPECT_EXIT(require_cpu_floor({kBasic & ~(1u << 23), kExtended}), testing::ExitedWithCode(1),
              "this CPU lacks popcnt: Kvasir needs the level x86-64-v2");
}

}  // namespace
}  // namespace kvasir
