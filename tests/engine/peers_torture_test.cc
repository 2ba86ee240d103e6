// Histories at peers that lend, recall, die and borrow at random.
#include <gtest/gtest.h>

#include <algorithm>
#include <string>
#include <tuple>

#include "base/mutant.h"
#include "engine/torture.h"
#include "support/policies.h"

namespace kvasir::test {
namespace {

void expect_right_with_peers(const TortureConfig& config, const TortureOutcome& out) {
  EXPECT_EQ(out.wrong, 0u) << out.first_wrong;
  EXPECT_EQ(out.used_blocks_left, 0u);
  EXPECT_EQ(out.host_bytes_left, 0u);
  EXPECT_EQ(out.transfers_left, 0u);
  EXPECT_EQ(out.integrity, "");
  EXPECT_EQ(out.complete + out.aborted + out.failed, config.requests);
}

// A device tier of 512 tokens, requests of up to 2,000, and as much as that at peers three times; or one in
// which each of them fits, but not several.
TortureConfig peers(const std::string& policy, int depth, uint32_t layers_per_group,
                    uint32_t device_blocks = 8) {
  TortureConfig config;
  config.policy = policy;
  config.depth = depth;
  config.layers = 6;
  config.layers_per_group = layers_per_group;
  config.block_tokens = 64;
  config.tenants = 1;  // a request that is held back spills nothing
  config.total_blocks = device_blocks;
  config.borrowed_blocks = 90;
  config.stage_blocks = 12;
  config.longest = 2000;
  config.max_num_batched_tokens = 256;
  config.requests = scaled(device_blocks < 32 ? 40 : 80);
  config.at_once = device_blocks < 32 ? 6 : 12;
  config.most_steps = 4000 * uint64_t{config.requests};
  config.seed = 5 + layers_per_group + 100 * static_cast<uint64_t>(depth);
  return config;
}

using PeersCase = std::tuple<std::string, int, uint32_t, bool, uint32_t>;
class PeersTorture : public testing::TestWithParam<PeersCase> {};

TEST_P(PeersTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [policy, depth, layers_per_group, faults, device_blocks] = GetParam();
  TortureConfig config = peers(policy, depth, layers_per_group, device_blocks);
  if (faults) {
    config.recalls = 0.02;
    config.losses = 0.005;
    config.own_lent = 0.05;
    config.refusals = 0.1;
    config.lost_answers = 0.001;
    config.late_waits = 0.02;
    config.failing_transfers = 0.01;
  }
  const TortureOutcome out = torture(config);
  expect_right_with_peers(config, out);
  std::printf(
      "%llu steps, %llu leaves at peers, %llu preemptions, %llu deferred, %llu granted, %llu recalled, "
      "%llu lost, %llu lent\n",
      static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.remote_leaves),
      static_cast<unsigned long long>(out.preemptions), static_cast<unsigned long long>(out.deferred),
      static_cast<unsigned long long>(out.granted), static_cast<unsigned long long>(out.recalled),
      static_cast<unsigned long long>(out.lost), static_cast<unsigned long long>(out.lent));
  EXPECT_GT(out.granted, 0u);
  // Where all of each fits on the device only what is spilt lies elsewhere.
  EXPECT_GT(out.remote_leaves, device_blocks < 32 ? out.steps / 2 : 50);
  if (faults) {
    EXPECT_GT(out.recalled, 0u);
    EXPECT_GT(out.lost, 0u);
  }
}

std::string peers_name_of(const testing::TestParamInfo<PeersCase>& c) {
  const auto& [policy, depth, layers_per_group, faults, device_blocks] = c.param;
  std::string name = policy;
  name = name.substr(0, name.find(':'));
  return name + "_depth" + std::to_string(depth) + "_f" + std::to_string(layers_per_group) + "_device" +
         std::to_string(device_blocks) + (faults ? "_faults" : "");
}

INSTANTIATE_TEST_SUITE_P(Streaming, PeersTorture,
                         testing::Combine(testing::Values("distkv"), testing::Values(1, 2),
                                          testing::Values(1u, 4u), testing::Bool(), testing::Values(8u)),
                         peers_name_of);
INSTANTIATE_TEST_SUITE_P(Spilling, PeersTorture,
                         testing::Combine(testing::Values("distkv:ahead=600"), testing::Values(1, 2),
                                          testing::Values(1u, 4u), testing::Bool(), testing::Values(40u)),
                         peers_name_of);

// Peers that compute the first rows of prompts, in whole leaves of which they may have none, and that have
// some computed.
class PeerPromptsTorture : public testing::TestWithParam<std::tuple<int, uint32_t, bool>> {};

TEST_P(PeerPromptsTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [depth, layers_per_group, faults] = GetParam();
  TortureConfig config = peers("distkv", depth, layers_per_group, 12);
  config.prompts = 0.3;
  config.requests *= 4;  // few have rows computed at a peer
  config.most_steps *= 4;
  if (faults) {
    config.recalls = 0.02;
    config.losses = 0.005;
    config.own_lent = 0.05;
    config.refusals = 0.1;
    config.lost_answers = 0.001;
    config.failing_transfers = 0.01;
    config.failing_steps = 0.005;
  }
  const TortureOutcome out = torture(config);
  expect_right_with_peers(config, out);
  std::printf("%llu steps, %llu leaves at peers; cells of prompts: %llu computed there, %llu for peers\n",
              static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.remote_leaves),
              static_cast<unsigned long long>(out.computed_at_peers),
              static_cast<unsigned long long>(out.computed_for_peers));
  EXPECT_GT(out.computed_at_peers, 0u);
  if (!faults) {
    EXPECT_GT(out.computed_for_peers, 0u);
  }
  EXPECT_GT(out.hit_tokens, 0u);
}

