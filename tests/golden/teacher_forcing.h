// Runs given tokens through a model and shows the logits of every position.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <memory>
#include <span>
#include <string>

#include "base/clock.h"
#include "contract/geometry.h"
#include "exec/cpu/cpu_executor.h"
#include "exec/cpu/packed_model.h"
#include "model/files/model_file.h"
#include "ops/numerics.h"

namespace kvasir::test {

struct ForcedPrecision {
  ops::ActivationMode activation = ops::ActivationMode::kAuto;
  ops::KvType kv_type = ops::KvType::kBf16;
};
// Such as "auto activations, bf16 KV".
std::string describe(const ForcedPrecision& precision);
// For GoogleTest's messages.
void PrintTo(const ForcedPrecision& precision, std::ostream* out);

using RowSink = std::function<void(uint32_t position, std::span<const float> logits)>;

// One sequence in a cache of its own. Not thread-safe.
class TeacherForcing {
 public:
  // The file outlives the object. `max_tokens` bounds every run. Aborts the test program where memory ends.
  TeacherForcing(const ModelFile& file, const ForcedPrecision& precision, uint32_t max_tokens, int threads);

  // Runs the tokens from position 0 with an empty cache, `chunk` of them in a step. The sink is called for
  // every position, in order. REQUIRES: tokens.size() <= max_tokens
  void run(std::span<const Token> tokens, uint32_t chunk, const RowSink& sink);

 private:
  std::unique_ptr<PackedModel> model_;
  CacheGeometry geometry_;
  uint32_t blocks_;
  Arena memory_;
  MonotonicClock clock_;
  std::unique_ptr<CpuExecutor> executor_;
  uint64_t steps_ = 0;
};

}  // namespace kvasir::test
