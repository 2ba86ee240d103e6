// Flags that several subcommands share, and the environment that stands in for them.
#pragma once

#include <string>

#include "apps/runtime.h"

namespace CLI {
class App;
}

namespace kvasir {

// MODEL, or -m / --model.
void add_model_flag(CLI::App& app, std::string& path);

// A size where a bare number is GiB, as with the peers.
void add_gib(CLI::App& app, const char* flag, uint64_t& bytes, const char* help);

// --pin-threads auto|on|off
void add_pinning_flag(CLI::App& app, Pinning& pinning);
// Of those below, what the simulator takes, too: tiers and blocks; batches and queues; which policy.
void add_cache_flags(CLI::App& app, RuntimeOptions& options);
void add_batch_flags(CLI::App& app, RuntimeOptions& options);
void add_policy_flag(CLI::App& app, std::string& policy);
void add_length_predictor_flag(CLI::App& app, std::string& predictor);
// How the model runs: threads, cache, batches, policy. `options` must live as long as `app` parses.
void add_runtime_flags(CLI::App& app, RuntimeOptions& options);

// What policies are told of costs and lengths; they are told it then.
void add_belief_flags(CLI::App& app, BeliefOptions& options);

// Gives every flag of `app` its variable: --max-num-seqs is KVASIR_MAX_NUM_SEQS. The command line wins.
void add_environment(CLI::App& app);

// Prints one line on standard error; the exit code of a subcommand that failed.
int report_failure(const char* subcommand, const std::string& message);

}  // namespace kvasir
