// How a model's makers mean it to be sampled, as far as its files say.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "base/status.h"
#include "model/files/gguf.h"

namespace kvasir {

// Each is empty where the files do not say it. Of GGUF files the keys general.sampling.*; of folders
// generation_config.json.
struct SamplingDefaults {
  std::optional<float> temperature;  // 0: greedy
  std::optional<float> top_p;
  std::optional<int32_t> top_k;
  std::optional<float> min_p;
  std::optional<float> repetition_penalty;

  // "temperature 0.6, top_p 0.95"; empty where nothing is said.
  std::string text() const;
};

// kInvalidArgument: a key of the wrong type.
Result<SamplingDefaults> read_sampling_defaults(const Gguf& file);

}  // namespace kvasir