INSTANTIATE_TEST_SUITE_P(Distkv, PeerPromptsTorture,
                         testing::Combine(testing::Values(1, 2), testing::Values(1u, 4u), testing::Bool()),
                         [](const auto& c) {
                           return "depth" + std::to_string(std::get<0>(c.param)) + "_f" +
                                  std::to_string(std::get<1>(c.param)) +
                                  (std::get<2>(c.param) ? "_faults" : "");
                         });

// Every policy, with a device of 40 blocks and, where it offloads, 26 on the host, whose peers have blocks
// that it computed before and has evicted.
TortureConfig prefixes_at_peers(const std::string& policy, int depth) {
  TortureConfig config;
  config.policy = policy;
  config.depth = depth;
  config.groups = 3;
  config.prefixes = 0.2;
  config.prefixes_lost = 0.02;
  config.failing_transfers = 0.01;
  config.own_lent = depth == 2 ? 0.05 : 0;
  config.total_blocks = 40;
  config.requests = scaled(150);
  config.seed = 31 + static_cast<uint64_t>(depth);
  const PolicyTraits traits = policy_traits(policy);
  if (traits.borrows) config.borrowed_blocks = 20;
  if (traits.borrows) config.layers_per_group = 1;
  if (traits.offloads && !traits.borrows) config.host_blocks = 26;
  return config;
}

class PeerPrefixesTorture : public testing::TestWithParam<std::tuple<std::string, int>> {};

TEST_P(PeerPrefixesTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [policy, depth] = GetParam();
  const TortureConfig config = prefixes_at_peers(policy, depth);
  const TortureOutcome out = torture(config);
  expect_right_with_peers(config, out);
  std::printf("%llu steps, tokens of prefixes: %llu copied, %llu late, %llu failed, %llu shown\n",
              static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.prefix_hits),
              static_cast<unsigned long long>(out.prefix_late),
              static_cast<unsigned long long>(out.prefix_failed),
              static_cast<unsigned long long>(out.prefix_shown));
  EXPECT_GT(out.prefix_hits, 0u);
  EXPECT_GT(out.prefix_shown, 0u);
}

