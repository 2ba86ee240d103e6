// Whole forward passes of a model's shape with random weights: steps of decoding, and prompts.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <memory>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/gpu/device.h"
#include "apps/gpu/floors.h"
#include "apps/gpu/parts.h"
#include "exec/cuda/gemm.h"
#include "exec/cuda/launch.h"
#include "exec/cuda/synthetic.h"
#include "exec/gpu/forward_pass.h"
#include "ops/gpu/layouts.h"
#include "ops/gpu/leaf_work.h"

namespace kvasir::gpu_program {
namespace {

constexpr int kLayers = 32;
constexpr uint32_t kBlockTokens = 64;
constexpr int kPrefillPiece = 64;  // rows that attend to a leaf together

class StreamQueue : public KernelQueue {
 public:
  StreamQueue(int multiprocessors, bool overlaps, cudaStream_t stream)
      : multiprocessors_(multiprocessors), overlaps_(overlaps), stream_(stream) {}
  void launch(const ops::gpu::GemmArgs& args) override {
    must(cuda::gemm(args, multiprocessors_, overlaps_, stream_), "product");
  }
  void launch(const ops::gpu::EmbedArgs& args) override { must_launch(cuda::launch(args, stream_)); }
  void launch(const ops::gpu::NormRowsArgs& args) override { must_launch(cuda::launch(args, stream_)); }
  void launch(const ops::gpu::FinishQkvArgs& args) override { must_launch(cuda::launch(args, stream_)); }
  void launch(const ops::gpu::CopyXArgs& args) override { must_launch(cuda::launch(args, stream_)); }
  void launch(const ops::gpu::FinishKvArgs& args) override { must_launch(cuda::launch(args, stream_)); }
  void launch(const ops::gpu::LeafArgs& args) override { must_launch(cuda::launch(args, stream_)); }
  void launch(const ops::gpu::MergeArgs& args) override { must_launch(cuda::launch(args, stream_)); }
  void launch(const ops::gpu::ActivateArgs& args) override { must_launch(cuda::launch(args, stream_)); }
  void launch(const ops::gpu::AddBranchArgs& args) override { must_launch(cuda::launch(args, stream_)); }
  void launch(const ops::gpu::DrawArgs& args) override { must_launch(cuda::launch(args, stream_)); }

 private:
  int multiprocessors_;
  bool overlaps_;
  cudaStream_t stream_;
};

ModelSpec spec_of_llama_3_8b() {
  ModelSpec spec;
  spec.architecture = "llama";
  spec.layers = kLayers;
  spec.context_length = 8192;
  spec.dim = 4096;
  spec.ffn_dim = 14336;
  spec.heads = 32;
  spec.kv_heads = 8;
  spec.head_dim = 128;
  spec.vocab_size = 128256;
  spec.query_scale = 1 / std::sqrt(128.0F);
  spec.ropes.resize(1);
  spec.layer_specs.resize(kLayers);
  return spec;
}

// Weights on the device, made there.
class RandomModel {
 public:
  RandomModel() {
    ModelSpec spec = spec_of_llama_3_8b();
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
    const auto positions = static_cast<size_t>(spec.context_length), half = size_t{64};
    std::vector<float> cosines(positions * half), sines(positions * half);
    for (size_t i = 0; i < positions * half; ++i) {
      const size_t position = i / half, pair = i % half;
      const double angle =
          static_cast<double>(position) * std::pow(500000.0, -static_cast<double>(pair) / 64);
      cosines[i] = static_cast<float>(std::cos(angle));
      sines[i] = static_cast<float>(std::sin(angle));
    }
    tables_.push_back(on_device(cosines));
    tables_.push_back(on_device(sines));
    model_.ropes = {{tables_[0].data(), tables_[1].data(), static_cast<int32_t>(half)}};
    model_.query_factors = {spec.query_scale * 1.4426950408889634F};
    must(cudaDeviceSynchronize(), "making weights");
  }

  const GpuModel& model() const { return model_; }
  // Of the weights that every step reads.
  double bytes() const { return static_cast<double>(bytes_); }

 private:
  const uint16_t* image(int32_t rows, int32_t columns) {
    images_.emplace_back(static_cast<size_t>(ops::operand_elements(rows, columns)));
    must(cuda::fill_image(images_.back().data(), rows, columns, images_.size(), nullptr), "making weights");
    bytes_ += 2 * int64_t{rows} * columns;
    return images_.back().data();
  }

  GpuModel model_;
  std::vector<DeviceArray<uint16_t>> images_;
  std::unique_ptr<DeviceArray<float>> norm_;
  std::vector<DeviceArray<float>> tables_;
  int64_t bytes_ = 0;
};

// K and V of some sequences, all layers of a block together. Filled with the same values every time.
class Cache {
 public:
  Cache(const ModelSpec& spec, int sequences, int context)
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
  ops::gpu::KvLayer layer() const {
    ops::gpu::KvLayer kv = {};
    kv.memory = reinterpret_cast<std::byte*>(memory_.data());
    kv.slices = slices_->data();
    kv.groups = 1;
    kv.block_tokens = kBlockTokens;
    return kv;
  }

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
  Pass(const RandomModel& model, const Cache& cache, int sequences, int begin, int end, int most_rows)
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
    step_.layers_per_group = kLayers;
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

