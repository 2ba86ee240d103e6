// Attention over leaves of K and V in blocks: decoding of several sequences, and prefill of one.
#include <algorithm>
#include <nlohmann/json.hpp>

#include "apps/gpu/device.h"
#include "apps/gpu/floors.h"
#include "apps/gpu/parts.h"
#include "exec/cuda/launch.h"
#include "exec/cuda/synthetic.h"
#include "ops/gpu/layouts.h"
#include "ops/gpu/leaf_work.h"

namespace kvasir::gpu_program {
namespace {

constexpr int kHeads = 32, kKvHeads = 8, kHeadDim = 128, kBlockTokens = 64;
constexpr size_t kBlockBytes = size_t{kKvHeads} * kBlockTokens * kHeadDim * 2;  // of K, or of V
constexpr size_t kRotatedLeafBytes = size_t{256} << 20;

// Sequences of `context` positions of which the last `rows` are computed, and as many layers as keep the L2
// cold.
class Attention {
 public:
  Attention(int sequences, int context, int rows_each, int most_rows)
      : sequences_(sequences),
        blocks_((context + kBlockTokens - 1) / kBlockTokens),
        layer_bytes_(static_cast<size_t>(sequences) * static_cast<size_t>(blocks_) * 2 * kBlockBytes),
        most_rows_(most_rows),
        layers_(static_cast<int>(std::max<size_t>(1, (kRotatedLeafBytes + layer_bytes_ - 1) / layer_bytes_))),
        rows_(make_rows(context, rows_each)),
        plan_(ops::gpu::plan_leaves(rows_, 0, most_rows)),
        memory_(static_cast<size_t>(layers_) * layer_bytes_ / 2),
        table_(on_device(make_table())),
        slices_(on_device(make_slices())),
        device_rows_(on_device(rows_)),
        work_(on_device(plan_.work)),
        q_(rows_.size() * kHeads * kHeadDim),
        partials_(static_cast<size_t>(plan_.records) * kHeads * (2 + kHeadDim)),
        image_(static_cast<size_t>(
            ops::operand_elements(static_cast<int64_t>(rows_.size()), kHeads * kHeadDim))) {
    must(cuda::fill_rows(memory_.data(), static_cast<int64_t>(memory_.count() / 1024), 1024, 1, nullptr),
         "K and V");
    must(cuda::fill_rows(q_.data(), static_cast<int64_t>(rows_.size()), kHeads * kHeadDim, 2, nullptr), "Q");
    must(cudaDeviceSynchronize(), "operands");
  }

  int layers() const { return layers_; }
  double layer_bytes() const { return static_cast<double>(layer_bytes_); }

  void leaf(int call, cudaStream_t stream) const {
    must_launch(cuda::launch(ops::gpu::LeafArgs{.work = work_.data(),
                                                .q = q_.data(),
                                                .rows = device_rows_.data(),
                                                .partials = partials_.data(),
                                                .kv = kv(call),
                                                .heads = kHeads,
                                                .window = 0,
                                                .cap = {},
                                                .count = static_cast<int32_t>(plan_.work.size()),
                                                .most_rows = most_rows_,
                                                .most_blocks = 0},
                             stream));
  }
  void merge(cudaStream_t stream) const {
    must_launch(cuda::launch(ops::gpu::MergeArgs{.partials = partials_.data(),
                                                 .rows = device_rows_.data(),
                                                 .slices = slices_.data(),
                                                 .image = image_.data(),
                                                 .heads = kHeads,
                                                 .head_dim = kHeadDim,
                                                 .window = 0,
                                                 .count = static_cast<int32_t>(rows_.size())},
                             stream));
  }

