// Matrix products of a model's shapes: ours, cuBLASLt's, and what the device could do at best.
#include "exec/cuda/gemm.h"

#include <algorithm>
#include <bit>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/gpu/cublaslt.h"
#include "apps/gpu/device.h"
#include "apps/gpu/floors.h"
#include "apps/gpu/parts.h"
#include "apps/gpu/samples.h"
#include "exec/cuda/synthetic.h"
#include "ops/gpu/layouts.h"

namespace kvasir::gpu_program {
namespace {

constexpr int64_t kStreamRows = 64;
// More than the L2 holds: weights are read from memory in every launch.
constexpr int64_t kRotatedBytes = int64_t{256} << 20;
constexpr double kGraphTime = 3000;  // us

std::vector<int64_t> rows_of(const Options& options) {
  if (!options.rows.empty()) return options.rows;
  return {1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 4096};
}

// Copies of one matrix of weights, each with values of its own.
struct Weights {
  Weights(const Product& product, bool image) {
    const int64_t bytes = product.features * product.k * 2;
    const int64_t copies = std::max<int64_t>(2, (kRotatedBytes + bytes - 1) / bytes);
    const Stream stream;
    for (int64_t i = 0; i < copies; ++i) {
      all.emplace_back(static_cast<size_t>(product.features * product.k));
      must((image ? cuda::fill_image : cuda::fill_rows)(all.back().data(), product.features, product.k,
                                                        kWeightSeed + static_cast<uint64_t>(i), stream.get()),
           "making weights");
    }
    stream.wait();
  }
  int copies() const { return static_cast<int>(all.size()); }
  const uint16_t* at(int launch) const { return all[static_cast<size_t>(launch % copies())].data(); }
  std::vector<DeviceArray<uint16_t>> all;
};

DeviceArray<uint16_t> make_rows(int64_t rows, int64_t k, bool image) {
  DeviceArray<uint16_t> x(static_cast<size_t>(ops::operand_elements(rows, k)));
  const Stream stream;
  must((image ? cuda::fill_image : cuda::fill_rows)(x.data(), rows, k, kRowSeed, stream.get()),
       "making rows");
  stream.wait();
  return x;
}

struct Timed {
  const Product& product;
  int64_t rows;
  std::string kernel;
  double us;
  double floor_gb_s;
  int64_t sampled;
  int64_t unequal;
  std::string detail;
};

void add(const Timed& t, Report& report) {
  const auto features = static_cast<double>(t.product.features), k = static_cast<double>(t.product.k);
  const auto rows = static_cast<double>(t.rows);
  const double bytes = 2 * (features * k + rows * k) + 4 * rows * features;
  const double tflops = 2 * features * k * rows / t.us / 1e6, gb_s = bytes / t.us / 1e3;
  report.add({{"part", "gemm"},
              {"matrix", t.product.name},
              {"features", t.product.features},
              {"k", t.product.k},
              {"rows", t.rows},
              {"kernel", t.kernel},
              {"us", t.us},
              {"tflops", tflops},
              {"gb_s", gb_s},
              {"floor_gb_s", t.floor_gb_s},
              {"of_floor", gb_s / t.floor_gb_s},
              {"sampled", t.sampled},
              {"unequal", t.unequal},
              {"detail", t.detail}},
             text_of("%-8s %5lld rows  %-22s %9.2f us %7.1f TFLOP/s %7.1f GB/s %5.1f %% of reads  %s%s",
                     t.product.name, static_cast<long long>(t.rows), t.kernel.c_str(), t.us, tflops, gb_s,
                     100 * gb_s / t.floor_gb_s,
                     t.unequal == 0 ? "bits ok"
                                    : text_of("%lld of %lld differ", static_cast<long long>(t.unequal),
                                              static_cast<long long>(t.sampled))
                                          .c_str(),
                     t.detail.empty() ? "" : (", " + t.detail).c_str()));
}

// Runs it once into poisoned memory and compares samples; returns how many differ.
template <typename Launch>
int64_t wrong_samples(const Product& product, int64_t rows, DeviceArray<float>& y, const Stream& stream,
                      const Launch& launch) {
  must(cudaMemset(y.data(), 0xFF, y.bytes()), "cudaMemset");
  must(cudaDeviceSynchronize(), "cudaMemset");
  launch(0, y.data());
  stream.wait();
  return wrong_outputs(product, rows, kSampledOutputs, [&](int64_t index) {
    float value = 0;
    must(cudaMemcpy(&value, y.data() + index, sizeof value, cudaMemcpyDeviceToHost), "reading an output");
    return value;
  });
}

ops::gpu::GemmArgs args_of(const Product& product, const uint16_t* w, const uint16_t* x, float* y,
                           int64_t rows) {
  return {.weights = w,
          .x = x,
          .out = y,
          .out_stride = product.features,
          .rows = static_cast<int32_t>(rows),
          .n = static_cast<int32_t>(product.features),
          .k = static_cast<int32_t>(product.k),
          .accumulate = 0,
          .tile = 0};
}

template <typename MakeLaunch>
void measure_ours(const Options& options, Report& report, bool few, const MakeLaunch& each_kernel) {
  const double floor = read_floor_gb_s();
  const int sms = multiprocessors();
  int bad = 0;
  for (const Product& product : products_of(options.shape)) {
    const Weights weights(product, true);
    for (const int64_t rows : rows_of(options)) {
      if (few != (rows <= kStreamRows)) continue;
      const DeviceArray<uint16_t> x = make_rows(rows, product.k, true);
      DeviceArray<float> y(static_cast<size_t>(rows * product.features));
      const Stream stream;
      const auto args = [&](int i) { return args_of(product, weights.at(i), x.data(), y.data(), rows); };
      each_kernel(args(0), sms, [&](const std::string& name, auto run) {
        const auto launch = [&](int i, float*) { must(run(args(i), stream.get()), name.c_str()); };
        const int64_t wrong = wrong_samples(product, rows, y, stream, launch);
        const double us = graph_us(stream, kGraphTime, weights.copies(), [&](int i) { launch(i, nullptr); });
        add({product, rows, name, us, floor, kSampledOutputs, wrong, ""}, report);
        bad += wrong > 0 ? 1 : 0;
      });
    }
  }
  if (bad > 0) throw std::runtime_error(text_of("%d products have wrong outputs", bad));
}

}  // namespace

std::vector<Product> products_of(const std::string& shape) {
  if (shape == "llama-3-8b") {
    return {{"qkv", 6144, 4096},
            {"o", 4096, 4096},
            {"gate_up", 28672, 4096},
            {"down", 4096, 14336},
            {"lm_head", 128256, 4096}};
  }
  throw std::runtime_error("no shape is called " + shape);
}

void bench_gemm_stream(const Options& options, Report& report) {
  measure_ours(options, report, true, [](const ops::gpu::GemmArgs&, int sms, const auto& measure) {
    for (const bool overlaps : {false, true}) {
      measure(overlaps ? "stream overlapping" : "stream",
              [sms, overlaps](const ops::gpu::GemmArgs& args, cudaStream_t stream) {
                return cuda::gemm_stream(args, sms, overlaps, stream);
              });
    }
  });
}

void bench_gemm_wide(const Options& options, Report& report) {
  measure_ours(options, report, false, [](const ops::gpu::GemmArgs& example, int sms, const auto& measure) {
    const cuda::WideTileShape chosen = cuda::choose_tile(example, sms);
    for (const cuda::WideTileShape& tile : cuda::wide_tiles()) {
      if (!cuda::fits(tile, example)) continue;
      const bool is_chosen =
          tile.features == chosen.features && tile.tokens == chosen.tokens && tile.cluster == chosen.cluster;
      measure(text_of("wide %dx%d c%d%s", tile.features, tile.tokens, tile.cluster, is_chosen ? " *" : ""),
              [sms, tile](const ops::gpu::GemmArgs& args, cudaStream_t stream) {
                return cuda::gemm_wide(args, tile, sms, stream);
              });
    }
  });
}

#if !__has_include(<cublasLt.h>)
void bench_gemm_cublaslt(const Options&, Report& report) {
  const char* why = "not compared with cuBLASLt: cublasLt.h was not there when this was built";
  report.add({{"part", "gemm"}, {"note", why}}, why);
}
#else
// Its sums have another order, so what differs from the chain is counted and is no failure.
void bench_gemm_cublaslt(const Options& options, Report& report) {
  constexpr int kAlgorithms = 8;
  const CublasLt library;
  report.add({{"part", "gemm"}, {"cublaslt", library.path()}, {"version", library.version()}},
             text_of("cuBLASLt %zu from %s", library.version(), library.path().c_str()));
  const double floor = read_floor_gb_s();
  const DeviceArray<uint8_t> workspace(CublasLt::Plan::kWorkspaceBytes);
  for (const Product& product : products_of(options.shape)) {
    const Weights weights(product, false);
    for (const int64_t rows : rows_of(options)) {
      const DeviceArray<uint16_t> x = make_rows(rows, product.k, false);
      DeviceArray<float> y(static_cast<size_t>(rows * product.features));
      const Stream stream;
      const auto plan = library.plan(product.features, product.k, rows, kAlgorithms);
      int best = 0;
      double best_us = 0, first_us = 0;
      for (int algorithm = 0; algorithm < plan->algorithms(); ++algorithm) {
        const auto launch = [&](int i) {
          plan->run(algorithm, weights.at(i), x.data(), y.data(), workspace.data(), stream.get());
        };
        const double us =
            graph_us(stream, algorithm == 0 ? kGraphTime : kGraphTime / 4, weights.copies(), launch);
        if (algorithm == 0) first_us = us;
        if (algorithm == 0 || us < best_us) {
          best = algorithm;
          best_us = us;
        }
      }
      const auto wrong = [&](int algorithm) {
        return wrong_samples(product, rows, y, stream, [&](int, float* to) {
          plan->run(algorithm, weights.at(0), x.data(), to, workspace.data(), stream.get());
        });
      };
      if (plan->algorithms() == 0) {
        report.add({{"part", "gemm"}, {"matrix", product.name}, {"rows", rows}, {"error", "no algorithm"}},
                   text_of("%-8s %5lld rows: cuBLASLt knows no algorithm", product.name,
                           static_cast<long long>(rows)));
        continue;
      }
      add({product, rows, "cublaslt", first_us, floor, kSampledOutputs, wrong(0), plan->describe(0)}, report);
      if (best != 0) {
        add({product, rows, "cublaslt best of 8", best_us, floor, kSampledOutputs, wrong(best),
             plan->describe(best)},
            report);
      }
    }
  }
}

#endif

// All products of a model, one after another, with the weights of every layer: what a step of decoding cannot
// do without.
void bench_decode(const Options& options, Report& report) {
  constexpr int kLayers = 32;
  const double floor = read_floor_gb_s();
  const int sms = multiprocessors();
  std::vector<Product> products = products_of(options.shape);
  const Product head = products.back();
  products.pop_back();
  struct Placed {
    Product product;
    DeviceArray<uint16_t> weights;
  };
  std::vector<Placed> all;
  const Stream stream;
  int64_t bytes = 0, widest = 0, deepest = 0;
  const auto place = [&](const Product& product) {
    all.push_back({product, DeviceArray<uint16_t>(static_cast<size_t>(product.features * product.k))});
    must(cuda::fill_image(all.back().weights.data(), product.features, product.k, all.size(), stream.get()),
         "making weights");
    bytes += product.features * product.k * 2;
    widest = std::max(widest, product.features);
    deepest = std::max(deepest, product.k);
  };
  for (int layer = 0; layer < kLayers; ++layer) {
    for (const Product& product : products) place(product);
  }
  place(head);
  for (const int64_t rows : {int64_t{1}, int64_t{8}, int64_t{16}, int64_t{32}, int64_t{64}}) {
    const DeviceArray<uint16_t> x = make_rows(rows, deepest, true);
    const DeviceArray<float> y(static_cast<size_t>(rows * widest));
    for (const bool overlaps : {false, true}) {
      const double us = graph_us(stream, 1, 1, [&](int) {
        for (const Placed& each : all) {
          must(cuda::gemm_stream(args_of(each.product, each.weights.data(), x.data(), y.data(), rows), sms,
                                 overlaps, stream.get()),
               "gemm_stream");
        }
      });
      const double gb_s = static_cast<double>(bytes) / us / 1e3;
      report.add({{"part", "decode-products"},
                  {"rows", rows},
                  {"overlaps", overlaps},
                  {"bytes", bytes},
                  {"us", us},
                  {"gb_s", gb_s},
                  {"floor_gb_s", floor},
                  {"of_floor", gb_s / floor}},
                 text_of("all products of a step%s, %3lld rows  %9.1f us %7.1f GB/s %5.1f %% of reads",
                         overlaps ? ", overlapping" : "", static_cast<long long>(rows), us, gb_s,
                         100 * gb_s / floor));
    }
  }
}

}  // namespace kvasir::gpu_program
