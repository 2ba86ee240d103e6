// An engine over a real link and a disk tier's file whose disk fails in every way that disks do: outputs stay
// right, the counters say what happened, and nothing is left behind.
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <tuple>
#include <vector>

#include "base/random.h"
#include "cache/disk_world.h"
#include "cache/tiers/memory_link.h"
#include "engine/collecting_sink.h"
#include "engine/engine.h"
#include "engine/random_policy.h"
#include "fakes/fake_disk_io.h"
#include "fakes/shadow_executor.h"
#include "support/levels.h"
#include "support/policies.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kLongest = 300;
constexpr uint32_t kLayers = 6;

// KVASIR_LONG=1 makes everything here twenty times longer.
uint32_t scaled_faults(uint32_t requests) {
  return at_long_level() ? 20 * requests : requests;
}

struct WorldOptions {
  std::string policy = "random-forms";
  uint32_t layers_per_group = 2;
  uint32_t device_blocks = 20;
  uint32_t host_blocks = 40;
  uint32_t disk_blocks = 80;
};

EngineOptions engine_options(const WorldOptions& options) {
  EngineOptions o;
  CacheGeometry& g = o.cache.geometry;
  g = {16, kLayers, options.layers_per_group, 8};
  o.cache.device_bytes = g.kv_block_bytes() * options.device_blocks;
  o.cache.host_bytes = g.kv_block_bytes() * options.host_blocks;
  o.cache.disk_bytes = g.cell_stride(Form::kKv, Tier::kDisk) * g.groups() * options.disk_blocks;
  g.x_bytes_per_token_layer = 12;
  o.cache.stage_bytes = g.largest_piece_bytes() * 40;
  o.cache.numerics_id = "shadow";
  o.scratch_tokens = 600;
  o.max_decode_stall = 2 * kNanosPerMilli;
  o.limits.max_num_seqs = 8;
  o.limits.max_num_batched_tokens = 64;
  o.max_model_len = kLongest;
  o.check_integrity = true;
  return o;
}

// The disk's file, and what a server is made of, in the order in which runtime/runtime.cc makes and ends it.
class World {
 public:
  World(const WorldOptions& options, const TestDirectory& directory, FakeDisk& disk)
      : options_(engine_options(options)),
        device_(options_.cache.device_bytes + options_.cache.stage_bytes),
        host_(options_.cache.host_bytes) {
    DiskFileOptions file = disk_options(directory, options_.cache.disk_bytes);
    file.max_piece_bytes = round_up(options_.cache.geometry.largest_piece_bytes(), kDiskAlign);
    file.io = disk.maker();
    file_ = DiskFile::open(file).value();
    MemoryLinkOptions link;
    link.memory = {std::span(device_), std::span(host_), {}};
    link.disk = file_.get();
    link_ = std::make_unique<MemoryLink>(link, real_clock_);
    executor_ = std::make_unique<ShadowExecutor>(options_.cache.geometry, device_, 1, clock_, link_.get(),
                                                 &real_clock_);
    engine_ = std::make_unique<Engine>(options_, make_test_policy(options.policy).value(), *executor_, clock_,
                                       nullptr, link_.get());
    restored_ = engine_->restore_prefixes(file_->load());
  }

  Engine& engine() { return *engine_; }
  const EngineMetrics& metrics() {
    engine_->observe_link();
    return engine_->metrics();
  }
  size_t restored() const { return restored_; }
  DiskStats disk() const { return file_->stats(); }

  // Until the last transfer has ended, too.
  void settle() {
    while (engine_->step() || engine_->metrics().transfers_in_flight > 0) pause();
  }
  size_t close() {
    engine_->stop();
    const std::vector<DiskEntry> entries = engine_->save_prefixes(10 * kNanosPerSecond);
    engine_.reset();
    executor_.reset();
    link_.reset();
    EXPECT_TRUE(file_->save(entries).ok());
    file_.reset();
    return entries.size();
  }
  static void pause() { std::this_thread::sleep_for(std::chrono::microseconds(20)); }

 private:
  const EngineOptions options_;
  std::vector<std::byte> device_;
  std::vector<std::byte> host_;
  MonotonicClock real_clock_;
  VirtualClock clock_;
  std::unique_ptr<DiskFile> file_;
  std::unique_ptr<MemoryLink> link_;
  std::unique_ptr<ShadowExecutor> executor_;
  std::unique_ptr<Engine> engine_;
  size_t restored_ = 0;
};

// Random requests, many of which begin as others do. How many turns they take depends on the disk and the
// machine; what is sent, and which of it is to be cancelled, does not.
class Requests {
 public:
  Requests(World& world, uint64_t seed) : world_(world), random_(seed), made_(seed + 1000) {}

