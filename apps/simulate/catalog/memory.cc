// What fits into a card.
#include <algorithm>

#include "apps/simulate/catalog/catalog.h"
#include "base/units.h"

namespace kvasir {
namespace {

// What the driver keeps of a card, and a process's context with its libraries: assumed.
// docs/simulator-truth.md compares the result with a published table.
constexpr double kDriverShare = 0.01;
constexpr double kContextBytes = 0.5 * kGiB;
// Rows and sampled rows of the largest step, for which activations and logits have room.
constexpr double kStepRows = 8192;
constexpr double kSampledRows = 256;

// K and V of a token in one layer on one card.
double kv_layer_bytes(const ModelShape& model, uint32_t tensor) {
  const double heads = std::max(1.0, static_cast<double>(model.kv_heads) / tensor);
  return model.kv_planes() * heads * model.head_dim * model.kv_element_bytes;
}

}  // namespace

uint64_t DeviceMemory::kv_tokens(const ModelShape& model, const Parallelism& p) const {
  const uint32_t layers = ceil_div(model.layers, p.pipeline);
  return static_cast<uint64_t>(static_cast<double>(kv_cache) / (layers * kv_layer_bytes(model, p.tensor)));
}

Result<DeviceMemory> memory_of(const ModelShape& model, const DeviceSpec& device, const Parallelism& p,
                               double utilisation) {
  if (!(utilisation > 0) || utilisation > 1) {
    return error(ErrorCode::kInvalidArgument, "memory utilisation {}: take a share above 0 and up to 1",
                 utilisation);
  }
  const double embedding = static_cast<double>(model.vocab) * model.hidden;
  const double embeddings = model.tied_embeddings ? embedding : 2 * embedding;
  const double experts = static_cast<double>(model.expert_parameters()) / model.layers;
  const double others = (static_cast<double>(model.parameters()) - embeddings) / model.layers - experts;
  const uint32_t layers = ceil_div(model.layers, p.pipeline);
  // The first stage has the embedding, the last one the output layer.
  const double weights =
      ((others * layers + (p.pipeline > 1 ? embedding : embeddings)) * model.weight_element_bytes +
       experts * layers * model.expert_element_bytes) /
      p.tensor;
  const double wide = static_cast<double>((model.gated_mlp ? 3 : 2) * model.active_ffn()) / p.tensor;
  const double activations = kStepRows * 2 * (4.0 * model.hidden + wide) + kSampledRows * 4 * model.vocab;
  const double reserve =
      kDriverShare * static_cast<double>(device.memory_bytes) + kContextBytes + activations;
  const double usable = utilisation * static_cast<double>(device.memory_bytes);
  const double left = usable - weights - reserve;
  // At least one block's worth of tokens, else nothing can run.
  constexpr double kLeastTokens = 16;
  const double missing = kLeastTokens * layers * kv_layer_bytes(model, p.tensor) - left;
  if (missing > 0) {
    return error(
        ErrorCode::kExhausted,
        "{} does not fit {} x {} at {:.0f} % of its memory: a card needs {} more (weights {}, reserve {}); "
        "take more cards or a larger device",
        model.name, p.cards(), device.name, 100 * utilisation, format_bytes(static_cast<uint64_t>(missing)),
        format_bytes(static_cast<uint64_t>(weights)), format_bytes(static_cast<uint64_t>(reserve)));
  }
  return DeviceMemory{static_cast<uint64_t>(weights), static_cast<uint64_t>(left),
                      static_cast<uint64_t>(reserve)};
}

}  // namespace kvasir
