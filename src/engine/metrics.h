// What the engine counts. Written by the engine's thread, read by whoever shows it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>

#include "base/histogram.h"

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

// Times in seconds, lengths in tokens. Names follow the metrics that they feed.
struct EngineMetrics {
  std::atomic<uint64_t> num_requests_running{0};
  std::atomic<uint64_t> num_requests_waiting{0};
  std::atomic<uint64_t> kv_blocks_total{0};
  std::atomic<uint64_t> kv_blocks_used{0};    // referenced by a sequence
  std::atomic<uint64_t> kv_blocks_cached{0};  // full, referenced by none, kept for reuse
  std::atomic<uint64_t> kv_block_bytes{0};

  std::atomic<uint64_t> prompt_tokens{0};
  std::atomic<uint64_t> prompt_tokens_cached{0};
  std::atomic<uint64_t> generation_tokens{0};
  std::atomic<uint64_t> num_preemptions{0};
  std::atomic<uint64_t> prefix_cache_queries{0};  // tokens
  std::atomic<uint64_t> prefix_cache_hits{0};     // tokens
  std::atomic<uint64_t> steps{0};
  std::array<std::atomic<uint64_t>, 4> finished{};  // by FinishReason
  // Seconds that the engine's thread spent in each phase of its loop.
  std::atomic<double> seconds_drain{0}, seconds_plan{0}, seconds_commit{0}, seconds_execute{0},
      seconds_publish{0};

  Histogram time_to_first_token{kTtftBuckets};
  Histogram inter_token_latency{kTokenLatencyBuckets};
  Histogram time_per_output_token{kTokenLatencyBuckets};  // per request: its mean after the first token
  Histogram e2e_request_latency{kRequestLatencyBuckets};
  Histogram request_queue_time{kRequestLatencyBuckets};
  Histogram request_prefill_time{kRequestLatencyBuckets};
  Histogram request_decode_time{kRequestLatencyBuckets};
  Histogram request_prompt_tokens{kRequestTokenBuckets};
  Histogram request_generation_tokens{kRequestTokenBuckets};
  Histogram iteration_tokens{kIterationBuckets};
};

}  // namespace kvasir
