// Seeded faults of the GPU executor turn its tests red.
#include <gtest/gtest-spi.h>
#include <gtest/gtest.h>

#include "base/mutant.h"
#include "exec/scenarios.h"
#include "exec/tier_torture.h"

namespace kvasir::test {
namespace {

#if defined(KVASIR_MUTANTS)

// Whether the fault gives another result, or fails steps, as a GPU does where an address is bad.
bool shows(const TierTorture& torture, const RigOptions& options, Mutant fault) {
  testing::TestPartResultArray failures;
  uint64_t wrong = 0;
  {
    const testing::ScopedFakeTestPartResultReporter reporter(
        testing::ScopedFakeTestPartResultReporter::INTERCEPT_ALL_THREADS, &failures);
    const ScopedMutant active(fault);
    wrong = torture.torture(options).wrong;
  }
  return wrong > 0 || failures.size() > 0;
}

struct Case {
  Mutant mutant;
  const char* name;
  FakeGpuPace pace;
};

// Each at the pace that shows it: what comes too early at a GPU that runs at once, what comes too late at one
// that runs as late as it may.
constexpr Case kCases[] = {
    {Mutant::kGateOpenedEarly, "gate opened early", FakeGpuPace::kEarly},
    {Mutant::kMarkBeforeWrite, "mark before the write", FakeGpuPace::kLate},
    {Mutant::kStaleTable, "stale table", FakeGpuPace::kRandom},
    {Mutant::kPinnedReused, "pinned buffer reused", FakeGpuPace::kLate},
    {Mutant::kRingReusedEarly, "ring reused early", FakeGpuPace::kLate},
    {Mutant::kSkippedTransferWait, "wait skipped", FakeGpuPace::kRandom},
    {Mutant::kGraphKept, "a graph's arguments kept", FakeGpuPace::kRandom},
    {Mutant::kGraphShared, "a graph of two steps", FakeGpuPace::kLate},
    {Mutant::kGraphWithoutGates, "a graph without gates", FakeGpuPace::kEarly},
};

TEST(GpuMutants, EachFaultTurnsTheTortureRed) {
  for (const Case& c : kCases) {
    SCOPED_TRACE(c.name);
    const TierTorture torture(torture_gqa(), ops::WeightType::kF32, ops::KvType::kBf16, 16, 50, c.pace);
    RigOptions options = torture.tiers(1);
    options.link = RigLink::kFake;
    options.fast_transfers = 0.5;
    options.gpu_graphs = true;
    EXPECT_EQ(torture.torture(options).wrong, 0U);
    EXPECT_TRUE(shows(torture, options, c.mutant)) << "the fault was not noticed";
  }
}

// Of K and V that are made of X.
TEST(GpuMutants, EachFaultOfFormsTurnsTheTortureRed) {
  const TierTorture torture(torture_bias(), ops::WeightType::kBf16, ops::KvType::kBf16, 16, 70,
                            FakeGpuPace::kLate);
  const RigOptions options = torture.hidden(1);
  EXPECT_EQ(torture.torture(options).wrong, 0U);
  EXPECT_TRUE(shows(torture, options, Mutant::kXWrongPosition));
  EXPECT_TRUE(shows(torture, options, Mutant::kXBiasMissing));
}

#else

TEST(GpuMutants, AreNotInThisBuild) {
  GTEST_SKIP() << "built without KVASIR_MUTANTS";
}

#endif

}  // namespace
}  // namespace kvasir::test