INSTANTIATE_TEST_SUITE_P(AllPolicies, PeerPrefixesTorture,
                         testing::Combine(testing::ValuesIn(every_policy({"random"})), testing::Values(1, 2)),
                         [](const auto& c) {
                           std::string name = std::get<0>(c.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_depth" + std::to_string(std::get<1>(c.param));
                         });

// The same, whose peers attend to what they find here, and keep it until it is called back.
class KeptPrefixesTorture : public testing::TestWithParam<std::tuple<std::string, int>> {};

TortureConfig prefixes_kept(const std::string& policy, int depth) {
  TortureConfig config = prefixes_at_peers(policy, depth);
  config.stays = 1;
  return config;
}

TEST_P(KeptPrefixesTorture, NoRequestWaitsForThemForEver) {
  const auto& [policy, depth] = GetParam();
  const TortureConfig config = prefixes_kept(policy, depth);
  const TortureOutcome out = torture(config);
  expect_right_with_peers(config, out);
  EXPECT_GT(out.kept_for_peers, 100u);
}

INSTANTIATE_TEST_SUITE_P(AllPolicies, KeptPrefixesTorture,
                         testing::Combine(testing::ValuesIn(every_policy({"random"})), testing::Values(1, 2)),
                         [](const auto& c) {
                           std::string name = std::get<0>(c.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_depth" + std::to_string(std::get<1>(c.param));
                         });

// Every policy, with a device of 20 blocks of 128 tokens, whose peers keep what it attends there: until they
// want it back, or die.
TortureConfig prefixes_attended(const std::string& policy, int depth, bool faults) {
  TortureConfig config = peers(policy, depth, 2, 20);
  config.block_tokens = 128;
  config.stage_blocks = 0;
  config.borrowed_blocks = 0;
  config.prefixes = 0.3;
  config.attended_blocks = 30;
  config.requests = scaled(120);
  config.most_steps = 4000 * uint64_t{config.requests};
  config.seed += 70;
  const PolicyTraits traits = policy_traits(policy);
  if (traits.borrows) config.borrowed_blocks = 15;
  if (traits.offloads && !traits.borrows) config.host_blocks = 13;
  if (config.borrowed_blocks + config.host_blocks > 0 || traits.drops || traits.stages)
    config.stage_blocks = 6;
  if (!faults) return config;
  config.recalls = 0.02;
  config.losses = 0.005;
  config.own_lent = 0.05;
  config.prefixes_lost = 0.01;
  config.failing_transfers = 0.01;
  config.failing_steps = 0.005;
  return config;
}

// A short run of one policy may attend nothing; many runs do.
class AttendedPrefixesTorture : public testing::TestWithParam<std::tuple<std::string, int, bool>> {
 protected:
  static void TearDownTestSuite() {
    if (runs_ < 8) return;
    EXPECT_GT(attended_runs_ * 2, runs_);
    EXPECT_GT(remote_runs_ * 2, runs_);
  }
  static void count(const TortureOutcome& out) {
    ++runs_;
    attended_runs_ += out.prefix_attended > 0 ? 1 : 0;
    remote_runs_ += out.remote_leaves > 0 ? 1 : 0;
  }

 private:
  static inline int runs_ = 0, attended_runs_ = 0, remote_runs_ = 0;
};

TEST_P(AttendedPrefixesTorture, EveryOutputIsWhatItsTokensSay) {
  const auto& [policy, depth, faults] = GetParam();
  const TortureConfig config = prefixes_attended(policy, depth, faults);
  const TortureOutcome out = torture(config);
  expect_right_with_peers(config, out);
  std::printf(
      "%llu steps, tokens of prefixes: %llu attended, %llu copied; %llu leaves at peers, %llu cells lost\n",
      static_cast<unsigned long long>(out.steps), static_cast<unsigned long long>(out.prefix_attended),
      static_cast<unsigned long long>(out.prefix_hits), static_cast<unsigned long long>(out.remote_leaves),
      static_cast<unsigned long long>(out.lost));
  count(out);
}

INSTANTIATE_TEST_SUITE_P(AllPolicies, AttendedPrefixesTorture,
                         testing::Combine(testing::ValuesIn(every_policy({"random"})), testing::Values(1, 2),
                                          testing::Bool()),
                         [](const auto& c) {
                           std::string name = std::get<0>(c.param);
                           std::replace(name.begin(), name.end(), '-', '_');
                           return name + "_depth" + std::to_string(std::get<1>(c.param)) +
                                  (std::get<2>(c.param) ? "_faults" : "");
                         });

#if defined(KVASIR_MUTANTS)
TEST(PeerPrefixesMutants, ANeighboursAttendedBytesAreFound) {
  TortureConfig config = prefixes_attended("sarathi", 1, false);
  config.check = false;
  const ScopedMutant on(Mutant::kPeerPrefixShifted);
  EXPECT_GT(torture(config).wrong, 0u);
}

TEST(PeerPrefixesMutants, WaitingForWhatIsKeptIsFound) {
  TortureConfig config = prefixes_kept("hcache", 1);
  config.check = false;
  expect_right_with_peers(config, torture(config));
  const ScopedMutant on(Mutant::kKeptPrefixAwaited);
  EXPECT_GT(torture(config).wrong, 0u);
}

TEST(PeerPrefixesMutants, ANeighboursBytesAreFound) {
  TortureConfig config = prefixes_at_peers("sarathi", 1);
  config.check = false;
  const ScopedMutant on(Mutant::kPeerPrefixShifted);
  EXPECT_GT(torture(config).wrong, 0u);
}

uint64_t wrong_at_peers(Mutant fault, TortureConfig config) {
  config.check = false;
  config.requests = 40;  // with fewer, where a build is slow, the fault need not meet a step that shows it
  expect_right_with_peers(config, torture(config));
  const ScopedMutant on(fault);
  return torture(config).wrong;
}

TEST(PeersTortureMutants, LostCellKeptIsFound) {
  TortureConfig config = peers("distkv", 1, 1);
  config.losses = 0.02;
  EXPECT_GT(wrong_at_peers(Mutant::kLostCellKept, config), 0u);
}
TEST(PeersTortureMutants, ComputedAtPeerShiftedIsFound) {
  TortureConfig config = peers("distkv", 1, 1);
  config.prompts = 0.5;
  EXPECT_GT(wrong_at_peers(Mutant::kComputedAtPeerShifted, config), 0u);
}
TEST(PeersTortureMutants, RemoteFillSkippedIsFound) {
  TortureConfig config = peers("distkv", 1, 1);
  config.moved = 0.1;
  EXPECT_GT(wrong_at_peers(Mutant::kRemoteFillSkipped, config), 0u);
}
#endif

}  // namespace
}  // namespace kvasir::test
