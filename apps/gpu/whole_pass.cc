#include "apps/gpu/whole_pass.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <stdexcept>

#include "apps/gpu/report.h"
#include "apps/gpu/rotations.h"
#include "exec/cuda/gemm.h"
#include "exec/cuda/launch.h"
#include "exec/cuda/synthetic.h"
#include "ops/gpu/layouts.h"
#include "ops/gpu/leaf_work.h"

namespace kvasir::gpu_program {
namespace {

constexpr uint32_t kBlockTokens = 64;

}  // namespace

ModelSpec spec_of(const std::string& shape) {
  const bool is_small = shape == "llama-3.2-1b";
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = is_small ? 16 : 32;
  spec.context_length = 8192;
  spec.dim = is_small ? 2048 : 4096;
  spec.ffn_dim = is_small ? 8192 : 14336;
  spec.heads = 32;
  spec.kv_heads = 8;
  spec.head_dim = is_small ? 64 : 128;
  spec.vocab_size = 128256;
  spec.query_scale = 1 / std::sqrt(static_cast<float>(spec.head_dim));
  spec.ropes.resize(1);
  spec.layer_specs.resize(static_cast<size_t>(spec.layers));
  return spec;
}

RandomModel::RandomModel(const ModelSpec& spec) {
  model_.spec = spec;
  // Small enough that scores of attention spread over some positions.
  norm_ = std::make_unique<DeviceArray<float>>(
      on_device(std::vector<float>(static_cast<size_t>(spec.dim), 0.03F)));
  const ops::gpu::NormArgs norm{ops::gpu::NormOf::kRms, spec.norm_epsilon, norm_->data(), nullptr};
  model_.embedding = image(spec.vocab_size, spec.dim);
  model_.output = image(spec.vocab_size, spec.dim);
  model_.output_norm = norm;
  for (int i = 0; i < spec.layers; ++i) {
    GpuLayer layer;
    layer.attn_norm = layer.ffn_norm = norm;
    layer.qkv = image(spec.q_dim() + 2 * spec.kv_dim(), spec.dim);
    layer.attn_output = image(spec.dim, spec.q_dim());
    layer.ffn_in = image(spec.ffn_inputs(), spec.dim);
    layer.ffn_down = image(spec.dim, spec.ffn_dim);
    model_.layers.push_back(layer);
  }
  bytes_ -= 2 * int64_t{spec.vocab_size} * spec.dim;  // of the embedding a step reads a few rows
  const auto positions = static_cast<size_t>(spec.context_length),
             half = static_cast<size_t>(spec.head_dim) / 2;
  const Rotations rope = rotations(positions, half, /*base=*/500000);
  tables_.push_back(on_device(rope.cosines));
  tables_.push_back(on_device(rope.sines));
  model_.ropes = {{tables_[0].data(), tables_[1].data(), static_cast<int32_t>(half)}};
  model_.query_factors = {spec.query_scale * 1.4426950408889634F};
  must(cudaDeviceSynchronize(), "making weights");
}

const uint16_t* RandomModel::image(int32_t rows, int32_t columns) {
  images_.emplace_back(static_cast<size_t>(ops::operand_elements(rows, columns)));
  must(cuda::fill_image(images_.back().data(), rows, columns, images_.size(), nullptr), "making weights");
  bytes_ += 2 * int64_t{rows} * columns;
  return images_.back().data();
}

Cache::Cache(const ModelSpec& spec, int sequences, int context)
    : plane_(static_cast<size_t>(spec.kv_dim()) * kBlockTokens * 2),
      blocks_((static_cast<size_t>(context) + kBlockTokens - 1) / kBlockTokens),
      block_bytes_(static_cast<size_t>(spec.layers) * 2 * plane_),
      memory_(static_cast<size_t>(sequences) * blocks_ * block_bytes_ / 2) {
  must(cuda::fill_rows(memory_.data(), static_cast<int64_t>(memory_.count() / 4096), 4096, 5, nullptr),
       "K and V");
  std::vector<ops::gpu::KvPlace> table;
  for (size_t i = 0; i < static_cast<size_t>(sequences) * blocks_; ++i) {
    table.push_back({.k = i * block_bytes_, .v = i * block_bytes_ + plane_});
  }
  table_ = std::make_unique<DeviceArray<ops::gpu::KvPlace>>(on_device(table));
  std::vector<ops::gpu::SlicePlace> slices;
  for (int i = 0; i < sequences; ++i) {
    slices.push_back({.table = table_->data() + static_cast<size_t>(i) * blocks_,
                      .staged_begin = 0,
                      .staged_end = 0,
                      .first_staged = 0,
                      .left_out = 0});
  }
  slices_ = std::make_unique<DeviceArray<ops::gpu::SlicePlace>>(on_device(slices));
}

ops::gpu::KvLayer Cache::layer() const {
  ops::gpu::KvLayer kv = {};
  kv.memory = reinterpret_cast<std::byte*>(memory_.data());
  kv.slices = slices_->data();
  kv.groups = 1;
  kv.block_tokens = kBlockTokens;
  return kv;
}

Pass::Pass(const RandomModel& model, const Cache& cache, int sequences, int begin, int end, int most_rows)
    : model_(model) {
  const ModelSpec& spec = model.model().spec;
  std::vector<ops::gpu::RowPlace> rows;
  std::vector<int32_t> last;
  for (int s = 0; s < sequences; ++s) {
    for (int p = begin; p < end; ++p) {
      rows.push_back({.token = (s * 7919 + p * 104729) % spec.vocab_size,
                      .position = static_cast<uint32_t>(p),
                      .slice = static_cast<uint32_t>(s),
                      .query_factor = model.model().query_factors[0],
                      .first_record = 0});
    }
    last.push_back(static_cast<int32_t>(rows.size()) - 1);
  }
  const ops::gpu::LeafPlan plan = ops::gpu::plan_leaves(rows, 0, most_rows);
  rows_ = std::make_unique<DeviceArray<ops::gpu::RowPlace>>(on_device(rows));
  work_ = std::make_unique<DeviceArray<ops::gpu::LeafWork>>(on_device(plan.work));
  last_ = std::make_unique<DeviceArray<int32_t>>(on_device(last));
  tokens_ = std::make_unique<DeviceArray<int32_t>>(last.size());
  draws_ = std::make_unique<DeviceArray<ops::gpu::DrawPlace>>(on_device(
      std::vector<ops::gpu::DrawPlace>(last.size(), {.factor = 0, .top_k = 0, .top_p = 1, .bits = 0})));
  const GpuScratch::Sizes sizes = GpuScratch::sizes(spec, static_cast<int64_t>(rows.size()), plan.records,
                                                    static_cast<int64_t>(last.size()));
  const auto floats = [&](int64_t count) {
    floats_.emplace_back(static_cast<size_t>(count));
    return floats_.back().data();
  };
  const auto halves = [&](int64_t count) {
    halves_.emplace_back(static_cast<size_t>(count));
    return halves_.back().data();
  };
  scratch_ = {.x = floats(sizes.x),
              .operand = halves(sizes.operand),
              .product = floats(sizes.product),
              .q = halves(sizes.q),
              .partials = floats(sizes.partials),
              .logits = floats(sizes.logits)};
  step_.count = static_cast<int32_t>(rows.size());
  step_.rows = rows_->data();
  step_.kv = cache.layer();
  step_.layers_per_group = static_cast<uint32_t>(spec.layers);
  step_.attention = {GpuAttention{.window = 0,
                                  .count = step_.count,
                                  .first = 0,
                                  .end = step_.count,
                                  .rows = rows_->data(),
                                  .work = work_->data(),
                                  .work_count = static_cast<int32_t>(plan.work.size()),
                                  .most_rows = most_rows}};
  logits_ = {last_->data(), static_cast<int32_t>(last.size()), draws_->data(), tokens_->data()};
  must(cudaDeviceSynchronize(), "preparing a step");
}

std::vector<float> Pass::logits() const {
  std::vector<float> to(static_cast<size_t>(model_.model().spec.vocab_size));
  must(cudaMemcpy(to.data(), scratch_.logits, to.size() * sizeof(float), cudaMemcpyDeviceToHost), "logits");
  return to;
}

void StreamQueue::launch(const ops::gpu::EmbedArgs& args) {
  must_launch(cuda::launch(args, stream_));
}
void StreamQueue::launch(const ops::gpu::NormRowsArgs& args) {
  must_launch(cuda::launch(args, stream_));
}
void StreamQueue::launch(const ops::gpu::GemmArgs& args) {
  must(cuda::gemm(args, multiprocessors_, overlaps_, stream_), "product");
}
void StreamQueue::launch(const ops::gpu::FinishQkvArgs& args) {
  must_launch(cuda::launch(args, stream_));
}
void StreamQueue::launch(const ops::gpu::CopyXArgs& args) {
  must_launch(cuda::launch(args, stream_));
}
void StreamQueue::launch(const ops::gpu::FinishKvArgs& args) {
  must_launch(cuda::launch(args, stream_));
}
void StreamQueue::launch(const ops::gpu::LeafArgs& args) {
  must_launch(cuda::launch(args, stream_));
}
void StreamQueue::launch(const ops::gpu::MergeArgs& args) {
  must_launch(cuda::launch(args, stream_));
}
void StreamQueue::launch(const ops::gpu::ActivateArgs& args) {
  must_launch(cuda::launch(args, stream_));
}
void StreamQueue::launch(const ops::gpu::AddBranchArgs& args) {
  must_launch(cuda::launch(args, stream_));
}
void StreamQueue::launch(const ops::gpu::DrawArgs& args) {
  must_launch(cuda::launch(args, stream_));
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool all_numbers(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

void must_be_good(int bad_passes) {
  if (bad_passes > 0)
    throw std::runtime_error(text_of("%d passes have other bits, or are not finite", bad_passes));
}

}  // namespace kvasir::gpu_program
