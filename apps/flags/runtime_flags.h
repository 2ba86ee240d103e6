// Flags that several commands share, and environment variables in their place.
#pragma once

#include <string>

#include "runtime/runtime.h"

namespace CLI {
class App;
}

namespace kvasir {

// MODEL, or -m / --model.
void add_model_flag(CLI::App& app, std::string& path);

// A size; a bare number is GiB, as with other engines.
void add_gib(CLI::App& app, const char* flag, uint64_t& bytes, const char* help);

// --pin-threads auto|on|off
void add_pinning_flag(CLI::App& app, Pinning& pinning);
// Parts of add_runtime_flags() that the simulator takes, too: tiers and blocks; batches and queues; the
// policy.
void add_cache_flags(CLI::App& app, RuntimeOptions& options);
void add_batch_flags(CLI::App& app, RuntimeOptions& options);
void add_policy_flag(CLI::App& app, std::string& policy);
void add_length_predictor_flag(CLI::App& app, std::string& predictor);
// --device, --gpu-memory-utilization, --enforce-eager
void add_device_flags(CLI::App& app, RuntimeOptions& options);
// How the model runs: threads, cache, batches, policy. `options` outlives the parsing.
void add_runtime_flags(CLI::App& app, RuntimeOptions& options);

// Sources of the policies' beliefs about costs and lengths. Sets options.used.
void add_belief_flags(CLI::App& app, BeliefOptions& options);

// Lets every flag of `app` be given by an environment variable, such as --max-num-seqs by
// KVASIR_MAX_NUM_SEQS. The command line takes precedence.
void add_environment(CLI::App& app);

// Prints one line on standard error, and returns the exit code of a command that failed.
int report_failure(const char* subcommand, const std::string& message);

}  // namespace kvasir
