// The plan log: what a run writes replays to the same plans, and what is wrong with a log is said.
#include "engine/plan_log.h"

#include <gtest/gtest.h>
#include <sys/resource.h>

#include <csignal>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "engine/engine_fixture.h"
#include "engine/map_lines.h"
#include "engine/plan_json.h"
#include "engine/random_policy.h"
#include "engine/torture.h"
#include "support/temp_file.h"

namespace kvasir::test {
namespace {

// Without those of the cache map, which are read as one map; frames: how many it has.
std::vector<std::string> lines_of(const std::string& path, uint64_t* frames = nullptr) {
  std::ifstream in(path);
  std::vector<std::string> out;
  MapReader map;
  for (std::string line; std::getline(in, line);) {
    if (!is_map_line(line)) {
      out.push_back(line);
      continue;
    }
    const Status read = map.read(line);
    EXPECT_TRUE(read.ok() || in.eof()) << read.message();  // the last line may be cut
  }
  if (frames != nullptr) *frames = map.frame();
  return out;
}

void write_lines(const std::string& path, const std::vector<std::string>& lines) {
  std::ofstream out(path);
  for (const std::string& line : lines) out << line << '\n';
}

// Runs a little torture with a log at `path`.
TortureOutcome logged_run(const std::string& path, const std::string& policy) {
  auto log = PlanLog::create(path, policy).value();
  TortureConfig config;
  config.policy = policy;
  config.depth = 2;
  config.requests = 30;
  config.log = log.get();
  return torture(config);
}

TEST(PlanLog, ARunReplaysToTheSamePlans) {
  for (const char* policy : {"auto", "vllm", "sarathi", "random"}) {
    const TempFile file({});
    const TortureOutcome run = logged_run(file.path(), policy);
    EXPECT_EQ(run.wrong, 0u) << run.first_wrong;
    const auto replay = replay_plan_log(file.path(), make_test_policy);
    ASSERT_TRUE(replay.ok()) << replay.status().message();
    EXPECT_EQ(replay->policy, policy);
    EXPECT_EQ(replay->first_difference, 0u) << replay->expected << "\n" << replay->got;
    EXPECT_GE(replay->steps, run.steps);
    uint64_t frames = 0;
    EXPECT_EQ(replay->steps + 1, lines_of(file.path(), &frames).size());
    EXPECT_GT(frames, 0u);
  }
}

// It decides on its way, and its plans follow from that.
TEST(PlanLog, APolicyThatDecidesOnceReplays) {
  const TempFile file({});
  auto log = PlanLog::create(file.path(), "hcache").value();
  TortureConfig config;
  config.policy = "hcache";
  config.groups = 4;
  config.host_blocks = 60;
  config.stage_blocks = 40;
  config.x_bytes = 8;
  config.requests = 60;
  config.prefix_caching = false;
  config.costs.prefill_row_s = config.costs.decode_row_s = 1e-6;
  config.costs.projected_token_s = 2e-9;
  config.costs.knee_rows = 8;
  config.costs.above_knee_s = 1e-6;
  config.costs.expert_share = 0.25;
  config.costs.experts_s = 2e-3;
  config.costs.links[0][1] = config.costs.links[1][0] = {1e-6, 1e-10};  // two layer groups of four
  config.log = log.get();
  const TortureOutcome run = torture(config);
  log.reset();
  EXPECT_EQ(run.wrong, 0u) << run.first_wrong;
  EXPECT_GT(run.counts.x_restores, 0u);
  const auto replay = replay_plan_log(file.path(), make_test_policy);
  ASSERT_TRUE(replay.ok()) << replay.status().message();
  EXPECT_EQ(replay->first_difference, 0u) << replay->expected << "\n" << replay->got;
}

TEST(PlanLog, ATamperedPlanIsFoundByItsLine) {
  const TempFile file({});
  logged_run(file.path(), "sarathi");
  auto lines = lines_of(file.path());
  const size_t index = 20;  // line 21
  auto record = nlohmann::json::parse(lines.at(index));
  ASSERT_FALSE(record["plan"]["rows"].empty());
  record["plan"]["rows"][0]["samples"] = !record["plan"]["rows"][0]["samples"].get<bool>();
  lines[index] = record.dump();
  write_lines(file.path(), lines);
  const auto replay = replay_plan_log(file.path(), make_test_policy);
  ASSERT_TRUE(replay.ok());
  EXPECT_EQ(replay->first_difference, 21u);
  EXPECT_NE(replay->expected, replay->got);
}

TEST(PlanLog, AReasonIsLoggedInWordsAndATamperedOneIsFound) {
  const TempFile file({});
  logged_run(file.path(), "auto");
  auto lines = lines_of(file.path());
  size_t index = 1;
  while (!nlohmann::json::parse(lines.at(index))["plan"].contains("reasons")) ++index;
  auto record = nlohmann::json::parse(lines[index]);
  nlohmann::json& reason = record["plan"]["reasons"][0];
  EXPECT_EQ(reason["words"].get<std::string>().find("admitted "), 0u) << reason;
  std::vector<std::string> words;
  const auto visit = [&](const View&, const StepPlan& plan) {
    for (const Reason& r : plan.reasons) words.push_back(to_string(r));
  };
  ASSERT_EQ(replay_plan_log(file.path(), make_test_policy, visit)->first_difference, 0u);
  ASSERT_FALSE(words.empty());
  EXPECT_EQ(words[0], reason["words"]);
  reason["a"] = reason["a"].get<double>() + 1;
  lines[index] = record.dump();
  write_lines(file.path(), lines);
  const auto replay = replay_plan_log(file.path(), make_test_policy);
  ASSERT_TRUE(replay.ok());
  EXPECT_EQ(replay->first_difference, index + 1);
  EXPECT_NE(replay->expected.find("admitted "), std::string::npos) << replay->expected;
}

TEST(PlanLog, AnotherPolicyIsFoundOut) {
  const TempFile file({});
  logged_run(file.path(), "random");
  auto lines = lines_of(file.path());
  auto head = nlohmann::json::parse(lines[0]);
  head["policy"] = "vllm";
  lines[0] = head.dump();
  write_lines(file.path(), lines);
  const auto replay = replay_plan_log(file.path(), make_test_policy);
  ASSERT_FALSE(replay.ok()) << "a policy without state is given one";
  EXPECT_EQ(replay.status().code(), ErrorCode::kCorrupt);
  EXPECT_NE(replay.status().message().find("line 2"), std::string::npos);
}

TEST(PlanLog, GarbageIsNamedByItsLine) {
  const TempFile file({});
  logged_run(file.path(), "sarathi");
  const auto good = lines_of(file.path());
  auto view_broken = nlohmann::json::parse(good[4]);
  view_broken["view"]["block_tokens"] = 0;
  auto verb_broken = nlohmann::json::parse(good[4]);
  verb_broken["plan"]["rows"][0]["kind"] = "guess";
  auto field_missing = nlohmann::json::parse(good[4]);
  field_missing["view"].erase("now");
  const std::string cut = good[4].substr(0, good[4].size() / 2);
  for (const std::string& bad : {std::string("nonsense"), std::string(), std::string("[]"), cut,
                                 view_broken.dump(), verb_broken.dump(), field_missing.dump()}) {
    auto lines = good;
    lines[4] = bad;
    write_lines(file.path(), lines);
    const auto replay = replay_plan_log(file.path(), make_test_policy);
    ASSERT_FALSE(replay.ok()) << bad;
    EXPECT_EQ(replay.status().code(), ErrorCode::kCorrupt);
    EXPECT_NE(replay.status().message().find("line 5"), std::string::npos) << replay.status().message();
  }
}

TEST(PlanLog, AHeadThatIsNoneIsRefused) {
  const TempFile file({});
  EXPECT_EQ(replay_plan_log(file.path(), make_test_policy).status().code(), ErrorCode::kCorrupt);
  write_lines(file.path(), {R"({"kvasir_plan_log":2,"policy":"vllm"})"});
  EXPECT_EQ(replay_plan_log(file.path(), make_test_policy).status().code(), ErrorCode::kUnsupported);
  write_lines(file.path(), {R"({"kvasir_plan_log":8,"policy":"lifo"})"});
  EXPECT_EQ(replay_plan_log(file.path(), make_test_policy).status().code(), ErrorCode::kNotFound);
  write_lines(file.path(), {R"({"kvasir_plan_log":8,"policy":"vllm"})"});
  EXPECT_EQ(replay_plan_log(file.path(), make_test_policy)->steps, 0u);
  EXPECT_EQ(replay_plan_log("no/such/file", make_test_policy).status().code(), ErrorCode::kIo);
}

TEST(PlanLog, AFileThatCannotBeWrittenIsRefusedAtOnce) {
  const auto no_folder = PlanLog::create("no/such/folder/plans.jsonl", "vllm");
  ASSERT_FALSE(no_folder.ok());
  EXPECT_EQ(no_folder.status().code(), ErrorCode::kIo);
  EXPECT_NE(no_folder.status().message().find("no/such/folder"), std::string::npos);
  const auto full = PlanLog::create("/dev/full", "vllm");
  ASSERT_FALSE(full.ok());
  EXPECT_EQ(full.status().code(), ErrorCode::kIo);
}

// For its lifetime no file of this process grows beyond `bytes`: a disk that is full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    handler_ = std::signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit now{bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &now);
  }
  ~FullDisk() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  void (*handler_)(int);
  rlimit before_{};
};

