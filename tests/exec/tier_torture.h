// Random requests on real kernels through an engine whose device tier is far too small for them, under the
// random policy.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "exec/rig.h"

namespace kvasir::test {

// Models for it: their own keys and values for each head, and two query heads for each KV head.
TinyLlamaShape torture_mha();
TinyLlamaShape torture_gqa();
// Their own keys and values for each head, with a bias on them and on the queries.
TinyLlamaShape torture_bias();
// Of tiny_architectures().
TinyLlamaShape torture_architecture(const std::string& name);

struct TierTortureOutcome {
  uint64_t wrong = 0;  // requests with other tokens or logits than in the plain run
  RigRun run;
};

// One model, and what an engine without limits makes of one set of requests.
class TierTorture {
 public:
  TierTorture(const TinyLlamaShape& shape, ops::WeightType weights, ops::KvType kv, uint32_t requests,
              uint64_t seed, std::optional<FakeGpuPace> gpu = std::nullopt);

  // Device tier and stage ring of a few blocks of 16 tokens, a host tier of several times that, the random
  // policy.
  RigOptions tiers(uint32_t layers_per_group) const;
  // The same under LayerKV, on a device that holds most requests, though not several: all are in a hurry, so
  // that they are served from where their layers are.
  RigOptions layers(uint32_t layers_per_group) const;
  // No tier but the device, and histories kept as X where it is short, with all the room that it has.
  RigOptions hidden(uint32_t layers_per_group) const;
  // tiers() with a disk tier, cells in every form, and the policy that makes use of both.
  RigOptions forms(uint32_t layers_per_group) const;
  // Runs the requests, some of which are cancelled on their way.
  TierTortureOutcome torture(const RigOptions& options) const;

 private:
  std::unique_ptr<ModelFile> file_;
  RigOptions plain_;
  uint64_t seed_;
  std::vector<RigRequest> requests_;
  std::vector<RigOutput> expected_;
};

}  // namespace kvasir::test
