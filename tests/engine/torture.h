// Random requests through an engine over the shadow executor, with every output compared with what the
// tokens alone say.
#pragma once

#include <cstdint>
#include <string>

#include "engine/plan_log.h"

namespace kvasir::test {

struct TortureConfig {
  std::string policy = "sarathi";
  int depth = 1;
  uint32_t groups = 1;
  uint32_t block_tokens = 16;
  uint32_t total_blocks = 26;  // at least what one request of 400 tokens needs
  bool prefix_caching = true;
  bool check = true;  // every plan, and the whole map after every step
  uint32_t requests = 200;
  uint32_t at_once = 12;  // submitted and not finished
  uint32_t max_num_seqs = 8;
  uint32_t max_num_batched_tokens = 64;
  double cancels = 0.1;        // share of the requests that are cancelled at some time
  double failing_steps = 0.0;  // share of the steps that fail
  uint64_t seed = 1;
  PlanLog* log = nullptr;
};

struct TortureOutcome {
  uint64_t steps = 0;
  uint64_t preemptions = 0;
  uint64_t hit_tokens = 0;
  uint64_t wrong = 0;       // requests whose output is not what it must be
  std::string first_wrong;  // one of them, for people
  uint64_t complete = 0;    // requests that ended by themselves
  uint64_t aborted = 0;
  uint64_t failed = 0;
  uint64_t used_blocks_left = 0;
  std::string integrity;  // "" or what the map says at the end
  double seconds = 0;
};

TortureOutcome torture(const TortureConfig& config);

}  // namespace kvasir::test
