// A model of random weights, histories of some sequences, and a step over them, on the device.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "apps/gpu/device.h"
#include "exec/gpu/forward_pass.h"

namespace kvasir::gpu_program {

// "llama-3-8b" or "llama-3.2-1b".
ModelSpec spec_of(const std::string& shape);

// Weights on the device, made there.
class RandomModel {
 public:
  explicit RandomModel(const ModelSpec& spec);
  const GpuModel& model() const { return model_; }
  // Of the weights that every step reads.
  double bytes() const { return static_cast<double>(bytes_); }

 private:
  const uint16_t* image(int32_t rows, int32_t columns);

  GpuModel model_;
  std::vector<DeviceArray<uint16_t>> images_;
  std::unique_ptr<DeviceArray<float>> norm_;
  std::vector<DeviceArray<float>> tables_;
  int64_t bytes_ = 0;
};

// K and V of some sequences, all layers of a block together. Filled with the same values every time.
class Cache {
 public:
  Cache(const ModelSpec& spec, int sequences, int context);
  ops::gpu::KvLayer layer() const;

 private:
  size_t plane_;  // bytes of K, or V, of a block in a layer
  size_t blocks_;
  size_t block_bytes_;
  DeviceArray<uint16_t> memory_;
  std::unique_ptr<DeviceArray<ops::gpu::KvPlace>> table_;
  std::unique_ptr<DeviceArray<ops::gpu::SlicePlace>> slices_;
};

// Rows [begin, end) of each of some sequences, logits of the last of each.
class Pass {
 public:
  Pass(const RandomModel& model, const Cache& cache, int sequences, int begin, int end, int most_rows);

  void queue_all_layers(KernelQueue& queue) const {
    queue_layers(model_.model(), step_, scratch_, queue, nullptr);
  }
  void queue_tokens(KernelQueue& queue) const { queue_logits(model_.model(), logits_, scratch_, queue); }
  void queue(KernelQueue& queue) const {
    queue_all_layers(queue);
    queue_tokens(queue);
  }

  // Of the first sequence.
  std::vector<float> logits() const;
  // On the device: one for each sequence.
  const int32_t* tokens() const { return tokens_->data(); }

 private:
  const RandomModel& model_;
  std::unique_ptr<DeviceArray<ops::gpu::RowPlace>> rows_;
  std::unique_ptr<DeviceArray<ops::gpu::LeafWork>> work_;
  std::unique_ptr<DeviceArray<int32_t>> last_;
  std::unique_ptr<DeviceArray<int32_t>> tokens_;
  std::unique_ptr<DeviceArray<ops::gpu::DrawPlace>> draws_;
  std::vector<DeviceArray<float>> floats_;
  std::vector<DeviceArray<uint16_t>> halves_;
  GpuScratch scratch_;
  GpuLogits logits_;
  GpuStep step_;
};

class StreamQueue : public KernelQueue {
 public:
  StreamQueue(int multiprocessors, bool overlaps, cudaStream_t stream)
      : multiprocessors_(multiprocessors), overlaps_(overlaps), stream_(stream) {}
  void launch(const ops::gpu::EmbedArgs& args) override;
  void launch(const ops::gpu::NormRowsArgs& args) override;
  void launch(const ops::gpu::GemmArgs& args) override;
  void launch(const ops::gpu::FinishQkvArgs& args) override;
  void launch(const ops::gpu::CopyXArgs& args) override;
  void launch(const ops::gpu::FinishKvArgs& args) override;
  void launch(const ops::gpu::LeafArgs& args) override;
  void launch(const ops::gpu::MergeArgs& args) override;
  void launch(const ops::gpu::ActivateArgs& args) override;
  void launch(const ops::gpu::AddBranchArgs& args) override;
  void launch(const ops::gpu::DrawArgs& args) override;

 private:
  int multiprocessors_;
  bool overlaps_;
  cudaStream_t stream_;
};

bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
bool all_numbers(const std::vector<float>& values);
// Throws if there are any.
void must_be_good(int bad_passes);

}  // namespace kvasir::gpu_program
