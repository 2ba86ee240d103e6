// The GPU executor on a fake GPU without an engine: steps of one sequence.
#pragma once

#include <memory>
#include <utility>

#include "base/clock.h"
#include "exec/gpu/gpu_executor.h"
#include "exec/gpu/uploaded_model.h"
#include "fakes/fake_gpu.h"
#include "support/tiny_llama.h"

namespace kvasir::test {

// Who goes along with a step.
enum class GpuPilot : uint8_t { kThread, kWait };

// One sequence, whose blocks lie one behind the other.
class GpuSteps {
 public:
  static constexpr uint32_t kBlocks = 32;
  static constexpr uint32_t kMostPositions = 512;

  explicit GpuSteps(FakeGpuPace pace = FakeGpuPace::kLate, GpuPilot pilot = GpuPilot::kThread,
                    Link* link = nullptr, bool graphs = false, const TinyLlamaShape& shape = tiny_gqa())
      : file_(ModelFile::from_bytes(make_tiny_llama(shape, ops::WeightType::kBf16, /*seed=*/11), "tiny.gguf")
                  .value()),
        gpu_(pace) {
    uploaded_ = UploadedModel::make(*file_, kMostPositions, gpu_).value();
    geometry_.block_tokens = 16;
    geometry_.layers = geometry_.layers_per_group = static_cast<uint32_t>(file_->spec().layers);
    geometry_.kv_plane_bytes_per_token_layer = static_cast<uint64_t>(file_->spec().kv_dim()) * 2;
    memory_ = gpu_.allocate(kBlocks * geometry_.kv_block_bytes()).value();
    GpuExecutorOptions options;
    options.graphs = graphs;
    if (pilot == GpuPilot::kWait) options.goes_along_in_submit = [] { return false; };
    executor_ =
        GpuExecutor::make(gpu_, uploaded_->model(), geometry_, memory_, clock_, link, std::move(options))
            .value();
    table_ = table(kBlocks);
  }

  std::shared_ptr<const BlockTable> table(uint32_t blocks) const {
    auto made = std::make_shared<BlockTable>();
    for (uint64_t b = 0; b < blocks; ++b) {
      const uint64_t at = b * geometry_.kv_block_bytes();
      made->push_back({at, at + geometry_.layer_plane_bytes()});
    }
    return made;
  }

  Step step(Interval tokens) {
    Step step;
    step.id = StepId{++steps_};
    step.groups = geometry_.groups();
    StepSlice slice;
    slice.seq = SeqId{1};
    slice.tokens = tokens;
    slice.samples = true;
    slice.blocks = geometry_.blocks_for(tokens.end);
    slice.table = table_;
    slice.sampling.temperature = 0.8F;
    slice.sampling.prompt_tokens = tokens.end;
    for (uint32_t p = tokens.begin; p < tokens.end; ++p)
      step.token_ids.push_back(static_cast<Token>(3 + p % 200));
    step.slices.push_back(std::move(slice));
    step.index_by_layer();
    return step;
  }
  StepResult run(Step step) {
    executor_->submit(std::move(step));
    return executor_->wait();
  }

  std::unique_ptr<ModelFile> file_;
  FakeGpu gpu_;
  MonotonicClock clock_;
  std::unique_ptr<UploadedModel> uploaded_;
  CacheGeometry geometry_;
  std::byte* memory_ = nullptr;
  std::unique_ptr<GpuExecutor> executor_;
  std::shared_ptr<const BlockTable> table_;
  uint64_t steps_ = 0;
};

}  // namespace kvasir::test