  void queue(KernelQueue& queue) const {
    queue_layers(model_.model(), step_, scratch_, queue, nullptr);
    queue_logits(model_.model(), logits_, scratch_, queue);
  }

  // Of the first sequence.
  std::vector<float> logits() const {
    std::vector<float> to(static_cast<size_t>(model_.model().spec.vocab_size));
    must(cudaMemcpy(to.data(), scratch_.logits, to.size() * sizeof(float), cudaMemcpyDeviceToHost), "logits");
    return to;
  }

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

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

bool all_numbers(const std::vector<float>& values) {
  return std::all_of(values.begin(), values.end(), [](float v) { return std::isfinite(v); });
}

void must_be_good(int bad) {
  if (bad > 0) throw std::runtime_error(text_of("%d passes have other bits, or are not finite", bad));
}

}  // namespace

void bench_forward_decode(const Options&, Report& report) {
  struct Case {
    int batch, context;
  };
  const double floor = read_floor_gb_s();
  const int sms = multiprocessors();
  const RandomModel model;
  const ModelSpec& spec = model.model().spec;
  const Stream stream;
  int bad = 0;
  std::vector<float> alone;  // logits of the first sequence, at a context of 1,024, in a batch of one
  for (const bool overlaps : {false, true}) {
    for (const Case& each : {Case{1, 1024}, Case{8, 1024}, Case{16, 1024}, Case{32, 1024}, Case{64, 1024},
                             Case{128, 1024}, Case{1, 8192}, Case{32, 8192}}) {
      const Cache cache(spec, each.batch, each.context);
      const Pass pass(model, cache, each.batch, each.context - 1, each.context, 1);
      StreamQueue queue(sms, overlaps, stream.get());
      const double us = graph_us(stream, 1, 1, [&](int) { pass.queue(queue); });
      const std::vector<float> logits = pass.logits();
      if (alone.empty()) alone = logits;
      const bool comparable = each.context == 1024;
      const bool same = comparable && same_bits(alone, logits);
      bad += (comparable && !same) || !all_numbers(logits) ? 1 : 0;
      const double bytes =
          model.bytes() + static_cast<double>(each.batch) * each.context * kLayers * 4 * spec.kv_dim();
      report.add(
          {{"part", "forward"},
           {"what", "decode"},
           {"batch", each.batch},
           {"context", each.context},
           {"overlaps", overlaps},
           {"us", us},
           {"tokens_s", each.batch / us * 1e6},
           {"gb_s", bytes / us / 1e3},
           {"of_floor", bytes / us / 1e3 / floor},
           {"finite", all_numbers(logits)},
           {"same_bits", comparable ? nlohmann::json(same) : nlohmann::json()}},
          text_of(
              "decode, batch %3d, context %5d%s: %8.2f ms, %8.0f tokens/s, %5.1f %% of the rate of reads%s%s",
              each.batch, each.context, overlaps ? ", overlapping" : "", us / 1e3, each.batch / us * 1e6,
              100 * bytes / us / 1e3 / floor,
              !comparable ? ""
              : same      ? ", bits as alone"
                          : ", OTHER BITS than alone",
              all_numbers(logits) ? "" : ", NOT FINITE"));
    }
  }
  must_be_good(bad);
}

void bench_forward_prefill(const Options&, Report& report) {
  const int sms = multiprocessors();
  const RandomModel model;
  const ModelSpec& spec = model.model().spec;
  const Stream stream;
  StreamQueue queue(sms, false, stream.get());
  int bad = 0;
  for (const int rows : {512, 1024, 4096, 8192}) {
    const Cache cache(spec, 1, rows);
    double us = 0;
    std::vector<float> whole;
    {
      const Pass pass(model, cache, 1, 0, rows, kPrefillPiece);
      us = graph_us(stream, 1, 1, [&](int) { pass.queue(queue); });
      whole = pass.logits();
    }
    // In pieces of other sizes, the last of which is one row.
    std::vector<float> pieces;
    for (int begin = 0; begin < rows;) {
      const int end = begin == 0 ? rows / 2 + 3 : begin + 1 < rows - 1 ? rows - 1 : rows;
      const Pass pass(model, cache, 1, begin, end, end - begin == 1 ? 1 : kPrefillPiece);
      pass.queue(queue);
      stream.wait();
      pieces = pass.logits();
      begin = end;
    }
    const bool same = same_bits(whole, pieces);
    bad += same && all_numbers(whole) ? 0 : 1;
    const double head = 2.0 * spec.vocab_size * spec.dim;
    const double operations =
        (model.bytes() - head) * rows + head + 4.0 * spec.q_dim() * kLayers * rows * (rows + 1.0) / 2;
    report.add({{"part", "forward"},
                {"what", "prefill"},
                {"rows", rows},
                {"us", us},
                {"tokens_s", rows / us * 1e6},
                {"tflops", operations / us / 1e6},
                {"finite", all_numbers(whole)},
                {"same_bits", same}},
               text_of("prefill of %5d: %8.2f ms, %8.0f tokens/s, %6.1f TFLOP/s%s%s", rows, us / 1e3,
                       rows / us * 1e6, operations / us / 1e6,
                       same ? ", bits as in pieces" : ", OTHER BITS than in pieces",
                       all_numbers(whole) ? "" : ", NOT FINITE"));
  }
  must_be_good(bad);
}

}  // namespace kvasir::gpu_program