TEST(PlanLog, WhenTheDiskFillsTheLogEndsAndTheEngineGoesOn) {
  const TempFile file({});
  TortureOutcome run;
  {
    const FullDisk disk(40'000);
    run = logged_run(file.path(), "sarathi");
  }
  EXPECT_EQ(run.wrong, 0u) << run.first_wrong;
  EXPECT_EQ(run.complete + run.aborted, 30u);
  const auto lines = lines_of(file.path());
  EXPECT_GT(lines.size(), 2u);
  EXPECT_LT(lines.size(), run.steps);
}

TEST(PlanJson, EveryFieldSurvives) {
  StepPlan plan;
  plan.failures.push_back({SeqId{1}, "why \"not\"\n"});
  plan.preemptions.push_back({SeqId{UINT64_MAX}});
  CopyChange c;
  c.verb = Verb::kStage;
  c.seq = SeqId{3};
  c.tokens = {16, 48};
  c.layers.add(127);
  c.form = Form::kX;
  c.tier = Tier::kDisk;
  c.trigger = Trigger::kAfterLayerWrites;
  plan.copies.push_back(c);
  plan.adoptions.push_back({SeqId{4}, 32});
  plan.promises.push_back({SeqId{5}, 6, Tier::kHost, Promise::Kind::kOwn});
  Rows r;
  r.seq = SeqId{6};
  r.tokens = {1, 2};
  r.layers = LayerSet::all(128);
  r.kind = RowKind::kRecompute;
  r.writes.kv.add(0);
  r.writes.x.add(64);
  r.samples = true;
  plan.rows.push_back(r);
  plan.borrow_cells = 17;
  plan.return_cells = 4;
  plan.reasons.push_back({Cause::kStretch, SeqId{UINT64_MAX}, SeqId{7}, 0.1, -1e-300});
  EXPECT_EQ(plan_from_json(nlohmann::json::parse(plan_to_json(plan).dump())), plan);

  View view;
  view.geometry = {16, 7, 2, 64};
  view.now = 123;
  view.next_step = StepId{9};
  view.steps_in_flight = 1;
  view.device.coming[0] = 8;
  view.limits.long_prefill_token_threshold = 77;
  view.running.emplace_back();
  view.running[0].id = SeqId{2};
  view.running[0].cells[1][2] = 5;
  view.running[0].device_groups.add(70);
  view.host.slabs = 12;
  view.link.bytes_per_s = 2.5e9;
  view.running[0].priority = -3;
  view.running[0].weight = 0.0625f;
  view.running[0].peer_blocks = 32;
  view.running[0].preemptions = UINT16_MAX;
  view.running[0].late_gaps = 7;
  view.peers = {
      100, 30, 40, 5, 6, 7, true, 8, 9, 1234567890123, {{SeqId{2}, 3, 4, 1}, {SeqId{UINT64_MAX}, 0, 1, 0}}};
  const auto j = view_to_json(view);
  EXPECT_EQ(view_to_json(view_from_json(nlohmann::json::parse(j.dump()))), j);
  EXPECT_EQ(view_from_json(j).device.coming[0], 8u);
  EXPECT_EQ(view_from_json(j).running[0].cells[1][2], 5u);
  EXPECT_TRUE(view_from_json(j).running[0].device_groups.contains(70));
  EXPECT_EQ(view_from_json(j).host.slabs, 12u);
  EXPECT_EQ(view_from_json(j).link.bytes_per_s, 2.5e9);
  EXPECT_EQ(view_from_json(j).running[0].peer_blocks, 32u);
  EXPECT_EQ(view_from_json(j).running[0].weight, 0.0625f);
  EXPECT_EQ(view_from_json(j).running[0].preemptions, UINT16_MAX);
  EXPECT_EQ(view_from_json(j).running[0].late_gaps, 7u);
  const PeersView peers = view_from_json(j).peers;
  EXPECT_EQ(peers.most_borrowed, 100u);
  EXPECT_EQ(peers.out_of_reach, 30u);
  EXPECT_EQ(peers.borrowed, 40u);
  EXPECT_EQ(peers.asked, 5u);
  EXPECT_EQ(peers.recalled, 6u);
  EXPECT_EQ(peers.lent, 7u);
  EXPECT_TRUE(peers.peers_refuse);
  EXPECT_EQ(peers.awaited, 8u);
  EXPECT_EQ(peers.awaited_since, 9);
  EXPECT_EQ(peers.recalled_by, 1234567890123);
  EXPECT_EQ(peers.in_recalled, view.peers.in_recalled);
}

TEST(PlanJson, AnOlderLogHasNoWindows) {
  View view;
  view.geometry = {16, 4, 2, 64};
  view.waiting.emplace_back();
  auto j = view_to_json(view);
  for (const char* key : {"window", "windowed", "window_chunk"}) EXPECT_EQ(j.erase(key), 1u) << key;
  for (const char* key : {"dead_blocks", "cached_shared_cells"}) {
    EXPECT_EQ(j["waiting"][0].erase(key), 1u) << key;
  }
  const View old = view_from_json(j);
  EXPECT_EQ(old.geometry.window, 0u);
  EXPECT_TRUE(old.geometry.windowed.empty());
  EXPECT_EQ(view_to_json(old), view_to_json(view));
  EXPECT_EQ(j.erase("layers"), 1u);
  EXPECT_ANY_THROW(view_from_json(j));
}

}  // namespace
}  // namespace kvasir::test