  // `each_turn` is called before every step.
  template <typename EachTurn>
  void run(uint32_t requests, EachTurn each_turn) {
    for (uint32_t submitted = 0; submitted < requests || !live_.empty();) {
      while (submitted < requests && live_.size() < 10 && random_.unit() < 0.4) {
        submit();
        ++submitted;
      }
      each_turn(random_);
      for (Live& l : live_) {
        if (l.turns_to_cancel == 0 || --l.turns_to_cancel > 0) continue;
        world_.engine().cancel(l.id);
        l.cancelled = true;
      }
      world_.engine().step();
      World::pause();
      std::erase_if(live_, [&](const Live& l) {
        if (l.sink->finish) judge(l);
        return l.sink->finish.has_value();
      });
    }
    world_.settle();
  }
  uint32_t complete() const { return complete_; }

 private:
  struct Live {
    RequestId id{};
    GenerationRequest request;
    std::shared_ptr<CollectingSink> sink;
    int64_t turns_to_cancel = 0;  // 0: none is to come
    bool cancelled = false;
  };

  void submit() {
    Live l;
    const uint64_t family = made_.below(3);
    const auto shared = static_cast<uint32_t>(made_.between(0, 160));
    for (uint32_t i = 0; i < shared; ++i) {
      l.request.prompt.push_back(static_cast<Token>(random_bits(family, 7, i) % kShadowVocab));
    }
    for (int64_t i = made_.between(1, 60); i > 0; --i) {
      l.request.prompt.push_back(static_cast<Token>(made_.below(kShadowVocab)));
    }
    l.request.max_tokens = static_cast<uint32_t>(made_.between(1, 40));
    l.request.sampling.seed = made_.below(3);
    if (made_.unit() < 0.1) l.turns_to_cancel = made_.between(1, 60);
    l.sink = std::make_shared<CollectingSink>();
    l.id = world_.engine().submit(l.request, l.sink).value();
    live_.push_back(std::move(l));
  }
  void judge(const Live& l) {
    const auto want =
        shadow_output(kLayers, l.request.prompt, l.request.sampling.seed, l.request.max_tokens, {});
    if (l.cancelled && l.sink->finish == FinishReason::kAbort) {
      ASSERT_LE(l.sink->tokens.size(), want.size());
      EXPECT_TRUE(std::equal(l.sink->tokens.begin(), l.sink->tokens.end(), want.begin()));
      return;
    }
    EXPECT_EQ(l.sink->finish, FinishReason::kLength) << l.sink->error;
    EXPECT_EQ(l.sink->tokens, want) << "request " << raw(l.id);
    ++complete_;
  }

  World& world_;
  Random random_;
  Random made_;
  std::vector<Live> live_;
  uint32_t complete_ = 0;
};

void expect_nothing_left(World& world) {
  const EngineMetrics& m = world.metrics();
  EXPECT_EQ(m.transfers_in_flight, 0u);
  for (const auto& tier : m.tiers) EXPECT_EQ(tier.bytes_used, 0u);
  EXPECT_EQ(m.standstills, 0u);
  EXPECT_EQ(m.link.queued_bytes, 0u);
  EXPECT_EQ(world.engine().check_integrity().message(), "");
}

// What a run with one kind of fault must have counted.
struct FaultCase {
  const char* name;
  DiskRequest::Op op;
  DiskFault fault;
  uint64_t DiskStats::*counter;
};

class DiskFaults : public testing::TestWithParam<std::tuple<FaultCase, uint32_t>> {};

TEST_P(DiskFaults, OutputsAreRight) {
  const FaultCase& fault = std::get<0>(GetParam());
  const uint32_t layers_per_group = std::get<1>(GetParam());
  TestDirectory directory;
  FakeDisk disk;
  World world({.layers_per_group = layers_per_group}, directory, disk);
  Requests requests(world, 11 + layers_per_group);
  requests.run(scaled_faults(40), [&](Random& random) {
    if (random.unit() < 0.2) disk.fail_next(fault.op, fault.fault);
  });
  EXPECT_GT(requests.complete(), 25u);
  EXPECT_GT(disk.faults(), 0u);
  EXPECT_GT(world.disk().*fault.counter, 0u);
  EXPECT_GT(world.disk().reads, 0u);
  const LinkMetrics::Disk& shown = world.metrics().link.disk;
  EXPECT_TRUE(shown.present);
  EXPECT_EQ(shown.reads, world.disk().reads);
  EXPECT_EQ(shown.checksum_mismatches, world.disk().checksum_mismatches);
  expect_nothing_left(world);
}

INSTANTIATE_TEST_SUITE_P(
    Kinds, DiskFaults,
    testing::ValuesIn(shapes<FaultCase, uint32_t>(
        9,
        {FaultCase{"read_error", kRead, DiskFault::kError, &DiskStats::read_errors},
         FaultCase{"read_short", kRead, DiskFault::kShort, &DiskStats::short_reads},
         FaultCase{"read_other_bytes", kRead, DiskFault::kOtherBytes, &DiskStats::checksum_mismatches},
         FaultCase{"read_elsewhere", kRead, DiskFault::kElsewhere, &DiskStats::checksum_mismatches},
         FaultCase{"write_full", kWrite, DiskFault::kFull, &DiskStats::write_errors},
         FaultCase{"write_short", kWrite, DiskFault::kShort, &DiskStats::write_errors},
         FaultCase{"write_lost", kWrite, DiskFault::kLost, &DiskStats::checksum_mismatches},
         FaultCase{"write_elsewhere", kWrite, DiskFault::kElsewhere, &DiskStats::checksum_mismatches}},
        {1, 2, 6})),
    [](const auto& c) {
      return std::string(std::get<0>(c.param).name) + "_f" + std::to_string(std::get<1>(c.param));
    });

