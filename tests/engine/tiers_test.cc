// Workloads over two tiers that once brought the engine to a stand, or could have.
#include <gtest/gtest.h>

#include <memory>
#include <string>
#include <vector>

#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "fakes/fake_link.h"
#include "fakes/shadow_executor.h"
#include "support/policies.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kTieredLayers = 4;

// An engine over the shadow executor, whose link moves when the test lets it.
class TieredWorld {
 public:
  TieredWorld(const std::string& policy, int depth, uint32_t device_blocks, uint32_t max_num_seqs = 8)
      : options_(options(device_blocks, max_num_seqs)),
        device_(options_.cache.device_bytes + options_.cache.stage_bytes),
        host_(options_.cache.host_bytes),
        link_(clock_, {device_, host_, {}}),
        executor_(options_.cache.geometry, device_, depth, clock_, &link_),
        engine_(options_, make_policy(policy).value(), executor_, clock_, nullptr, &link_) {}

  std::shared_ptr<CollectingSink> submit(std::vector<Token> prompt, uint32_t max_tokens) {
    GenerationRequest request;
    request.prompt = std::move(prompt);
    request.max_tokens = max_tokens;
    auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(engine_.submit(std::move(request), sink).ok());
    return sink;
  }
  void run(int turns) {
    for (int i = 0; i < turns && engine_.step(); ++i) link_.complete_all();
  }
  void expect_right(const CollectingSink& sink, const std::vector<Token>& prompt, uint32_t max_tokens) {
    EXPECT_EQ(sink.finish, FinishReason::kLength) << sink.error;
    EXPECT_EQ(sink.tokens, shadow_output(kTieredLayers, prompt, 0, max_tokens, {}));
  }
  FakeLink& link() { return link_; }
  const EngineMetrics& metrics() const { return engine_.metrics(); }

 private:
  static EngineOptions options(uint32_t device_blocks, uint32_t max_num_seqs) {
    EngineOptions o;
    o.cache.geometry = {16, kTieredLayers, 1, 8};
    o.cache.device_bytes = o.cache.geometry.kv_block_bytes() * device_blocks;
    o.cache.host_bytes = o.cache.geometry.kv_block_bytes() * 64;
    o.cache.stage_bytes = 2 * o.cache.geometry.layer_plane_bytes() * 40;
    o.limits.max_num_seqs = max_num_seqs;
    o.limits.max_num_batched_tokens = 64;
    o.max_model_len = 400;
    o.check_integrity = true;
    return o;
  }

  const EngineOptions options_;
  VirtualClock clock_;
  std::vector<std::byte> device_;
  std::vector<std::byte> host_;
  FakeLink link_;
  ShadowExecutor executor_;
  Engine engine_;
};

// Its own prefix is cached in frames that its rows would need: 12 blocks of 16, beside a sequence that grows.
TEST(Tiers, ARequestThatStreamsDoesNotStandOnItsOwnPrefix) {
  for (const std::string& policy : every_policy({"ellm:ratio=0.5"})) {
    for (uint32_t device_blocks : {12u, 14u, 16u}) {
      SCOPED_TRACE(policy + " " + std::to_string(device_blocks));
      TieredWorld world(policy, 1, device_blocks);
      const std::vector<Token> prefix = shadow_prompt(std::min(192u, 16 * (device_blocks - 1)), 1);
      world.submit(prefix, 1);
      world.run(1000);
      std::vector<Token> longer = prefix;
      const std::vector<Token> rest = shadow_prompt(108, 5);
      longer.insert(longer.end(), rest.begin(), rest.end());
      const std::vector<Token> growing = shadow_prompt(50, 11);
      const auto grows = world.submit(growing, 100);
      world.run(3);
      const auto streams = world.submit(longer, 10);
      world.run(20000);
      world.expect_right(*grows, growing, 100);
      world.expect_right(*streams, longer, 10);
      EXPECT_EQ(world.metrics().standstills, 0u);
      EXPECT_GT(world.metrics().steps_staged, 0u);
    }
  }
}

// A sequence whose last row is deferred goes on running, though its place may have been given to another.
TEST(Tiers, ALastRowThatIsDeferredKeepsItsPlace) {
  TieredWorld world("sarathi", 2, 8, /*max_num_seqs=*/1);
  const std::vector<Token> a = shadow_prompt(200, 3), b = shadow_prompt(20, 9);
  const auto first = world.submit(a, 6);
  const auto second = world.submit(b, 4);
  world.link().be_late(0.3, 5);
  world.run(20000);
  world.expect_right(*first, a, 6);
  world.expect_right(*second, b, 4);
  EXPECT_GT(world.metrics().deferred_rows, 0u);
}

}  // namespace
}  // namespace kvasir::test
