// Several instances that lend each other memory, over simulated networks.
#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>

#include "apps/simulate/catalog/network.h"
#include "apps/simulate/cluster_system.h"
#include "apps/simulate/sim_cluster.h"
#include "apps/simulate/sim_network.h"
#include "apps/simulate/simulation.h"
#include "apps/simulate_command.h"
#include "cluster/memory/ship_or_fetch.h"

namespace kvasir::test {
namespace {

using testing::AllOf;
using testing::HasSubstr;

// Whole leaves are blocks, and each layer is a group. An instance holds 2,048 tokens beside its ring, which
// passes 32 tokens for each KiB.
// Two instances under distkv, whose steps take these times.
struct TwoPeers {
  TwoPeers(const Args& args, std::shared_ptr<const StepTimes> times)
      : options(options_of(args)),
        system(make_system(options).value()),
        setup(*cluster_of(options, system, engine_of(options, system, "distkv").value(), "distkv").value()),
        cluster(setup, std::move(times), {&clocks[0], &clocks[1]}) {}

  SimulateOptions options;
  SimulatedSystem system;
  ClusterSetup setup;
  VirtualClock clocks[2];
  SimCluster cluster;
};

class ClusterTest : public CommandTest {
 protected:
  Args instances(int count, const std::string& policy, int ring_kib = 32) const {
    MeasuredTables t = tables(0.010, 0.001);
    return host(t, 2048 + 32 * ring_kib) + Args{"--block-size",
                                                "256",
                                                "--kv-layer-group",
                                                "1",
                                                "--instances",
                                                fmt::format("{}", count),
                                                "--kv-stage-ring-size",
                                                fmt::format("{}KiB", ring_kib),
                                                "--no-enable-prefix-caching",
                                                "--scheduling-policy",
                                                policy};
  }
  SimulationOutcome outcome(const Args& args, const std::vector<SimulatedRequest>& requests) const {
    const SimulateOptions options = options_of(args);
    const std::string& policy = options.policies.front();
    const Result<SimulatedSystem> system = make_system(options);
    EXPECT_TRUE(system.ok()) << system.status().message();
    const Result<EngineOptions> engine = engine_of(options, *system, policy);
    EXPECT_TRUE(engine.ok()) << engine.status().message();
    SimulationSetup setup;
    setup.engine = *engine;
    setup.policy = policy;
    setup.instances = options.instances;
    setup.one_queue = options.one_queue;
    if (std::isfinite(options.bench.drain_timeout_s)) {
      setup.drain_timeout = from_seconds(options.bench.drain_timeout_s);
    }
    setup.cluster = cluster_of(options, *system, *engine, policy).value();
    setup.times = system->times;
    setup.link = system->link;
    setup.costs = system->costs;
    setup.seed = 1;
    Result<SimulationOutcome> out = simulate(setup, requests);
    EXPECT_TRUE(out.ok()) << out.status().message();
    return *std::move(out);
  }
};

// One that no instance can hold, and short ones beside it.
std::vector<SimulatedRequest> one_long(uint32_t tokens = 3000) {
  std::vector<SimulatedRequest> out;
  SimulatedRequest r;
  r.prompt_tokens = tokens;
  r.output_tokens = r.max_tokens = 40;
  out.push_back(r);
  for (int i = 0; i < 6; ++i) {
    r.arrival = kNanosPerSecond * (i + 1) / 2;
    r.prompt_tokens = 100 + 50 * static_cast<uint32_t>(i);
    out.push_back(r);
  }
  return out;
}

TEST_F(ClusterTest, WhatNoInstanceCanHoldRunsOnBorrowedMemory) {
  const SimulationOutcome out = outcome(instances(3, "distkv"), one_long());
  ASSERT_TRUE(out.peers);
  for (const RequestRecord& r : out.load.records) {
    EXPECT_EQ(r.state, RequestRecord::State::kCompleted) << r.error;
    EXPECT_EQ(r.output_tokens, 40);
  }
  EXPECT_GT(out.peers->sums.most_borrowed, 0u);
  EXPECT_EQ(out.peers->sums.lost, 0u);
  EXPECT_GT(out.peers->sums.queries, 0u);
  EXPECT_GT(out.peers->copied_bytes, 0u) << "K and V went there";
  EXPECT_GT(out.peers->messages, 0u);
  EXPECT_TRUE(out.peers->ledgers.ok()) << out.peers->ledgers.message();
}

// At each instance: each lacks what another one would need, and short ones never end.
TEST_F(ClusterTest, LongOnesEndAmongEachOtherAndAmongShortOnes) {
  std::vector<SimulatedRequest> requests;
  SimulatedRequest r;
  for (uint32_t i = 0; i < 60; ++i) {
    r.arrival = kNanosPerSecond * i / 4;
    r.prompt_tokens = i % 5 == 0 ? 2400 + 25 * i : 300 + 20 * i;
    r.output_tokens = r.max_tokens = 60;
    requests.push_back(r);
  }
  const SimulationOutcome out = outcome(instances(3, "distkv"), requests);
  for (size_t i = 0; i < requests.size(); ++i) {
    const RequestRecord& record = out.load.records[i];
    EXPECT_EQ(record.state, RequestRecord::State::kCompleted) << i << ": " << record.error;
    EXPECT_LT(to_seconds(record.end - record.start), 60) << i;
  }
  EXPECT_GT(out.peers->sums.most_borrowed, 0u);
  EXPECT_TRUE(out.peers->ledgers.ok()) << out.peers->ledgers.message();
}

TEST_F(ClusterTest, APolicyThatDoesNotBorrowRefusesIt) {
  const SimulationOutcome out = outcome(instances(3, "vllm"), one_long());
  EXPECT_FALSE(out.peers);
  EXPECT_EQ(out.load.records.front().state, RequestRecord::State::kFailed);
  EXPECT_THAT(out.load.records.front().error, HasSubstr("fits is 2048 tokens"));
  for (size_t i = 1; i < out.load.records.size(); ++i) {
    EXPECT_EQ(out.load.records[i].state, RequestRecord::State::kCompleted);
  }
}

// If none lends, two instances are two simulations of one.
TEST_F(ClusterTest, InstancesThatDoNotLendAreAsIfAlone) {
  std::vector<SimulatedRequest> all = one_long(400), mine[2];
  // As they are sent: to the instance with the fewest prompt tokens so far.
  uint64_t sent[2] = {0, 0};
  std::vector<int> where;
  for (const SimulatedRequest& r : all) {
    const int to = sent[1] < sent[0] ? 1 : 0;
    sent[to] += r.prompt_tokens;
    mine[to].push_back(r);
    where.push_back(to);
  }
  const SimulationOutcome both = outcome(instances(2, "sarathi"), all);
  size_t next[2] = {0, 0};
  const SimulationOutcome alone[2] = {outcome(instances(1, "sarathi"), mine[0]),
                                      outcome(instances(1, "sarathi"), mine[1])};
  for (size_t i = 0; i < all.size(); ++i) {
    const RequestRecord& r = alone[where[i]].load.records[next[where[i]]++];
    EXPECT_EQ(both.load.records[i].start, r.start);
    EXPECT_EQ(both.load.records[i].first, r.first);
    EXPECT_EQ(both.load.records[i].gaps, r.gaps);
  }
  EXPECT_EQ(both.steps, alone[0].steps + alone[1].steps);
  EXPECT_EQ(both.load.duration, std::max(alone[0].load.duration, alone[1].load.duration));
}

// From one queue: all of them end, in the order of their arrival among those of one length, and times count
// from the arrival.
TEST_F(ClusterTest, OneQueueBindsARequestWhenThereIsMemoryForIt) {
  std::vector<SimulatedRequest> requests;
  SimulatedRequest r;
  for (uint32_t i = 0; i < 40; ++i) {
    r.arrival = kNanosPerSecond * i / 100;
    r.prompt_tokens = i % 5 == 0 ? 2400 : 900;
    r.output_tokens = r.max_tokens = 60;
    requests.push_back(r);
  }
  for (const char* policy : {"distkv", "vllm"}) {
    const SimulationOutcome out = outcome(instances(3, policy) + Args{"--one-queue"}, requests);
    ASSERT_EQ(out.load.records.size(), requests.size());
    Nanos first_of_length[2] = {0, 0};
    for (size_t i = 0; i < requests.size(); ++i) {
      const RequestRecord& record = out.load.records[i];
      const bool is_long = i % 5 == 0;
      EXPECT_EQ(record.prompt_words, requests[i].prompt_tokens);
      if (is_long && std::string(policy) == "vllm") {
        EXPECT_EQ(record.state, RequestRecord::State::kFailed);
        continue;
      }
      EXPECT_EQ(record.state, RequestRecord::State::kCompleted) << i << ": " << record.error;
      EXPECT_EQ(record.start, requests[i].arrival);
      EXPECT_GE(record.first, first_of_length[is_long]) << i;
      first_of_length[is_long] = record.first;
    }
    EXPECT_GT(out.mean_queue_s, 0.1);
    if (out.peers) {
      EXPECT_EQ(out.peers->sums.recalled, 0u) << "all of its memory was there before it began";
    }
  }
}

// Two instances that hold two of these each. Bound as they come, the short ones behind the long one would
// wait for it at their instance.
TEST_F(ClusterTest, OneQueueKeepsInstancesBusyThatArrivalsDoNot) {
  std::vector<SimulatedRequest> requests;
  SimulatedRequest r;
  for (const uint32_t output : {400u, 4u, 400u, 4u, 4u, 4u, 400u, 4u}) {
    r.prompt_tokens = 900;
    r.output_tokens = r.max_tokens = output;
    requests.push_back(r);
  }
  const auto seconds = [&](const Args& more) {
    return to_seconds(outcome(instances(2, "vllm") + more, requests).load.duration);
  };
  EXPECT_LT(seconds({"--one-queue"}), seconds({}) - 3);
}

// Twelve that take an instance each for 400 steps of ten milliseconds. The clients give up ten seconds after
// the last: the rest has not been bound, which its record says, and is counted as held back.
TEST_F(ClusterTest, WhatWaitsInTheOneQueueAtTheEndIsUnserved) {
  std::vector<SimulatedRequest> requests;
  SimulatedRequest r;
  r.prompt_tokens = 1500;
  r.output_tokens = r.max_tokens = 400;
  for (uint32_t i = 0; i < 12; ++i) {
    r.arrival = kNanosPerSecond * i / 100;
    requests.push_back(r);
  }
  const SimulationOutcome out =
      outcome(instances(2, "distkv") + Args{"--drain-timeout", "10", "--one-queue"}, requests);
  ASSERT_EQ(out.load.records.size(), 12u);
  size_t completed = 0, held = 0;
  for (size_t i = 0; i < 12; ++i) {
    const RequestRecord& record = out.load.records[i];
    completed += record.state == RequestRecord::State::kCompleted;
    if (record.state != RequestRecord::State::kHeld) continue;
    ++held;
    EXPECT_GE(i, completed) << "first come, first served";
    EXPECT_EQ(record.content_chunks, 0);
  }
  EXPECT_GE(completed, 2u);
  EXPECT_GE(held, 4u);
  EXPECT_LE(completed + held, 12u);
}

TEST_F(ClusterTest, OneInstanceIsThePlainSimulation) {
  const Args load = lengths(300, 40, 10) + Args{"--request-rate", "5", "--seed", "3"};
  const Args with = instances(1, "distkv") + load;
  const Args network = {"--network", "ethernet", "--settle-debts"};
  EXPECT_EQ(command(with).out, command(with + network).out);
  EXPECT_THAT(command(with).out, Not(HasSubstr(" instances")));
}

TEST_F(ClusterTest, TheSameFlagsGiveTheSameBytes) {
  const Args args = instances(3, "distkv") + lengths(1500, 40, 9) +
                    Args{"--request-rate", "20", "--seeds", "2", "--jobs", "2", "--max-tokens", "40"};
  const Ran first = command(args), again = command(args);
  EXPECT_EQ(first.code, 0) << first.err;
  EXPECT_EQ(first.out, again.out);
  EXPECT_THAT(first.out, AllOf(HasSubstr("3 instances"), HasSubstr("infiniband")));
}

TEST_F(ClusterTest, ThatCreditorsBorrowFromTheirDebtorsIsAFlag) {
  const Args args = instances(2, "distkv") + lengths(1500, 40, 12) + Args{"--request-rate", "20"};
  EXPECT_EQ(command(args).out, command(args + Args{"--no-lend-to-creditors"}).out);
  EXPECT_NE(command(args).out, command(args + Args{"--lend-to-creditors"}).out);
}

// A network like InfiniBand's, but so many times as slow.
TEST_F(ClusterTest, ASlowerNetworkCostsMore) {
  const auto network = [&](double times) {
    return write(fmt::format("network-{}.json", times),
                 fmt::format(R"({{"name":"n","bytes_per_s":{},"efficiency":1,"latency_s":{},"source":[]}})",
                             25e9 / times, 1e-3 * times));
  };
  const auto seconds = [&](double times) {
    const SimulationOutcome out =
        outcome(instances(2, "distkv") + Args{"--node-network", network(times)}, one_long());
    EXPECT_EQ(out.load.records.front().state, RequestRecord::State::kCompleted);
    return std::pair(to_seconds(out.load.records.front().end), out.peers->sums.waited_s);
  };
  const auto [fast, fast_waits] = seconds(1);
  const auto [slow, slow_waits] = seconds(2);
  EXPECT_GT(slow, fast);
  EXPECT_GT(slow_waits, 1.5 * fast_waits);
  // Each of the 39 decodes waits for two messages, in the layer of which something lies at a peer, or in
  // both.
  EXPECT_GT(fast_waits, 39 * 2e-3);
}

// A device that takes time for histories, and a creditor's share of it.
TEST_F(ClusterTest, ACreditorPaysWithItsDevicesTime) {
  auto times = std::make_shared<LinearTimes>();
  times->history_token_us = 1;
  TwoPeers peers(instances(2, "distkv"), times);
  const ClusterSetup& setup = peers.setup;
  SimCluster& cluster = peers.cluster;
  // 512 tokens in each of two layers, all of it at number 0 (no cell was mapped to another): half of a
  // token's microsecond for each layer.
  Step step;
  step.slices.resize(1);
  step.slices[0].kind = RowKind::kDecode;
  step.slices[0].tokens = {512, 513};
  for (uint32_t layer = 0; layer < 2; ++layer) {
    step.remote.push_back({layer, 0, 0, 2, 2 * layer});
    for (int leaf = 0; leaf < 2; ++leaf) step.remote_pieces.push_back(0);
  }
  step.token_ids.resize(1);
  step.index_by_layer();
  const std::vector<Nanos> waits = cluster.peer(0).ask(step, 0);
  ASSERT_EQ(waits.size(), 2u);
  const double work_us = 512 * 1.0 / 2, own_us = 0.5;
  const RemoteRun asked = remote_run(setup.shape, 2, 1, 1);
  const double bytes_us =
      1e6 * static_cast<double>(asked.query_bytes + asked.partial_bytes) / setup.topology.bytes_per_s(0, 0);
  const double by_hand_us = 2 * 8.0 + bytes_us + work_us - own_us;
  EXPECT_NEAR(static_cast<double>(waits[0]), 1e3 * by_hand_us, 2);
  EXPECT_EQ(waits[0], waits[1]);
  EXPECT_NEAR(static_cast<double>(cluster.peer(0).take_served(0)), 1e3 * 512, 2);
  EXPECT_EQ(cluster.peer(0).take_served(512 * kNanosPerMicro), 0) << "it had the time";
  EXPECT_EQ(cluster.peer(1).take_served(0), 0);
}

// All of a history of 512 tokens is at a peer in one layer of two, and half of it in the other: the wait for
// the first overlaps with nothing but the row itself, that for the second with the half that is here.
TEST_F(ClusterTest, AnswersOverlapWithWhatIsAttendedInTheirLayer) {
  auto times = std::make_shared<LinearTimes>();
  times->history_token_us = 2;  // one in each layer
  TwoPeers peers(instances(2, "distkv"), times);
  const ClusterSetup& setup = peers.setup;
  SimCluster& cluster = peers.cluster;
  Step step;
  step.slices.resize(1);
  step.slices[0].kind = RowKind::kDecode;
  step.slices[0].tokens = {512, 513};
  step.remote.push_back({0, 0, 0, 2, 0});
  step.remote.push_back({1, 0, 0, 1, 2});
  step.remote_pieces.assign(3, 0);
  step.token_ids.resize(1);
  step.index_by_layer();
  const std::vector<Nanos> waits = cluster.peer(0).ask(step, 0);
  const auto path_us = [&](uint32_t leaves) {
    const RemoteRun asked = remote_run(setup.shape, leaves, 1, 1);
    return 2 * 8.0 + 1e6 * static_cast<double>(asked.query_bytes + asked.partial_bytes) /
                         setup.topology.bytes_per_s(0, 0);
  };
  EXPECT_NEAR(static_cast<double>(waits[0]), 1e3 * (path_us(2) + 512 - 1), 2);
  EXPECT_NEAR(static_cast<double>(waits[1]), 1e3 * std::max(0.0, path_us(1) + 256 - 257), 2);
}

// A chunk of 256 rows behind a leaf at a peer and a leaf here: meanwhile it attends to the one here, 256 x
// 256 pairs of a microsecond, and to itself, 256 x 257 / 2. The peer has 256 x 256 pairs, too.
TEST_F(ClusterTest, AnswersOverlapWithWhatAChunkAttendsToInItself) {
  auto times = std::make_shared<LinearTimes>();
  times->history_token_us = 2;  // one in each layer
  TwoPeers peers(instances(2, "distkv"), times);
  const auto waits = [&](uint32_t leaves) {
    Step step;
    step.slices.resize(1);
    step.slices[0].kind = RowKind::kPrefill;
    step.slices[0].tokens = {512, 768};
    for (uint32_t layer = 0; layer < 2; ++layer) step.remote.push_back({layer, 0, 0, leaves, leaves * layer});
    step.remote_pieces.assign(2 * size_t{leaves}, 0);
    step.token_ids.resize(256);
    step.index_by_layer();
    return peers.cluster.peer(0).ask(step, 0);
  };
  EXPECT_EQ(waits(1), (std::vector<Nanos>{0, 0}));
  // With both leaves at the peer it has 131,072 pairs, and the chunk itself 32,896.
  const RemoteRun asked = remote_run(peers.setup.shape, 2, 1, 256);
  const double path_us = 2 * 8.0 + 1e6 * static_cast<double>(asked.query_bytes + asked.partial_bytes) /
                                       peers.setup.topology.bytes_per_s(0, 0);
  const double by_hand_us = path_us + 131'072 - 32'896;
  for (const Nanos wait : waits(2)) EXPECT_NEAR(static_cast<double>(wait), 1e3 * by_hand_us, 1e3);
}

// A kernel that does several rows at once, with the longest of their histories deciding.
struct TimesOfLongest final : StepTimes {
  double seconds(const StepLoad& load) const override {
    return load.decode_rows > 0 ? 1e-6 * load.decode_context / load.decode_rows : 0;
  }
};

// Two leaves of four, and the last one, of one history at one creditor: a row with 768 tokens, not two rows.
TEST_F(ClusterTest, PiecesOfAHistoryAreOneQueryOfACreditor) {
  TwoPeers peers(instances(2, "distkv"), std::make_shared<TimesOfLongest>());
  SimCluster& cluster = peers.cluster;
  Step step;
  step.slices.resize(1);
  step.slices[0].kind = RowKind::kDecode;
  step.slices[0].tokens = {1024, 1025};
  for (uint32_t layer = 0; layer < 2; ++layer) {
    step.remote.push_back({layer, 0, 0, 2, 3 * layer});
    step.remote.push_back({layer, 0, 3, 4, 3 * layer + 2});
  }
  step.remote_pieces.assign(6, 0);
  step.token_ids.resize(1);
  step.index_by_layer();
  cluster.peer(0).ask(step, 0);
  EXPECT_EQ(cluster.peer(0).sums().queries, 2u) << "one in each layer";
  EXPECT_NEAR(static_cast<double>(cluster.peer(0).take_served(0)), 1e3 * 768, 2);
}

// Of 3,040 tokens, twelve blocks, the device holds six beside the two for what is being written: 1,536 tokens
// go. A ring that passes them at once: they attend to themselves here, and only K and V go out. The 1,464
// rows behind them, and each decode, ask the peer once in each of the two layers. A ring of three blocks
// passes the first 1,023 (the last of their four blocks is not full); the other 513 ask for the three that
// are there.
TEST_F(ClusterTest, OnlyRowsBehindWhatGoesAskPeers) {
  const std::vector<SimulatedRequest> one = {one_long().front()};
  const auto queries = [&](int ring_kib) {
    const SimulationOutcome out = outcome(instances(2, "distkv", ring_kib), one);
    EXPECT_EQ(out.load.records.front().state, RequestRecord::State::kCompleted);
    EXPECT_GT(out.peers->copied_bytes, 0u);
    return out.peers->sums.queries;
  };
  ASSERT_EQ(one.front().prompt_tokens, 3000);
  ASSERT_EQ(one.front().output_tokens, 40);
  EXPECT_EQ(queries(96), 2 * (1464 + 39));
  EXPECT_EQ(queries(12), 2 * (513 + 1464 + 39));
}

TEST_F(ClusterTest, MessagesComeInOrderAndWhenTheirWaySays) {
  Topology topology;
  topology.instances = 3;
  topology.per_node = 2;
  topology.inside = {"in", 1e9, 1, 1e-6, {}};
  topology.between = {"out", 1e9, 1, 1e-3, {}};
  SimNetwork network(topology);
  VirtualClock clock;
  PeerTransport& from = network.open(0, clock);
  const auto send = [&](uint32_t to, size_t bytes) {
    EXPECT_TRUE(from.send(SimNetwork::id_of(to), std::vector<std::byte>(bytes)).ok());
  };
  send(1, 1000);
  send(1, 0);  // does not overtake
  send(2, 0);
  send(3, 0);  // the leader is on a node of its own
  EXPECT_EQ(network.next_arrival(0), INT64_MAX);
  EXPECT_EQ(network.next_arrival(1), 2 * kNanosPerMicro);
  EXPECT_EQ(network.next_arrival(2), kNanosPerMilli);
  EXPECT_EQ(network.next_arrival(3), kNanosPerMilli);
  EXPECT_TRUE(network.receive(1, 1999).empty());
  const std::vector<PeerMessage> got = network.receive(1, 2000);
  ASSERT_EQ(got.size(), 2u);
  EXPECT_EQ(got[0].bytes.size(), 1000u);
  EXPECT_EQ(got[0].from, SimNetwork::id_of(0));
  EXPECT_EQ(network.messages(), 4u);
}

TEST_F(ClusterTest, NetworksAreData) {
  EXPECT_THAT(network_names(), testing::ElementsAre("ethernet", "infiniband", "nvlink"));
  double before = 0;
  for (const char* name : {"ethernet", "infiniband", "NVLink"}) {
    const NetworkSpec network = find_network(name).value();
    EXPECT_GT(network.usable(), before);
    EXPECT_GT(network.latency_s, 0);
    EXPECT_FALSE(network.source.empty());
    before = network.usable();
  }
  const std::string broken = write("broken.json", R"({"name": "x"})");
  EXPECT_THAT(find_network(broken).status().message(), HasSubstr("broken.json"));
}

TEST_F(ClusterTest, Refusals) {
  const Args load = lengths(20, 10, 20) + Args{"--request-rate", "1"};
  const std::vector<std::pair<Args, std::vector<std::string>>> cases = {
      {{"--instances", "0"}, {"--instances 0", "1 to 32"}},
      {{"--instances", "33"}, {"--instances 33", "1 to 32"}},
      {{"--instances", "2", "--network", "token-ring"}, {"'token-ring'", "ethernet, infiniband, nvlink"}},
      {{"--node-network", "token-ring"}, {"'token-ring'", "nvlink"}},
      {{"--instances", "2", "--max-concurrency", "3"}, {"--max-concurrency"}},
      {{"--instances", "2", "--log-plans", in_folder("plans")}, {"--log-plans", "one instance"}},
      {{"--instances", "2", "--kv-offloading-size", "1"}, {"--kv-offloading-size"}},
  };
  for (const auto& [args, says] : cases) {
    const std::string line = refusal(instances(1, "distkv") + load + args);
    for (const std::string& text : says) EXPECT_THAT(line, HasSubstr(text));
  }
}

}  // namespace
}  // namespace kvasir::test
