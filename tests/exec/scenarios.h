// One workload, and all the ways to run it that must not change a bit.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "exec/rig.h"

namespace kvasir::test {

// 32 requests of 1 to 830 tokens, some with common beginnings: up to four attention leaves with a ragged
// tail, matrices of at least three groups along K, two query heads for each KV head.
struct Workload {
  std::unique_ptr<ModelFile> file;
  std::vector<RigRequest> requests;
};
// By default of a llama: of another architecture, the model of tiny_architectures(), or the last of
// tiny_latents(). Those of Gemma have pieces of SentencePiece, of which their prompts are.
Workload make_workload(ops::WeightType type, const std::string& architecture = "llama");

// Gives each request some of the rules and cuts of sampling, in turn, and some the log-probabilities of their
// prompts.
void add_rules(Workload& work);

struct Scenario {
  std::string kind;
  std::string name;
  RigOptions options;
  bool alone = false;  // every request in an engine of its own
  bool expects_preemptions = false;
  bool expects_reuse = false;  // of cached prefixes
  bool expects_swaps = false;
  bool expects_staging = false;
  bool expects_again = false;    // rows that recompute dropped cells, beside decodes
  bool expects_partial = false;  // residence: some layer groups of a sequence on the device, not all
};
std::vector<Scenario> scenarios();

// What scenarios run with beside llama. Together they have windows and norms of Q and K (gemma3), norms
// behind attention and feed-forward, caps (gemma2), LayerNorm, biases and learned positions (opt), and
// pieces.
inline constexpr const char* kScenarioArchitectures[] = {"gemma3", "opt", "gemma2", "llama"};

// Runs it, and asserts that what the scenario is about did happen if the run repeats itself.
std::vector<RigOutput> run_scenario(const Workload& work, const Scenario& scenario);

}  // namespace kvasir::test