// A disk that does nothing for longer than the stall budget, again and again.
TEST(DiskFaultsTest, BytesThatComeLateDeferTheirRowsOnly) {
  TestDirectory directory;
  FakeDisk disk;
  World world({}, directory, disk);
  std::atomic<bool> done = false;
  std::thread holder([&] {
    while (!done) {
      disk.hold();
      std::this_thread::sleep_for(std::chrono::milliseconds(8));
      disk.let_all_go();
      std::this_thread::sleep_for(std::chrono::milliseconds(2));
    }
  });
  Requests requests(world, 5);
  requests.run(scaled_faults(50), [](Random&) {});
  done = true;
  holder.join();
  EXPECT_GT(requests.complete(), 30u);
  EXPECT_GT(world.metrics().deferred_rows, 0u);
  EXPECT_GT(world.disk().reads, 0u);
  expect_nothing_left(world);
}

// Everything at once, and after each run the next server takes the file over.
TEST(DiskFaultsTest, WhatIsKeptOverARestartIsRightOrNoticed) {
  for (uint32_t layers_per_group : {1u, 4u}) {
    SCOPED_TRACE(layers_per_group);
    TestDirectory directory;
    FakeDisk disk;
    size_t kept = 0;
    for (uint64_t life = 0; life < 4; ++life) {
      SCOPED_TRACE(life);
      disk.fail_at_random(life, life == 0 ? 0 : 0.03);
      World world({.layers_per_group = layers_per_group}, directory, disk);
      EXPECT_EQ(world.restored() > 0, kept > 0);
      Requests requests(world, 20 + life);
      requests.run(scaled_faults(20), [](Random&) {});
      EXPECT_GT(requests.complete(), 10u);
      const auto& by_tier = world.metrics().prefix_cache_hits_by_tier;
      EXPECT_EQ(by_tier[0] + by_tier[1] + by_tier[2], world.metrics().prefix_cache_hits);
      if (life > 0) {
        EXPECT_GT(by_tier[2], 0u);
      }
      expect_nothing_left(world);
      kept = world.close();
      EXPECT_GT(kept, 0u);
    }
    EXPECT_GT(disk.faults(), 0u);
  }
}

// What one client has computed is not found by another of a later server, either.
TEST(DiskFaultsTest, ASaltIsKeptOverARestart) {
  TestDirectory directory;
  FakeDisk disk;
  const auto cached = [&](World& world, const std::string& salt) {
    GenerationRequest r;
    for (uint32_t i = 0; i < 100; ++i) r.prompt.push_back(static_cast<Token>(i % kShadowVocab));
    r.max_tokens = 2;
    r.cache_salt = salt;
    const auto sink = std::make_shared<CollectingSink>();
    EXPECT_TRUE(world.engine().submit(std::move(r), sink).ok());
    world.settle();
    return sink->cached_prompt_tokens;
  };
  {
    World world({.policy = "sarathi"}, directory, disk);
    EXPECT_EQ(cached(world, "one"), 0u);
    EXPECT_GT(world.close(), 0u);
  }
  World world({.policy = "sarathi"}, directory, disk);
  EXPECT_GT(world.restored(), 0u);
  EXPECT_EQ(cached(world, ""), 0u);
  EXPECT_EQ(cached(world, "other"), 0u);
  EXPECT_EQ(cached(world, "one"), 96u);
}

// Where the disk is the only slower tier, requests that are longer than the device pass through it. How many
// reads that takes depends on the disk's speed, so one policy alone may meet no fault.
TEST(DiskFaultsTest, RequestsStreamFromADiskThatFails) {
  uint64_t failed_reads = 0;
  for (const std::string& policy : every_policy({"ellm:ratio=0.5:again=0.3"})) {
    SCOPED_TRACE(policy);
    TestDirectory directory;
    FakeDisk disk;
    disk.fail_at_random(3, 0.01);
    World world({.policy = policy, .layers_per_group = 1, .device_blocks = 10, .host_blocks = 0}, directory,
                disk);
    Requests requests(world, 9);
    requests.run(scaled_faults(15), [](Random&) {});
    EXPECT_GT(requests.complete(), 10u);
    EXPECT_GT(world.metrics().steps_staged, 0u);
    failed_reads += world.disk().read_errors + world.disk().checksum_mismatches;
    expect_nothing_left(world);
  }
  EXPECT_GT(failed_reads, 0u);
}

}  // namespace
}  // namespace kvasir::test
