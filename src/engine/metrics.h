// The engine's counters. Written by the engine's thread (except `link` and `refused_late`), read by any.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/histogram.h"
#include "contract/link.h"
#include "contract/reason.h"
#include "engine/attainment.h"

namespace kvasir {

inline constexpr double kTtftBuckets[] = {.001, .005, .01, .02, .04, .06, .08, .1, .25, .5,  .75,
                                          1,    2.5,  5,   7.5, 10,  20,  40,  80, 160, 640, 2560};
inline constexpr double kTokenLatencyBuckets[] = {.01, .025, .05, .075, .1,  .15, .2, .3, .4, .5,
                                                  .75, 1,    2.5, 5,    7.5, 10,  20, 40, 80};
inline constexpr double kRequestLatencyBuckets[] = {.3, .5, .8, 1,  1.5, 2,   2.5, 5,   10,   15,  20,
                                                    30, 40, 50, 60, 120, 240, 480, 960, 1920, 7680};
inline constexpr double kIterationBuckets[] = {1,   8,    16,   32,   64,   128,  256,
                                               512, 1024, 2048, 4096, 8192, 16384};
inline constexpr double kRequestTokenBuckets[] = {1,   2,    5,    10,   20,    50,    100,   200,
                                                  500, 1000, 2000, 5000, 10000, 20000, 50000, 100000};

// LinkStats when Engine::observe_link() was last called.
struct LinkMetrics {
  std::atomic<bool> present{false};  // there is a link; if not, all of this is 0
  std::atomic<bool> emulated{false};
  std::array<std::array<std::atomic<uint64_t>, kTiers>, kTiers> bytes{};  // [from][to]
  std::atomic<uint64_t> transfers{0}, failed{0}, cancelled{0}, queued_bytes{0};
  std::atomic<double> busy_s{0}, cpu_s{0}, bytes_per_s{0}, latency_s{0};
  struct Disk {
    std::atomic<bool> present{false};  // there is a disk tier; if not, all of this is 0
    std::atomic<uint64_t> reads{0}, writes{0}, read_bytes{0}, written_bytes{0}, read_errors{0},
        short_reads{0}, checksum_mismatches{0}, write_errors{0};
    std::atomic<double> busy_s{0}, bytes_per_s{0};
  } disk;

  void set(const LinkStats& stats) {
    present = true;
    emulated = stats.emulated;
    for (size_t from = 0; from < kTiers; ++from) {
      for (size_t to = 0; to < kTiers; ++to) bytes[from][to] = stats.bytes[from][to];
    }
    transfers = stats.transfers;
    failed = stats.failed;
    cancelled = stats.cancelled;
    queued_bytes = stats.queued_bytes;
    busy_s = stats.busy_s;
    cpu_s = stats.cpu_s;
    bytes_per_s = stats.bytes_per_s;
    latency_s = stats.latency_s;
    if (stats.has_disk) set_disk(stats);
  }

 private:
  void set_disk(const LinkStats& stats) {
    disk.present = true;
    disk.reads = stats.disk.reads;
    disk.writes = stats.disk.writes;
    disk.read_bytes = stats.disk.read_bytes;
    disk.written_bytes = stats.disk.written_bytes;
    disk.read_errors = stats.disk.read_errors;
    disk.short_reads = stats.disk.short_reads;
    disk.checksum_mismatches = stats.disk.checksum_mismatches;
    disk.write_errors = stats.disk.write_errors;
    disk.busy_s = stats.disk_busy_s;
    disk.bytes_per_s = stats.disk_bytes_per_s;
  }
};

// Times are in seconds, lengths in tokens. Names follow the metrics that they feed.
struct EngineMetrics {
  std::atomic<uint64_t> num_requests_running{0};
  std::atomic<uint64_t> num_requests_waiting{0};
  std::atomic<uint64_t> kv_blocks_total{0};
  std::atomic<uint64_t> kv_blocks_used{0};    // referenced by a sequence
  std::atomic<uint64_t> kv_blocks_cached{0};  // full, referenced by none, kept for reuse
  std::atomic<uint64_t> kv_block_bytes{0};
  struct TierBytes {
    std::atomic<uint64_t> bytes_total{0};
    std::atomic<uint64_t> bytes_used{0};     // held by sequences, or in use by steps or transfers in flight
    std::atomic<uint64_t> blocks_cached{0};  // referenced by no sequence, with a copy there that can be found
  };
  // The cost of cells that are held as X, and of those that were dropped.
  std::atomic<uint64_t> tokens_projected{0};       // times layers: K and V made from X
  std::atomic<uint64_t> tokens_computed_again{0};  // rows that recompute dropped cells
  std::array<TierBytes, kTiers> tiers;             // device, host, disk
  std::atomic<uint64_t> stage_ring_bytes{0};       // of the device's memory, beside its tier
  LinkMetrics link;
  std::atomic<uint64_t> transfers_in_flight{0};
  // Cells of KV that are lent between instances.
  struct Peers {
    std::atomic<bool> present{false};  // the instance has peers

