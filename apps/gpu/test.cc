// Kernels against the reference: every output, to the bit, at shapes with every kind of edge.
#include <atomic>
#include <bit>
#include <nlohmann/json.hpp>
#include <stdexcept>

#include "apps/gpu/device.h"
#include "apps/gpu/floors.h"
#include "apps/gpu/parts.h"
#include "apps/gpu/samples.h"
#include "apps/gpu/workers.h"
#include "exec/cuda/gemm.h"
#include "exec/cuda/synthetic.h"
#include "ops/gpu/layouts.h"

namespace kvasir::gpu_program {
namespace {

constexpr int64_t kGap = 24;  // values behind each row of outputs, which must stay as they are
constexpr float kUntouched = 12345;

// All outputs of the product for `rows` rows.
std::vector<float> reference_of(const Product& product, int64_t rows) {
  std::vector<float> all(static_cast<size_t>(rows * product.features));
  on_all_cores(rows, [&](int64_t row) {
    for (int64_t feature = 0; feature < product.features; ++feature) {
      all[static_cast<size_t>(row * product.features + feature)] = chained_output(product, row, feature);
    }
  });
  return all;
}

class GemmTest {
 public:
  GemmTest(const Product& product, int64_t most_rows, Report& report)
      : product_(product),
        report_(report),
        reference_(reference_of(product, most_rows)),
        weights_(static_cast<size_t>(ops::operand_elements(product.features, product.k))) {
    must(cuda::fill_image(weights_.data(), product.features, product.k, kWeightSeed, nullptr),
         "making weights");
    must(cudaDeviceSynchronize(), "making weights");
  }

  // Rows of outputs lie kGap values apart. With `accumulates`, each output was 1 before.
  template <typename Run>
  void run(const std::string& kernel, int64_t rows, bool accumulates, const Run& launch) {
    const int64_t stride = product_.features + kGap;
    DeviceArray<uint16_t> x(static_cast<size_t>(ops::operand_elements(rows, product_.k)));
    x.poison();  // rows of padding may hold anything
    must(cuda::fill_image(x.data(), rows, product_.k, kRowSeed, nullptr), "making rows");
    std::vector<float> before(static_cast<size_t>(rows * stride), kUntouched);
    if (accumulates) {
      for (int64_t i = 0; i < rows * stride; ++i) {
        if (i % stride < product_.features) before[static_cast<size_t>(i)] = 1;
      }
    }
    DeviceArray<float> out(before.size());
    out.put(before.data());
    must(launch(ops::gpu::GemmArgs{.weights = weights_.data(),
                                   .x = x.data(),
                                   .out = out.data(),
                                   .out_stride = stride,
                                   .rows = static_cast<int32_t>(rows),
                                   .n = static_cast<int32_t>(product_.features),
                                   .k = static_cast<int32_t>(product_.k),
                                   .accumulate = accumulates ? 1 : 0,
                                   .tile = 0}),
         kernel.c_str());
    must(cudaDeviceSynchronize(), kernel.c_str());
    const std::vector<float> got = out.get();
    int64_t wrong = 0, beyond = 0;
    for (int64_t i = 0; i < rows * stride; ++i) {
      const int64_t row = i / stride, feature = i % stride;
      const auto bits = std::bit_cast<uint32_t>(got[static_cast<size_t>(i)]);
      if (feature >= product_.features) {
        beyond += bits != std::bit_cast<uint32_t>(kUntouched);
        continue;
      }
      const float chain = reference_[static_cast<size_t>(row * product_.features + feature)];
      wrong += bits != std::bit_cast<uint32_t>(accumulates ? 1 + chain : chain);
    }
    ++runs_;
    if (wrong == 0 && beyond == 0) return;
    ++bad_;
    const int64_t outputs = rows * product_.features;
    report_.add(
        {{"part", "test-gemm"},
         {"kernel", kernel},
         {"features", product_.features},
         {"k", product_.k},
         {"rows", rows},
         {"accumulates", accumulates},
         {"wrong", wrong},
         {"written_beyond", beyond},
         {"outputs", outputs}},
        text_of(
            "  %s%s, %lld features, k %lld, %lld rows: of %lld outputs %lld are wrong, %lld written beyond",
            kernel.c_str(), accumulates ? ", accumulating" : "", static_cast<long long>(product_.features),
            static_cast<long long>(product_.k), static_cast<long long>(rows), static_cast<long long>(outputs),
            static_cast<long long>(wrong), static_cast<long long>(beyond)));
  }

  int runs() const { return runs_; }
  int bad() const { return bad_; }

 private:
  Product product_;
  Report& report_;
  std::vector<float> reference_;
  DeviceArray<uint16_t> weights_;
  int runs_ = 0;
  int bad_ = 0;
};

}  // namespace

void test_gemm(const Options&, Report& report) {
  const int sms = multiprocessors();
  int runs = 0, bad = 0;
  for (const Product& product :
       {Product{"", 64, 64}, Product{"", 256, 128}, Product{"", 4352, 192}, Product{"", 512, 1088},
        Product{"", 34048, 64}, Product{"", 200, 192}, Product{"", 4099, 64}, Product{"", 6144, 320}}) {
    const bool large = product.features > 8192;
    GemmTest test(product, large ? 65 : 300, report);
    for (const int64_t rows : {1, 7, 8, 9, 16, 17, 32, 33, 64}) {
      for (const bool overlaps : {false, true}) {
        test.run(
            overlaps ? "stream overlapping" : "stream", rows, overlaps,
            [&](const ops::gpu::GemmArgs& args) { return cuda::gemm_stream(args, sms, overlaps, nullptr); });
      }
    }
    for (const int64_t rows : {1, 64, 65, 128, 129, 257, 300}) {
      if (large && rows > 65) continue;
      for (const cuda::WideTileShape& tile : cuda::wide_tiles()) {
        const ops::gpu::GemmArgs example{.weights = nullptr,
                                         .x = nullptr,
                                         .out = nullptr,
                                         .out_stride = 0,
                                         .rows = 0,
                                         .n = static_cast<int32_t>(product.features),
                                         .k = static_cast<int32_t>(product.k),
                                         .accumulate = 0,
                                         .tile = 0};
        if (!cuda::fits(tile, example)) continue;
        test.run(text_of("wide %dx%d c%d", tile.features, tile.tokens, tile.cluster), rows, rows % 2 == 0,
                 [&](const ops::gpu::GemmArgs& args) { return cuda::gemm_wide(args, tile, sms, nullptr); });
      }
    }
    runs += test.runs();
    bad += test.bad();
  }
  report.add({{"part", "test-gemm"}, {"runs", runs}, {"bad", bad}},
             text_of("products: %d runs of kernels, %d with a wrong output", runs, bad));
  if (bad > 0) throw std::runtime_error("some outputs differ from the reference");
}

}  // namespace kvasir::gpu_program
