// Writes the page.
#include "server/metrics_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "engine/request.h"

namespace kvasir {
namespace {

std::string escape_label(std::string_view value) {
  std::string out;
  for (const char c : value) {
    if (c == '\\' || c == '"') out += '\\';
    if (c == '\n') {
      out += "\\n";
    } else {
      out += c;
    }
  }
  return out;
}

// The metrics that vLLM has under these names (its 0.11 and later), and where ours is the same.
constexpr std::string_view kNamesOfVllm[] = {
    "cache_config_info",
    "e2e_request_latency_seconds",
    "external_prefix_cache_hits_total",
    "external_prefix_cache_queries_total",
    "generation_tokens_total",
    "gpu_cache_usage_perc",
    "gpu_prefix_cache_hits_total",
    "gpu_prefix_cache_queries_total",
    "inter_token_latency_seconds",
    "iteration_tokens_total",
    "kv_cache_usage_perc",
    "num_preemptions_total",
    "num_requests_running",
    "num_requests_waiting",
    "prefix_cache_hits_total",
    "prefix_cache_queries_total",
    "prompt_tokens_cached_total",
    "prompt_tokens_total",
    "request_decode_time_seconds",
    "request_generation_tokens",
    "request_inference_time_seconds",
    "request_max_num_generation_tokens",
    "request_params_max_tokens",
    "request_params_n",
    "request_prefill_time_seconds",
    "request_prompt_tokens",
    "request_queue_time_seconds",
    "request_success_total",
    "request_time_per_output_token_seconds",
    "time_per_output_token_seconds",
    "time_to_first_token_seconds",
};
static_assert(std::is_sorted(std::begin(kNamesOfVllm), std::end(kNamesOfVllm)));

class Page {
 public:
  Page(const std::string& model_name, MetricsPrefix prefix)
      : model_(escape_label(model_name)), prefix_(prefix) {}

  bool vllm() const { return prefix_ == MetricsPrefix::kVllm; }

  // Samples that follow are of this metric.
  void head(const char* name, const char* type, const char* help) {
    of_vllm_ = vllm() &&
               std::binary_search(std::begin(kNamesOfVllm), std::end(kNamesOfVllm), std::string_view(name));
    const char* prefix = of_vllm_ ? "vllm" : "kvasir";
    fmt::format_to(std::back_inserter(text_), "# HELP {0}:{1} {2}\n# TYPE {0}:{1} {3}\n", prefix, name, help,
                   type);
  }
  // `labels` is empty or begins with a comma.
  template <typename T>
  void sample(const char* name, T value, const std::string& labels = {}) {
    fmt::format_to(std::back_inserter(text_), "{}:{}{{model_name=\"{}\"{}{}}} {}\n",
                   of_vllm_ ? "vllm" : "kvasir", name, model_, of_vllm_ ? ",engine=\"0\"" : "", labels,
                   value);
  }
  template <typename T>
  void gauge(const char* name, T value, const char* help) {
    head(name, "gauge", help);
    sample(name, value);
  }
  template <typename T>
  void counter(const char* name, T value, const char* help) {
    head(name, "counter", help);
    sample(name, value);
  }
  void histogram(const char* name, const Histogram& h, const char* help) {
    head(name, "histogram", help);
    uint64_t below = 0;
    const std::string bucket = std::string(name) + "_bucket";
    for (size_t i = 0; i < h.bounds().size(); ++i) {
      below += h.count(i);
      sample(bucket.c_str(), below, fmt::format(",le=\"{}\"", h.bounds()[i]));
    }
    below += h.count(h.bounds().size());
    sample(bucket.c_str(), below, ",le=\"+Inf\"");
    sample((std::string(name) + "_count").c_str(), below);
    sample((std::string(name) + "_sum").c_str(), h.sum());
  }
  std::string take() { return std::move(text_); }

