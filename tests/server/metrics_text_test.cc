// The page of metrics: names, types, labels, and numbers that add up.
#include "server/metrics_text.h"

#include <gtest/gtest.h>

#include <iterator>
#include <set>
#include <sstream>
#include <utility>
#include <vector>

#include "engine/request.h"

namespace kvasir {
namespace {

std::string page(const EngineMetrics& m, const HttpCounters& http, const std::string& model = "m") {
  return metrics_text(&m, http, model, {{"block_size", "64"}});
}

bool has_line(const std::string& text, const std::string& line) {
  return ("\n" + text).find("\n" + line + "\n") != std::string::npos;
}

// Under either prefix.
constexpr std::pair<const char*, const char*> kPromised[] = {
    {"num_requests_running", "gauge"},
    {"num_requests_waiting", "gauge"},
    {"kv_cache_usage_perc", "gauge"},
    {"cache_config_info", "gauge"},
    {"prompt_tokens_total", "counter"},
    {"prompt_tokens_cached_total", "counter"},
    {"generation_tokens_total", "counter"},
    {"request_success_total", "counter"},
    {"num_preemptions_total", "counter"},
    {"prefix_cache_queries_total", "counter"},
    {"prefix_cache_hits_total", "counter"},
    {"time_to_first_token_seconds", "histogram"},
    {"inter_token_latency_seconds", "histogram"},
    {"request_time_per_output_token_seconds", "histogram"},
    {"e2e_request_latency_seconds", "histogram"},
    {"request_queue_time_seconds", "histogram"},
    {"request_inference_time_seconds", "histogram"},
    {"request_prefill_time_seconds", "histogram"},
    {"request_decode_time_seconds", "histogram"},
    {"request_prompt_tokens", "histogram"},
    {"request_generation_tokens", "histogram"},
    {"iteration_tokens_total", "histogram"},
    {"request_params_n", "histogram"},
    {"request_params_max_tokens", "histogram"},
    {"request_max_num_generation_tokens", "histogram"},
};

TEST(MetricsText, EveryPromisedNameWithItsType) {
  const EngineMetrics m;
  const HttpCounters http;
  const std::string text = page(m, http);
  for (const auto& [name, type] : kPromised) {
    EXPECT_TRUE(has_line(text, std::string("# TYPE kvasir:") + name + " " + type)) << name;
  }
  EXPECT_TRUE(has_line(text, "kvasir:cache_config_info{model_name=\"m\",block_size=\"64\"} 1"));
}

// What reads vLLM's page: dashboards, autoscalers, routers.
TEST(MetricsText, NamesOfVllmWhereItHasThem) {
  EngineMetrics m;
  const HttpCounters http;
  m.kv_blocks_total = 4;
  m.kv_blocks_used = 1;
  m.peers.present = true;
  m.inter_token_latency.observe(0.02);
  const std::string text =
      metrics_text(&m, http, "m", {{"block_size", "64"}}, {}, nullptr, MetricsPrefix::kVllm);
  std::vector<std::pair<const char*, const char*>> of_vllm(std::begin(kPromised), std::end(kPromised));
  of_vllm.insert(of_vllm.end(), {{"gpu_cache_usage_perc", "gauge"},
                                 {"gpu_prefix_cache_queries_total", "counter"},
                                 {"gpu_prefix_cache_hits_total", "counter"},
                                 {"external_prefix_cache_queries_total", "counter"},
                                 {"external_prefix_cache_hits_total", "counter"},
                                 {"time_per_output_token_seconds", "histogram"}});
  for (const auto& [name, type] : of_vllm) {
    EXPECT_TRUE(has_line(text, std::string("# TYPE vllm:") + name + " " + type)) << name;
    EXPECT_EQ(text.find(std::string("kvasir:") + name), std::string::npos) << name;
  }
  for (const char* line :
       {R"(vllm:num_requests_running{model_name="m",engine="0"} 0)",
        R"(vllm:kv_cache_usage_perc{model_name="m",engine="0"} 0.25)",
        R"(vllm:gpu_cache_usage_perc{model_name="m",engine="0"} 0.25)",
        R"(vllm:request_success_total{model_name="m",engine="0",finished_reason="stop"} 0)",
        R"(vllm:inter_token_latency_seconds_bucket{model_name="m",engine="0",le="0.01"} 0)",
        R"(vllm:inter_token_latency_seconds_bucket{model_name="m",engine="0",le="0.025"} 1)",
        R"(vllm:time_per_output_token_seconds_count{model_name="m",engine="0"} 1)",
        R"(vllm:cache_config_info{model_name="m",engine="0",block_size="64"} 1)",
        R"(# TYPE kvasir:kv_blocks gauge)",
        R"(kvasir:kv_blocks{model_name="m",tier="device",state="used"} 1)",
        R"(kvasir:http_connections{model_name="m"} 0)"}) {
    EXPECT_TRUE(has_line(text, line)) << line;
  }
  EXPECT_EQ(page(m, http).find("vllm:"), std::string::npos);
}

TEST(MetricsText, AttainmentByItsKind) {
  EngineMetrics m;
  m.slo[static_cast<size_t>(SloKind::kP99Tbt)].requests = 7;
  m.slo[static_cast<size_t>(SloKind::kP99Tbt)].attained = 5;
  m.goodput.requests = 9;
  m.goodput.attained = 4;
  m.tokens_projected = 11;
  m.tokens_computed_again = 12;
  const std::string text = page(m, HttpCounters());
  for (const char* line :
       {"slo_requests_total{model_name=\"m\",slo=\"p99_tbt\"} 7",
        "slo_attained_total{model_name=\"m\",slo=\"p99_tbt\"} 5",
        "slo_attained_total{model_name=\"m\",slo=\"every_tbt\"} 0",
        "slo_requests_total{model_name=\"m\",slo=\"mean_tpot\"} 0",
        "requests_with_slo_total{model_name=\"m\"} 9", "good_requests_total{model_name=\"m\"} 4",
        "kv_tokens_projected_total{model_name=\"m\"} 11",
        "kv_tokens_computed_again_total{model_name=\"m\"} 12"}) {
    EXPECT_TRUE(has_line(text, std::string("kvasir:") + line)) << line;
  }
}

TEST(MetricsText, TheDiskIsShownWhereThereIsOne) {
  EngineMetrics m;
  const HttpCounters http;
  LinkStats link;
  link.emulated = true;
  m.link.set(link);
  EXPECT_EQ(page(m, http).find("kvasir:disk_"), std::string::npos);
  link.has_disk = true;
  link.disk = {1, 2, 3, 4, 5, 6, 7, 8};
  link.disk_busy_s = 0.5;
  link.disk_bytes_per_s = 1e9;
  link.bytes[index_of(Tier::kDisk)][index_of(Tier::kHost)] = 9;
  m.link.set(link);
  for (size_t t = 0; t < kTiers; ++t) m.prefix_cache_hits_by_tier[t] = 16 * (t + 1);
  m.tiers[index_of(Tier::kDisk)].blocks_cached = 10;
  const std::string text = page(m, http);
  for (const char* line :
       {"disk_reads_total{model_name=\"m\"} 1", "disk_writes_total{model_name=\"m\"} 2",
        "disk_read_bytes_total{model_name=\"m\"} 3", "disk_written_bytes_total{model_name=\"m\"} 4",
        "disk_read_failures_total{model_name=\"m\",reason=\"error\"} 5",
        "disk_read_failures_total{model_name=\"m\",reason=\"short\"} 6",
        "disk_read_failures_total{model_name=\"m\",reason=\"checksum\"} 7",
        "disk_write_failures_total{model_name=\"m\"} 8", "disk_busy_seconds_total{model_name=\"m\"} 0.5",
        "disk_bytes_per_second{model_name=\"m\"} 1000000000",
        "prefix_cache_hits_by_tier_total{model_name=\"m\",tier=\"device\"} 16",
        "prefix_cache_hits_by_tier_total{model_name=\"m\",tier=\"host\"} 32",
        "prefix_cache_hits_by_tier_total{model_name=\"m\",tier=\"disk\"} 48",
        "kv_tier_cached_blocks{model_name=\"m\",tier=\"disk\"} 10",
        "link_bytes_total{model_name=\"m\",from=\"disk\",to=\"host\",emulated=\"false\"} 9"}) {
    EXPECT_TRUE(has_line(text, std::string("kvasir:") + line)) << line << "\n" << text;
  }
}

TEST(MetricsText, BeliefsShowHowWrongTheyAre) {
  EngineMetrics m;
  const HttpCounters http;
  for (const char* name : {"length_prediction_error_tokens", "length_prediction_bias_tokens"}) {
    EXPECT_TRUE(has_line(page(m, http), std::string("kvasir:") + name + "{model_name=\"m\"} 0")) << name;
  }
  m.predictions.finished = 4;
  m.predictions.within_50 = 3;
  m.predictions.error_tokens = 100;
  m.predictions.over_tokens = -60;
  m.cost_error = 0.125;
  m.cost_steps = 7;
  m.cost_steps_dropped = 2;
  const std::string text = page(m, http);
  for (const char* line :
       {"length_predictions_total{model_name=\"m\"} 4",
        "length_prediction_within_50_total{model_name=\"m\"} 3",
        "length_prediction_error_tokens_total{model_name=\"m\"} 100",
        "length_prediction_error_tokens{model_name=\"m\"} 25",
        "length_prediction_bias_tokens{model_name=\"m\"} -15", "cost_model_steps_total{model_name=\"m\"} 7",
        "cost_model_steps_dropped_total{model_name=\"m\"} 2",
        "cost_model_error_ratio{model_name=\"m\"} 0.125"}) {
    EXPECT_TRUE(has_line(text, std::string("kvasir:") + line)) << line << "\n" << text;
  }
}

TEST(MetricsText, PeersAreShownToAMemberOfACluster) {
  EngineMetrics m;
  const HttpCounters http;
  EXPECT_EQ(page(m, http).find("kvasir:peer_"), std::string::npos);
  m.peers.present = true;
  m.peers.borrowed_cells = 11;
  m.peers.recalled_cells = 12;
  m.peers.lent_cells = 13;
  m.peers.granted = 14;
  m.peers.refused = 15;
  m.peers.lost = 16;
  m.peers.prefix_queries = 17;
  m.peers.prefix_hits = 18;
  m.peers.prefix_late = 19;
  m.peers.prefix_failed = 20;
  m.peers.prefix_shown = 21;
  m.peers.prefix_bytes = 22;
  m.peers.prefix_waited_s = 2.5;
  const std::string text = page(m, http);
  for (const char* line : {"# TYPE kvasir:peer_cells gauge", "# TYPE kvasir:peer_cells_total counter",
                           "kvasir:peer_cells{model_name=\"m\",state=\"borrowed\"} 11",
                           "kvasir:peer_cells{model_name=\"m\",state=\"recalled\"} 12",
                           "kvasir:peer_cells{model_name=\"m\",state=\"lent\"} 13",
                           "kvasir:peer_cells_total{model_name=\"m\",event=\"granted\"} 14",
                           "kvasir:peer_cells_total{model_name=\"m\",event=\"refused\"} 15",
                           "kvasir:peer_cells_total{model_name=\"m\",event=\"lost\"} 16",
                           "kvasir:external_prefix_cache_queries_total{model_name=\"m\"} 17",
                           "kvasir:external_prefix_cache_hits_total{model_name=\"m\"} 18",
                           "kvasir:peer_prefix_tokens_total{model_name=\"m\",event=\"late\"} 19",
                           "kvasir:peer_prefix_tokens_total{model_name=\"m\",event=\"failed\"} 20",
                           "kvasir:peer_prefix_tokens_total{model_name=\"m\",event=\"shown\"} 21",
                           "kvasir:peer_prefix_bytes_total{model_name=\"m\"} 22",
                           "kvasir:peer_prefix_wait_seconds_total{model_name=\"m\"} 2.5"}) {
    EXPECT_TRUE(has_line(text, line)) << line << "\n" << text;
  }
}

TEST(MetricsText, WhatTheEngineDoesNotKnowOfIsTakenFromOutside) {
  const EngineMetrics m;
  const HttpCounters http;
  const std::vector<OutsideMetric> outside = {
      {"cluster_peers", "gauge", 2, "Members with which it can share memory."},
      {"remote_written_bytes_total", "counter", 3e12, "Bytes written to peers."},
      {"cluster_directory_down_seconds", "gauge", 0.25, "For how long etcd has not answered."}};
  const EngineMetrics* const loading = nullptr;
  for (const EngineMetrics* engine : {&m, loading}) {
    const std::string text = metrics_text(engine, http, "m", {}, outside);
    for (const char* line : {"# HELP kvasir:cluster_peers Members with which it can share memory.",
                             "# TYPE kvasir:cluster_peers gauge", "kvasir:cluster_peers{model_name=\"m\"} 2",
                             "# TYPE kvasir:remote_written_bytes_total counter",
                             "kvasir:cluster_directory_down_seconds{model_name=\"m\"} 0.25"}) {
      EXPECT_TRUE(has_line(text, line)) << line << "\n" << text;
    }
    const size_t at = text.find("\nkvasir:remote_written_bytes_total{model_name=\"m\"} ");
    ASSERT_NE(at, std::string::npos);
    EXPECT_DOUBLE_EQ(std::stod(text.substr(text.find("} ", at) + 2)), 3e12);
  }
}

TEST(MetricsText, EachSampleIsUniqueAndWellFormed) {
  EngineMetrics m;
  m.peers.present = true;
  LinkStats link;
  link.has_disk = true;
  m.link.set(link);
  const HttpCounters http;
  std::istringstream lines(page(m, http));
  std::set<std::string> seen;
  std::string line;
  while (std::getline(lines, line)) {
    if (line.starts_with("# ")) continue;
    const size_t space = line.rfind(' ');
    ASSERT_NE(space, std::string::npos) << line;
    EXPECT_TRUE(line.starts_with("kvasir:")) << line;
    EXPECT_NE(line.find("{model_name=\"m\""), std::string::npos) << line;
    EXPECT_TRUE(seen.insert(line.substr(0, space)).second) << line;
    EXPECT_NO_THROW((void)std::stod(line.substr(space + 1))) << line;
  }
  EXPECT_GT(seen.size(), 100u);
}

TEST(MetricsText, HistogramsAreCumulative) {
  EngineMetrics m;
  const HttpCounters http;
  m.time_to_first_token.observe(0.0005);
  m.time_to_first_token.observe(0.007, 2);
  m.time_to_first_token.observe(1e6);
  const std::string text = page(m, http);
  const std::string bucket = "kvasir:time_to_first_token_seconds_bucket{model_name=\"m\",le=";
  EXPECT_TRUE(has_line(text, bucket + "\"0.001\"} 1"));
  EXPECT_TRUE(has_line(text, bucket + "\"0.005\"} 1"));
  EXPECT_TRUE(has_line(text, bucket + "\"0.01\"} 3"));
  EXPECT_TRUE(has_line(text, bucket + "\"2560\"} 3"));
  EXPECT_TRUE(has_line(text, bucket + "\"+Inf\"} 4"));
  EXPECT_TRUE(has_line(text, "kvasir:time_to_first_token_seconds_count{model_name=\"m\"} 4"));
}

TEST(MetricsText, BlocksAndReasons) {
  EngineMetrics m;
  const HttpCounters http;
  m.kv_blocks_total = 10;
  m.kv_blocks_used = 5;
  m.kv_blocks_cached = 2;
  m.kv_block_bytes = 100;
  m.finished[static_cast<size_t>(FinishReason::kStop)] = 1;
  m.finished[static_cast<size_t>(FinishReason::kAbort)] = 3;
  const std::string text = page(m, http);
  EXPECT_TRUE(has_line(text, "kvasir:kv_cache_usage_perc{model_name=\"m\"} 0.5"));
  EXPECT_TRUE(has_line(text, "kvasir:kv_bytes{model_name=\"m\",tier=\"device\",state=\"free\"} 300"));
  EXPECT_TRUE(has_line(text, "kvasir:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1"));
  EXPECT_TRUE(has_line(text, "kvasir:request_success_total{model_name=\"m\",finished_reason=\"abort\"} 3"));
}

TEST(MetricsText, TiersAndTheRing) {
  EngineMetrics m;
  const HttpCounters http;
  m.tiers[0].bytes_total = 1000;
  m.tiers[0].bytes_used = 300;
  m.tiers[1].bytes_total = 5000;
  m.tiers[1].bytes_used = 4000;
  m.stage_ring_bytes = 64;
  const std::string text = page(m, http);
  const std::string label = "{model_name=\"m\",tier=";
  EXPECT_TRUE(has_line(text, "kvasir:kv_tier_bytes" + label + "\"device\",form=\"kv\"} 1000"));
  EXPECT_TRUE(has_line(text, "kvasir:kv_tier_bytes" + label + "\"host\",form=\"kv\"} 5000"));
  EXPECT_TRUE(has_line(text, "kvasir:kv_tier_used_bytes" + label + "\"device\",form=\"kv\"} 300"));
  EXPECT_TRUE(has_line(text, "kvasir:kv_tier_used_bytes" + label + "\"host\",form=\"kv\"} 4000"));
  EXPECT_TRUE(has_line(text, "kvasir:kv_stage_ring_bytes{model_name=\"m\"} 64"));
}

TEST(MetricsText, TheLinkSaysWhetherItIsEmulated) {
  EngineMetrics m;
  const HttpCounters http;
  EXPECT_EQ(page(m, http).find("kvasir:link_"), std::string::npos);
  LinkStats stats;
  stats.bytes[static_cast<size_t>(Tier::kDevice)][static_cast<size_t>(Tier::kHost)] = 11;
  stats.bytes[static_cast<size_t>(Tier::kHost)][static_cast<size_t>(Tier::kDevice)] = 12;
  stats.transfers = 9;
  stats.failed = 2;
  stats.cancelled = 4;
  stats.queued_bytes = 77;
  stats.busy_s = 1.5;
  stats.cpu_s = 0.25;
  stats.bytes_per_s = 4e9;
  stats.latency_s = 0.5;
  for (const bool emulated : {false, true}) {
    stats.emulated = emulated;
    m.link.set(stats);
    m.transfers_in_flight = 3;
    const std::string text = page(m, http);
    const std::string label = std::string("emulated=\"") + (emulated ? "true" : "false") + "\"}";
    const auto line = [&](const std::string& name, const std::string& value, const std::string& more = "") {
      return "kvasir:link_" + name + "{model_name=\"m\"," + more + label + " " + value;
    };
    for (const std::string& expected :
         {line("bytes_total", "11", "from=\"device\",to=\"host\","),
          line("bytes_total", "12", "from=\"host\",to=\"device\","), line("transfers_total", "9"),
          line("transfers_failed_total", "2"), line("transfers_cancelled_total", "4"),
          line("transfers_in_flight", "3"), line("queued_bytes", "77"), line("busy_seconds_total", "1.5"),
          line("cpu_seconds_total", "0.25"), line("bytes_per_second", "4000000000"),
          line("latency_seconds", "0.5")}) {
      EXPECT_TRUE(has_line(text, expected)) << expected << "\n" << text;
    }
  }
}

TEST(MetricsText, DecisionsByReason) {
  EngineMetrics m;
  const HttpCounters http;
  m.decisions[static_cast<size_t>(Cause::kArrivedLast)] = 3;
  m.decisions[static_cast<size_t>(Cause::kStretch)] = 4;
  const std::string text = page(m, http);
  const std::string name = "kvasir:scheduling_decisions_total{model_name=\"m\",reason=";
  EXPECT_TRUE(has_line(text, name + "\"preempt_latest\"} 3")) << text;
  EXPECT_TRUE(has_line(text, name + "\"preempt_standstill\"} 0"));
  EXPECT_TRUE(has_line(text, name + "\"stretch\"} 4"));
}

TEST(MetricsText, PreemptionsByKindAndWhatTransfersCost) {
  EngineMetrics m;
  const HttpCounters http;
  m.num_preemptions = 5;
  m.num_preemptions_swapped = 3;
  m.num_preemptions_recomputed = 2;
  m.steps_staged = 7;
  m.partial.steps_some = 3;
  m.partial.steps_none = 9;
  m.partial.ratio_sum = 1.5;
  m.partial.tokens_staged = 100;
  m.partial.tokens_again = 50;
  m.deferred_rows = 4;
  m.seconds_stalled = 0.75;
  m.seconds_map = 0.125;
  const std::string text = page(m, http);
  EXPECT_TRUE(has_line(text, "kvasir:num_preemptions_total{model_name=\"m\"} 5"));
  EXPECT_TRUE(has_line(text, "kvasir:preemptions_by_kind_total{model_name=\"m\",kind=\"swap\"} 3"));
  EXPECT_TRUE(has_line(text, "kvasir:preemptions_by_kind_total{model_name=\"m\",kind=\"recompute\"} 2"));
  EXPECT_TRUE(has_line(text, "kvasir:engine_steps_staged_total{model_name=\"m\"} 7"));
  EXPECT_TRUE(has_line(text, "kvasir:partial_history_steps_total{model_name=\"m\",ratio=\"some\"} 3"));
  EXPECT_TRUE(has_line(text, "kvasir:partial_history_steps_total{model_name=\"m\",ratio=\"zero\"} 9"));
  EXPECT_TRUE(has_line(text, "kvasir:partial_history_ratio_sum_total{model_name=\"m\"} 1.5"));
  EXPECT_TRUE(has_line(text, "kvasir:partial_history_tokens_total{model_name=\"m\",by=\"staged\"} 100"));
  EXPECT_TRUE(has_line(text, "kvasir:partial_history_tokens_total{model_name=\"m\",by=\"again\"} 50"));
  EXPECT_TRUE(has_line(text, "kvasir:engine_deferred_rows_total{model_name=\"m\"} 4"));
  EXPECT_TRUE(has_line(text, "kvasir:engine_stalled_seconds_total{model_name=\"m\"} 0.75"));
  EXPECT_TRUE(has_line(text, "kvasir:cache_map_seconds_total{model_name=\"m\"} 0.125"));
}

TEST(MetricsText, HttpStatusesAndLabelsAreEscaped) {
  const EngineMetrics m;
  HttpCounters http;
  http.count(200);
  http.count(418);
  EXPECT_TRUE(has_line(page(m, http), "kvasir:http_requests_total{model_name=\"m\",status=\"200\"} 1"));
  EXPECT_TRUE(has_line(page(m, http), "kvasir:http_requests_total{model_name=\"m\",status=\"other\"} 1"));
  EXPECT_NE(page(m, http, "a\"\\\n").find("model_name=\"a\\\"\\\\\\n\""), std::string::npos);
}

}  // namespace
}  // namespace kvasir