 private:
  std::vector<ops::gpu::RowPlace> make_rows(int context, int rows_each) const {
    std::vector<ops::gpu::RowPlace> rows;
    for (int sequence = 0; sequence < sequences_; ++sequence) {
      for (int i = context - rows_each; i < context; ++i) {
        rows.push_back({.token = 0,
                        .position = static_cast<uint32_t>(i),
                        .slice = static_cast<uint32_t>(sequence),
                        .query_factor = 1,
                        .first_record = 0});
      }
    }
    return rows;
  }
  std::vector<ops::gpu::KvPlace> make_table() const {
    std::vector<ops::gpu::KvPlace> table;
    for (size_t block = 0; block < static_cast<size_t>(sequences_) * static_cast<size_t>(blocks_); ++block) {
      table.push_back({.k = block * 2 * kBlockBytes, .v = (block * 2 + 1) * kBlockBytes});
    }
    return table;
  }
  std::vector<ops::gpu::SlicePlace> make_slices() const {
    std::vector<ops::gpu::SlicePlace> slices;
    for (int sequence = 0; sequence < sequences_; ++sequence) {
      slices.push_back({.table = table_.data() + static_cast<ptrdiff_t>(sequence) * blocks_,
                        .staged_begin = 0,
                        .staged_end = 0,
                        .first_staged = 0,
                        .left_out = 0});
    }
    return slices;
  }
  ops::gpu::KvLayer kv(int call) const {
    auto* memory = reinterpret_cast<std::byte*>(memory_.data());
    return {.memory = memory + static_cast<size_t>(call % layers_) * layer_bytes_,
            .slices = slices_.data(),
            .staged = nullptr,
            .groups = 1,
            .group = 0,
            .layer = 0,
            .block_tokens = kBlockTokens,
            .layer_offset = 0,
            .kv_heads = kKvHeads,
            .head_dim = kHeadDim};
  }

  int sequences_;
  int blocks_;  // of a sequence
  size_t layer_bytes_;
  int most_rows_;
  int layers_;
  std::vector<ops::gpu::RowPlace> rows_;
  ops::gpu::LeafPlan plan_;
  DeviceArray<uint16_t> memory_;
  DeviceArray<ops::gpu::KvPlace> table_;
  DeviceArray<ops::gpu::SlicePlace> slices_;
  DeviceArray<ops::gpu::RowPlace> device_rows_;
  DeviceArray<ops::gpu::LeafWork> work_;
  DeviceArray<uint16_t> q_;
  DeviceArray<float> partials_;
  DeviceArray<uint16_t> image_;
};

struct Times {
  double leaf_us;
  double both_us;
};

Times times_of(const Attention& attention) {
  const Stream stream;
  const double leaf =
      graph_us(stream, 3000, attention.layers(), [&](int i) { attention.leaf(i, stream.get()); });
  const double both = graph_us(stream, 3000, attention.layers(), [&](int i) {
    attention.leaf(i, stream.get());
    attention.merge(stream.get());
  });
  return {leaf, both};
}

}  // namespace

void bench_leaf(const Options&, Report& report) {
  const double floor = read_floor_gb_s();
  struct Decode {
    int batch, context;
  };
  for (const Decode& each :
       {Decode{1, 8192}, Decode{8, 8192}, Decode{32, 8192}, Decode{64, 2048}, Decode{1, 65536}}) {
    const Attention attention(each.batch, each.context, 1, 1);
    const Times times = times_of(attention);
    const double gb_s = attention.layer_bytes() / times.both_us / 1e3;
    report.add({{"part", "leaf"},
                {"what", "decode"},
                {"batch", each.batch},
                {"keys", each.context},
                {"leaf_us", times.leaf_us},
                {"us", times.both_us},
                {"gb_s", gb_s},
                {"of_floor", gb_s / floor}},
               text_of("decode, %2d sequences of %5d: leaves %8.2f us, with merge %8.2f us, %7.1f GB/s, "
                       "%5.1f %% of reads",
                       each.batch, each.context, times.leaf_us, times.both_us, gb_s, 100 * gb_s / floor));
  }
}

void bench_prefill(const Options&, Report& report) {
  for (const int rows : {1024, 4096, 16384}) {
    for (const int most_rows : {4, 32, 64, 128}) {
      const Attention attention(1, rows, rows, most_rows);
      const Times times = times_of(attention);
      const double tflops = 4.0 * kHeads * kHeadDim * rows * (rows + 1) / 2 / times.both_us / 1e6;
      report.add(
          {{"part", "leaf"},
           {"what", "prefill"},
           {"keys", rows},
           {"rows_of_a_piece", most_rows},
           {"leaf_us", times.leaf_us},
           {"us", times.both_us},
           {"tflops", tflops}},
          text_of("prefill of %5d, %3d rows a piece: leaves %9.2f us, with merge %9.2f us, %6.1f TFLOP/s",
                  rows, most_rows, times.leaf_us, times.both_us, tflops));
    }
  }
}

}  // namespace kvasir::gpu_program