 private:
  const std::string model_;
  const MetricsPrefix prefix_;
  bool of_vllm_ = false;
  std::string text_;
};

void add_gauges(Page& page, const EngineMetrics& m) {
  page.gauge("num_requests_running", m.num_requests_running.load(), "Requests that run now.");
  page.gauge("num_requests_waiting", m.num_requests_waiting.load(), "Requests that wait to run.");
  const uint64_t total = m.kv_blocks_total, used = m.kv_blocks_used, cached = m.kv_blocks_cached;
  page.gauge("kv_cache_usage_perc", total == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(total),
             "KV cache in use. 1 means 100 per cent.");
  if (page.vllm()) {
    page.gauge("gpu_cache_usage_perc",
               total == 0 ? 0.0 : static_cast<double>(used) / static_cast<double>(total),
               "The same, as earlier versions name it.");
  }
  page.head("kv_blocks", "gauge", "KV blocks by tier and state.");
  const uint64_t taken = std::min(total, used + cached);
  page.sample("kv_blocks", used, ",tier=\"device\",state=\"used\"");
  page.sample("kv_blocks", cached, ",tier=\"device\",state=\"cached\"");
  page.sample("kv_blocks", total - taken, ",tier=\"device\",state=\"free\"");
  const uint64_t bytes = m.kv_block_bytes;
  page.head("kv_bytes", "gauge", "Bytes of those blocks.");
  page.sample("kv_bytes", used * bytes, ",tier=\"device\",state=\"used\"");
  page.sample("kv_bytes", cached * bytes, ",tier=\"device\",state=\"cached\"");
  page.sample("kv_bytes", (total - taken) * bytes, ",tier=\"device\",state=\"free\"");
}

const char* tier_label(size_t tier) {
  return name(static_cast<Tier>(tier));
}

void add_tiers(Page& page, const EngineMetrics& m) {
  page.head("kv_tier_bytes", "gauge", "Room of each tier for keys and values.");
  for (size_t t = 0; t < m.tiers.size(); ++t) {
    page.sample("kv_tier_bytes", m.tiers[t].bytes_total.load(),
                fmt::format(",tier=\"{}\",form=\"kv\"", tier_label(t)));
  }
  page.head("kv_tier_used_bytes", "gauge", "Bytes of those that requests hold, or that are on the move.");
  for (size_t t = 0; t < m.tiers.size(); ++t) {
    page.sample("kv_tier_used_bytes", m.tiers[t].bytes_used.load(),
                fmt::format(",tier=\"{}\",form=\"kv\"", tier_label(t)));
  }
  page.head("kv_tier_cached_blocks", "gauge",
            "KV blocks that no request holds, and that can be found again, with a copy on the tier.");
  for (size_t t = 0; t < m.tiers.size(); ++t) {
    page.sample("kv_tier_cached_blocks", m.tiers[t].blocks_cached.load(),
                fmt::format(",tier=\"{}\"", tier_label(t)));
  }
  page.counter("kv_tokens_projected_total", m.tokens_projected.load(),
               "Tokens, times layers, of which K and V were made from the operand of their projection.");
  page.counter("kv_tokens_computed_again_total", m.tokens_computed_again.load(),
               "Tokens of which K and V had been dropped and were recomputed.");
  page.gauge("kv_stage_ring_bytes", m.stage_ring_bytes.load(),
             "Memory of the device through which layers pass that have no place in its tier.");
}

// Adds nothing outside a cluster.
void add_peers(Page& page, const EngineMetrics& m) {
  if (!m.peers.present) return;
  page.head("peer_cells", "gauge",
            "Blocks of one layer group: borrowed of peers, of those to be returned, and lent to peers.");
  page.sample("peer_cells", m.peers.borrowed_cells.load(), ",state=\"borrowed\"");
  page.sample("peer_cells", m.peers.recalled_cells.load(), ",state=\"recalled\"");
  page.sample("peer_cells", m.peers.lent_cells.load(), ",state=\"lent\"");
  page.head("peer_cells_total", "counter",
            "Of those asked for, what peers granted and refused; what was lost.");
  page.sample("peer_cells_total", m.peers.granted.load(), ",event=\"granted\"");
  page.sample("peer_cells_total", m.peers.refused.load(), ",event=\"refused\"");
  page.sample("peer_cells_total", m.peers.lost.load(), ",event=\"lost\"");
  page.counter("external_prefix_cache_queries_total", m.peers.prefix_queries.load(),
               "Tokens of prompts that were not cached here and that peers were asked for.");
  page.counter("external_prefix_cache_hits_total", m.peers.prefix_hits.load(),
               "Of those, tokens whose KV was copied from a peer.");
  page.head("peer_prefix_tokens_total", "counter",
            "Tokens of prefixes: asked for of peers in vain, since the answer or the KV was late or the copy "
            "failed; shown to peers; and kept by peers, to be attended there.");
  page.sample("peer_prefix_tokens_total", m.peers.prefix_late.load(), ",event=\"late\"");
  page.sample("peer_prefix_tokens_total", m.peers.prefix_failed.load(), ",event=\"failed\"");
  page.sample("peer_prefix_tokens_total", m.peers.prefix_shown.load(), ",event=\"shown\"");
  page.sample("peer_prefix_tokens_total", m.peers.prefix_attended.load(), ",event=\"attended\"");
  page.counter("peer_prefix_bytes_total", m.peers.prefix_bytes.load(), "Bytes of KV copied from peers.");
  page.counter("peer_prefix_wait_seconds_total", m.peers.prefix_waited_s.load(),
               "Time that requests were held back for prefixes of peers.");
  page.head(
      "peer_prompt_tokens_total", "counter",
      "Tokens of prompts whose rows peers were asked to compute, of those that they have computed, and that "
      "were computed here for peers.");
  page.sample("peer_prompt_tokens_total", m.peers.prompt_asked.load(), ",event=\"asked\"");
  page.sample("peer_prompt_tokens_total", m.peers.prompt_computed.load(), ",event=\"computed\"");
  page.sample("peer_prompt_tokens_total", m.peers.prompt_for_peers.load(), ",event=\"for_peers\"");
  page.counter("peer_prompt_wait_seconds_total", m.peers.prompt_waited_s.load(),
               "Time that requests were held back for rows that peers computed.");
}

void add_slos(Page& page, const EngineMetrics& m) {
  page.head(
      "slo_requests_total", "counter",
      "Requests that ended and had a bound of that kind. p99_tbt and every_tbt are two readings of one.");
  for (SloKind kind : kSloKinds) {
    page.sample("slo_requests_total", m.slo[static_cast<size_t>(kind)].requests.load(),
                fmt::format(",slo=\"{}\"", name(kind)));
  }
  page.head("slo_attained_total", "counter", "Those of them that met it.");
  for (SloKind kind : kSloKinds) {
    page.sample("slo_attained_total", m.slo[static_cast<size_t>(kind)].attained.load(),
                fmt::format(",slo=\"{}\"", name(kind)));
  }
  page.counter("requests_refused_late_total", m.refused_late.load(),
               "Requests refused because the queue was too long for their TTFT bound (--refuse-late).");
  page.counter("requests_with_slo_total", m.goodput.requests.load(),
               "Requests that ended and had any bound.");
  page.counter("good_requests_total", m.goodput.attained.load(),
               "Those of them that met all they had; its rate is the goodput.");
}

// Adds nothing if there is no link.
void add_link(Page& page, const EngineMetrics& m) {
  const LinkMetrics& link = m.link;
  if (!link.present) return;
  const std::string emulated = fmt::format(",emulated=\"{}\"", link.emulated.load());
  const auto sample = [&](const char* name, const char* type, auto value, const char* help) {
    page.head(name, type, help);
    page.sample(name, value, emulated);
  };
  page.head("link_bytes_total", "counter", "Bytes moved between tiers. emulated: the link's speed is set.");
  for (size_t from = 0; from < m.tiers.size(); ++from) {
    for (size_t to = 0; to < m.tiers.size(); ++to) {
      if (from == to) continue;
      // The speed of the disk is never emulated.
      const bool disk = std::max(from, to) == index_of(Tier::kDisk);
      page.sample("link_bytes_total", link.bytes[from][to].load(),
                  fmt::format(",from=\"{}\",to=\"{}\"{}", tier_label(from), tier_label(to),
                              disk ? ",emulated=\"false\"" : emulated));
    }
  }
  sample("link_busy_seconds_total", "counter", link.busy_s.load(), "Seconds in which the link moved bytes.");
  sample("link_cpu_seconds_total", "counter", link.cpu_s.load(), "CPU time of the link's threads.");
  sample("link_transfers_total", "counter", link.transfers.load(), "Transfers that have ended.");
  sample("link_transfers_failed_total", "counter", link.failed.load(),
         "Of those, transfers that a disk or a peer failed, or that needed one of these.");
  sample(
      "link_transfers_cancelled_total", "counter", link.cancelled.load(),
      "Of those, transfers that were given up before they began, or that needed one of these; not among the "
      "failed ones.");
  sample("link_transfers_in_flight", "gauge", m.transfers_in_flight.load(),
         "Transfers that are planned or under way.");
  sample("link_queued_bytes", "gauge", link.queued_bytes.load(), "Bytes that wait to be moved.");
  sample("link_bytes_per_second", "gauge", link.bytes_per_s.load(),
         "Bytes moved per second while busy, as measured of late; 0: nothing was moved yet.");
  sample("link_latency_seconds", "gauge", link.latency_s.load(),
         "Time that a transfer takes beside its bytes, as measured of late.");
}

// Adds nothing if there is no disk tier.
void add_disk(Page& page, const EngineMetrics& m) {
  const LinkMetrics::Disk& disk = m.link.disk;
  if (!disk.present) return;
  page.counter("disk_reads_total", disk.reads.load(), "Pieces read from the disk tier.");
  page.counter("disk_writes_total", disk.writes.load(), "Pieces written to the disk tier.");
  page.counter("disk_read_bytes_total", disk.read_bytes.load(), "Bytes of pieces read.");
  page.counter("disk_written_bytes_total", disk.written_bytes.load(), "Bytes of pieces written.");
  page.head("disk_read_failures_total", "counter",
            "Pieces that were lost and recomputed: the disk refused (error), the file ended early (short), "
            "or the bytes were not those that were written (checksum).");
  page.sample("disk_read_failures_total", disk.read_errors.load(), ",reason=\"error\"");
  page.sample("disk_read_failures_total", disk.short_reads.load(), ",reason=\"short\"");
  page.sample("disk_read_failures_total", disk.checksum_mismatches.load(), ",reason=\"checksum\"");
  page.counter("disk_write_failures_total", disk.write_errors.load(), "Pieces that could not be written.");
  page.counter("disk_busy_seconds_total", disk.busy_s.load(),
               "Seconds in which some piece was read or written.");
  page.gauge("disk_bytes_per_second", disk.bytes_per_s.load(),
             "Bytes read and written per second while busy, as measured of late; 0: nothing was yet.");
}

void add_preemptions(Page& page, const EngineMetrics& m) {
  page.counter("num_preemptions_total", m.num_preemptions.load(), "Times a running request was preempted.");
  page.head("preemptions_by_kind_total", "counter",
            "Of those: kept on the host (swap), or to be recomputed (recompute).");
  page.sample("preemptions_by_kind_total", m.num_preemptions_swapped.load(), ",kind=\"swap\"");
  page.sample("preemptions_by_kind_total", m.num_preemptions_recomputed.load(), ",kind=\"recompute\"");
}

void add_decisions(Page& page, const EngineMetrics& m) {
  page.head("scheduling_decisions_total", "counter",
            "Decisions of the scheduling policy, by the reason it gave. What waits counts in each step.");
  for (size_t i = 0; i < kCauses; ++i) {
    page.sample("scheduling_decisions_total", m.decisions[i].load(),
                fmt::format(",reason=\"{}\"", name(static_cast<Cause>(i))));
  }
}

void add_counters(Page& page, const EngineMetrics& m) {
  page.counter("prompt_tokens_total", m.prompt_tokens.load(), "Prompt tokens processed.");
  page.counter("prompt_tokens_cached_total", m.prompt_tokens_cached.load(),
               "Prompt tokens whose keys and values were there already.");
  page.counter("generation_tokens_total", m.generation_tokens.load(), "Tokens generated.");
  page.head("request_success_total", "counter", "Requests that ended, by reason.");
  for (const FinishReason r :
       {FinishReason::kStop, FinishReason::kLength, FinishReason::kAbort, FinishReason::kError}) {
    page.sample("request_success_total", m.finished[static_cast<size_t>(r)].load(),
                fmt::format(",finished_reason=\"{}\"", name(r)));
  }
  add_preemptions(page, m);
  add_decisions(page, m);
  page.counter("prefix_cache_queries_total", m.prefix_cache_queries.load(),
               "Tokens looked up in the prefix cache.");
  page.counter("prefix_cache_hits_total", m.prefix_cache_hits.load(), "Tokens found in the prefix cache.");
  if (page.vllm()) {
    page.counter("gpu_prefix_cache_queries_total", m.prefix_cache_queries.load(),
                 "The same, as earlier versions name it.");
    page.counter("gpu_prefix_cache_hits_total", m.prefix_cache_hits.load(),
                 "The same, as earlier versions name it.");
  }
  page.head("prefix_cache_hits_by_tier_total", "counter",
            "Of those, by the slowest tier on which some layer of their block lay.");
  for (size_t t = 0; t < m.prefix_cache_hits_by_tier.size(); ++t) {
    page.sample("prefix_cache_hits_by_tier_total", m.prefix_cache_hits_by_tier[t].load(),
                fmt::format(",tier=\"{}\"", tier_label(t)));
  }
  page.counter("engine_steps_total", m.steps.load(), "Steps of the engine.");
  page.counter("engine_steps_staged_total", m.steps_staged.load(),
               "Of those, steps that read keys and values through the stage ring.");
  page.head(
      "partial_history_steps_total", "counter",
      "Steps that decode, with some of a decoding request's history not kept on the device, and with none.");
  page.sample("partial_history_steps_total", m.partial.steps_some.load(), ",ratio=\"some\"");
  page.sample("partial_history_steps_total", m.partial.steps_none.load(), ",ratio=\"zero\"");
  page.counter("partial_history_ratio_sum_total", m.partial.ratio_sum.load(),
               "Of the former: the share of all their tokens that is not kept, summed over steps.");
  page.head("partial_history_tokens_total", "counter",
            "Tokens of decoding requests that are not kept, summed over steps: staged, or recomputed.");
  page.sample("partial_history_tokens_total", m.partial.tokens_staged.load(), ",by=\"staged\"");
  page.sample("partial_history_tokens_total", m.partial.tokens_again.load(), ",by=\"again\"");
  page.counter("engine_deferred_rows_total", m.deferred_rows.load(),
               "Times a request's rows left a step because their transfers did not end in time.");
  page.counter("engine_standstills_total", m.standstills.load(),
               "Times the policy found nothing to do though there was work, and a request ended for it.");
  page.counter("engine_fresh_starts_total", m.fresh_starts.load(),
               "Times memory ran out within a step: all requests failed, and the cache began empty.");
  page.counter("engine_stalled_seconds_total", m.seconds_stalled.load(),
               "Seconds of execution in which steps waited for transfers.");
  page.head("engine_step_seconds_total", "counter", "Seconds of the engine's thread by phase of the step.");
  page.sample("engine_step_seconds_total", m.seconds_drain.load(), ",phase=\"drain\"");
  page.sample("engine_step_seconds_total", m.seconds_plan.load(), ",phase=\"plan\"");
  page.sample("engine_step_seconds_total", m.seconds_commit.load(), ",phase=\"commit\"");
  page.sample("engine_step_seconds_total", m.seconds_execute.load(), ",phase=\"execute\"");
  page.sample("engine_step_seconds_total", m.seconds_publish.load(), ",phase=\"publish\"");
  page.counter("cache_map_seconds_total", m.seconds_map.load(),
               "Seconds of the engine's thread for frames and words of the cache map, which pages and plan "
               "logs show.");
}

void add_beliefs(Page& page, const EngineMetrics& m) {
  const EngineMetrics::Predictions& p = m.predictions;
  const uint64_t finished = p.finished;
  const double error = p.error_tokens, over = p.over_tokens;
  const auto mean = [&](double sum) { return finished == 0 ? 0.0 : sum / static_cast<double>(finished); };
  page.counter("length_predictions_total", finished,
               "Outputs that ended by themselves and whose length had been predicted.");
  page.counter("length_prediction_within_50_total", p.within_50.load(),
               "Of those, predicted to within 50 tokens.");
  page.counter("length_prediction_error_tokens_total", error, "Sum of |predicted - true| of their lengths.");
  page.gauge("length_prediction_error_tokens", mean(error), "Mean of |predicted - true|, in tokens.");
  page.gauge("length_prediction_bias_tokens", mean(over), "Mean of predicted - true, in tokens.");
  page.counter("cost_model_steps_total", m.cost_steps.load(), "Steps from which the cost model has learnt.");
  page.counter("cost_model_steps_dropped_total", m.cost_steps_dropped.load(),
               "Steps that it could not learn from in time.");
  page.gauge("cost_model_error_ratio", m.cost_error.load(),
             "Mean of |believed - real| / real of the time of steps, of late.");
}

void add_histograms(Page& page, const EngineMetrics& m) {
  page.histogram("time_to_first_token_seconds", m.time_to_first_token, "Time to first token in seconds.");
  page.histogram("inter_token_latency_seconds", m.inter_token_latency, "Time between tokens in seconds.");
  if (page.vllm()) {
    page.histogram("time_per_output_token_seconds", m.inter_token_latency,
                   "The same, as earlier versions name it.");
  }
  page.histogram("request_time_per_output_token_seconds", m.time_per_output_token,
                 "Mean time per token after the first, per request, in seconds.");
  page.histogram("e2e_request_latency_seconds", m.e2e_request_latency, "Whole requests in seconds.");
  page.histogram("request_queue_time_seconds", m.request_queue_time, "Time in the queue in seconds.");
  page.histogram("request_inference_time_seconds", m.request_inference_time,
                 "Time from the first step to the last token in seconds.");
  page.histogram("request_prefill_time_seconds", m.request_prefill_time, "Time in prefill in seconds.");
  page.histogram("request_decode_time_seconds", m.request_decode_time, "Time in decode in seconds.");
  page.histogram("request_prompt_tokens", m.request_prompt_tokens, "Prompt tokens per request.");
  page.histogram("request_generation_tokens", m.request_generation_tokens, "Tokens generated per request.");
  page.histogram("iteration_tokens_total", m.iteration_tokens, "Tokens per step of the engine.");
}

void add_http(Page& page, const HttpCounters& http) {
  page.histogram("request_params_n", http.params_n, "Choices that requests ask for.");
  page.histogram("request_params_max_tokens", http.params_max_tokens, "The max_tokens of requests.");
  page.histogram("request_max_num_generation_tokens", http.max_generation_tokens,
                 "Tokens of the longest choice of each prompt.");
  page.head("http_requests_total", "counter", "HTTP requests by status; 499: the client left early.");
  for (size_t i = 0; i < kCountedStatuses.size(); ++i) {
    const std::string status = kCountedStatuses[i] == 0 ? "other" : std::to_string(kCountedStatuses[i]);
    page.sample("http_requests_total", http.by_status[i].load(), fmt::format(",status=\"{}\"", status));
  }
  page.gauge("http_connections", http.connections.load(), "Connections that are open.");
  page.counter("http_connections_refused_total", http.connections_refused.load(),
               "Connections refused because too many were open.");
  page.counter("http_connections_evicted_total", http.connections_evicted.load(),
               "Connections closed to make way for others, as they waited for their client.");
  page.counter("http_slow_readers_total", http.slow_readers.load(),
               "Requests cancelled because the client did not read.");
  page.gauge("http_body_bytes", http.body_bytes.load(),
             "Bytes of large requests that are being received or prepared.");
  page.counter("requests_refused_total", http.requests_refused.load(),
               "Requests refused while the queue was full, the model loading, or the server draining.");
}

// Nothing without keys. There are at most kMaxKeys of them.
void add_keys(Page& page, const KeyRing& keys) {
  const auto add = [&](const char* metric, const char* type, const char* help, auto value_of) {
    bool begun = false;
    keys.for_each([&](const ApiKey& key, const KeyUsage& usage) {
      if (!std::exchange(begun, true)) page.head(metric, type, help);
      page.sample(metric, value_of(usage), fmt::format(",key=\"{}\"", escape_label(key.name)));
    });
  };
  add("key_requests_total", "counter", "Requests by API key, without those that a limit refused.",
      [](const KeyUsage& u) { return u.requests_total.load(); });
  add("key_requests_running", "gauge", "Prompts and choices in progress by API key.",
      [](const KeyUsage& u) { return u.running.load(); });
  add("key_prompt_tokens_total", "counter", "Prompt tokens by API key.",
      [](const KeyUsage& u) { return u.prompt_tokens_total.load(); });
  add("key_generation_tokens_total", "counter", "Generated tokens by API key.",
      [](const KeyUsage& u) { return u.output_tokens_total.load(); });
  bool begun = false;
  keys.for_each([&](const ApiKey& key, const KeyUsage& usage) {
    if (!std::exchange(begun, true)) {
      page.head("key_refusals_total", "counter", "Requests refused by a limit of their API key.");
    }
    for (size_t i = 0; i < kKeyLimits; ++i) {
      page.sample(
          "key_refusals_total", usage.refused[i].load(),
          fmt::format(",key=\"{}\",limit=\"{}\"", escape_label(key.name), name(static_cast<KeyLimit>(i))));
    }
  });
}

}  // namespace

std::string metrics_text(const EngineMetrics* engine, const HttpCounters& http, const std::string& model_name,
                         const std::vector<std::pair<std::string, std::string>>& cache_config,
                         const std::vector<OutsideMetric>& outside, const KeyRing* keys,
                         MetricsPrefix prefix) {
  Page page(model_name, prefix);
  if (engine != nullptr) {
    add_gauges(page, *engine);
    add_tiers(page, *engine);
    add_slos(page, *engine);
    add_link(page, *engine);
    add_peers(page, *engine);
    add_disk(page, *engine);
    page.head("cache_config_info", "gauge", "How the cache is set up.");
    std::string labels;
    for (const auto& [key, value] : cache_config) {
      labels += fmt::format(",{}=\"{}\"", key, escape_label(value));
    }
    page.sample("cache_config_info", 1, labels);
    add_counters(page, *engine);
    add_beliefs(page, *engine);
    add_histograms(page, *engine);
  }
  for (const OutsideMetric& m : outside) {
    page.head(m.name, m.type, m.help);
    page.sample(m.name, m.value);
  }
  add_http(page, http);
  if (keys != nullptr) add_keys(page, *keys);
  return page.take();
}

}  // namespace kvasir
