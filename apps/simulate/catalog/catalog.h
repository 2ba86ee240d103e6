// Finds the devices, models and engines that can be simulated, by name or in a file.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "base/status.h"
#include "exec/sim/device.h"

namespace kvasir {

// In the order of the alphabet.
std::vector<std::string> device_names();
std::vector<std::string> model_names();
std::vector<std::string> overhead_names();

// A name of the catalogue, whatever its case, or the path of a file like the catalogue's own. kNotFound lists
// what there is, in one line.
Result<DeviceSpec> find_device(const std::string& name_or_path);
// A name of the catalogue, whatever its case; a config.json of Hugging Face, or the folder that holds one; or
// a GGUF file, of which the weights take what they take there. kNotFound lists what there is, in one line.
Result<ModelShape> find_model(const std::string& name_or_path);
// The time that an engine adds to each step, for so many cards per layer.
Result<EngineOverhead> find_overhead(const std::string& name, uint32_t tensor = 1);

// Of one card, the fullest one; they add up to the share of its memory that may be used.
struct DeviceMemory {
  uint64_t weights = 0;
  uint64_t kv_cache = 0;
  uint64_t reserve = 0;  // driver, context, libraries, activations
  // Tokens whose KV all cards hold together.
  // REQUIRES: the same model and parallelism
  uint64_t kv_tokens(const ModelShape& model, const Parallelism& parallelism) const;
};

// utilisation: the share of the card's memory that may be used, above 0, at most 1. kInvalidArgument: it is
// not. kExhausted: the model does not fit; the message says by how much.
Result<DeviceMemory> memory_of(const ModelShape& model, const DeviceSpec& device,
                               const Parallelism& parallelism, double utilisation);

}  // namespace kvasir