    std::atomic<uint64_t> borrowed_cells{0}, recalled_cells{0}, lent_cells{0};  // now
    std::atomic<uint64_t> granted{0}, refused{0}, lost{0};                      // by peers, so far
    // Prefixes, in tokens: that peers were asked for, and that were copied from them; those asked for of
    // which an answer or the bytes came too late, or the copy failed; that were shown to peers; and that
    // peers keep for this instance, to be attended there.
    std::atomic<uint64_t> prefix_queries{0}, prefix_hits{0}, prefix_late{0}, prefix_failed{0},
        prefix_shown{0}, prefix_attended{0};
    std::atomic<uint64_t> prefix_bytes{0};   // that were copied
    std::atomic<double> prefix_waited_s{0};  // that requests were held back for them
    // Tokens of prompts: that peers were asked to compute, that they have computed, and that were computed
    // here for peers, whether or not these took them.
    std::atomic<uint64_t> prompt_asked{0}, prompt_computed{0}, prompt_for_peers{0};
    std::atomic<double> prompt_waited_s{0};  // that requests were held back for them
  } peers;

  std::atomic<uint64_t> prompt_tokens{0};
  std::atomic<uint64_t> prompt_tokens_cached{0};
  std::atomic<uint64_t> generation_tokens{0};
  std::atomic<uint64_t> num_preemptions{0};
  std::atomic<uint64_t> num_preemptions_swapped{0};        // of those, copied to the host
  std::atomic<uint64_t> num_preemptions_recomputed{0};     // of those, that gave up their cells
  std::array<std::atomic<uint64_t>, kCauses> decisions{};  // reasons that plans gave, by Cause
  std::atomic<uint64_t> standstills{0};                    // requests that failed: see StandstillWatch
  std::atomic<uint64_t> fresh_starts{0};                   // times that the engine started anew for memory
  std::atomic<uint64_t> deferred_rows{0};  // times that a request left a step because of a late transfer
  std::atomic<uint64_t> steps_staged{0};   // steps that read something through the stage ring
  // In steps that decode: tokens of the decoding sequences' histories that are not kept on the device.
  struct PartialHistories {
    std::atomic<uint64_t> steps_some{0}, steps_none{0};       // steps with and without such tokens
    std::atomic<double> ratio_sum{0};                         // over the former: their share of all tokens
    std::atomic<uint64_t> tokens_staged{0}, tokens_again{0};  // summed over steps
  } partial;
  std::atomic<uint64_t> prefix_cache_queries{0};  // tokens
  std::atomic<uint64_t> prefix_cache_hits{0};     // tokens
  // The hits by the slowest tier on which a layer group of the block lay.
  std::array<std::atomic<uint64_t>, kTiers> prefix_cache_hits_by_tier{};
  // By SloKind: ended requests that had such a bound, and those that met it. As goodput: requests that had
  // any bound, and those that met all their bounds. A failed request met none. A cancelled one counts only
  // for the bounds that it had already missed. Refused requests are not counted.
  struct Attainment {
    std::atomic<uint64_t> requests{0}, attained{0};
  };
  std::array<Attainment, kSloKinds.size()> slo;
  Attainment goodput;
  std::atomic<uint64_t> refused_late{0};  // requests: see EngineOptions::refuse_late
  std::atomic<uint64_t> steps{0};
  std::array<std::atomic<uint64_t>, 4> finished{};  // by FinishReason
  // Seconds that the engine's thread spent in each phase of its loop.
  std::atomic<double> seconds_drain{0}, seconds_plan{0}, seconds_commit{0}, seconds_execute{0},
      seconds_publish{0};
  std::atomic<double> seconds_map{0};      // of the engine's thread, for frames and words of the cache map
  std::atomic<double> seconds_stalled{0};  // of execution, waiting for transfers and peers

  // Predicted outputs that ended by themselves. Tokens; `over`: predicted beyond the true length.
  struct Predictions {
    std::atomic<uint64_t> finished{0}, within_50{0};
    std::atomic<double> error_tokens{0}, over_tokens{0};  // sums
  } predictions;
  // CostEstimator::error(), observed() and dropped().
  std::atomic<double> cost_error{0};
  std::atomic<uint64_t> cost_steps{0}, cost_steps_dropped{0};

  Histogram time_to_first_token{kTtftBuckets};
  Histogram inter_token_latency{kTokenLatencyBuckets};
  Histogram time_per_output_token{kTokenLatencyBuckets};  // a request's mean, after its first token
  Histogram e2e_request_latency{kRequestLatencyBuckets};
  Histogram request_queue_time{kRequestLatencyBuckets};
  Histogram request_inference_time{kRequestLatencyBuckets};
  Histogram request_prefill_time{kRequestLatencyBuckets};
  Histogram request_decode_time{kRequestLatencyBuckets};
  Histogram request_prompt_tokens{kRequestTokenBuckets};
  Histogram request_generation_tokens{kRequestTokenBuckets};
  Histogram iteration_tokens{kIterationBuckets};
};

}  // namespace kvasir
