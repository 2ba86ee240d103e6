#include "exec/gpu/product_check.h"

#include <algorithm>
#include <bit>
#include <memory>
#include <optional>
#include <vector>

#include "base/random.h"
#include "ops/gpu/fused16.h"
#include "ops/gpu/layouts.h"

namespace kvasir {
namespace {

// So long that the ring of a kernel of many rows begins anew.
constexpr int32_t kK = 5 * ops::kTileK;

// [rows][kK] in bf16, of magnitudes from 2^-24 to 2^4, so that summands are cut.
std::vector<uint16_t> values(int32_t rows, Random& random) {
  std::vector<uint16_t> out(static_cast<size_t>(rows) * kK);
  for (uint16_t& value : out) {
    const uint64_t bits = random.bits();
    value = static_cast<uint16_t>((bits & 0x807F) | (103 + (bits >> 16) % 29) << 7);
  }
  return out;
}

// Weights repeat themselves after so many features: no multiple of what a warp, a block or a turn of it
// takes.
constexpr int32_t kFeatures = 7 * ops::kTileRows;

// What products of the first rows and features give, whatever the kernel.
class Expected {
 public:
  explicit Expected(int32_t rows) : rows_(rows) {
    Random random(1);
    weights_ = values(kFeatures, random);
    x_ = values(rows, random);
    for (int32_t r = 0; r < rows; ++r) {
      for (int32_t j = 0; j < kFeatures; ++j) {
        float sum = 0;
        for (int32_t k = 0; k < kK; k += ops::kFusedProducts) {
          sum = ops::fused16(sum, x_.data() + int64_t{r} * kK + k, weights_.data() + int64_t{j} * kK + k);
        }
        out_.push_back(std::bit_cast<uint32_t>(sum));
      }
    }
  }
  int32_t rows() const { return rows_; }
  // Images of operands; the one of weights goes to a multiple of kFeatures.
  void pack_x(uint16_t* to) const { ops::pack_operand(x_.data(), kK, rows_, kK, to); }
  void pack_weights(int32_t features, uint16_t* to) const {
    for (int32_t first = 0; first < features; first += kFeatures) {
      ops::pack_operand(weights_.data(), kK, kFeatures, kK, to + ops::operand_elements(first, kK));
    }
  }
  // How many of these outputs differ.
  int64_t count_wrong(const Gpu::ProductCase& product, const uint32_t* out) const {
    int64_t wrong = 0;
    for (int32_t r = 0; r < product.rows; ++r) {
      const uint32_t* const right = out_.data() + int64_t{r} * kFeatures;
      const uint32_t* const got = out + int64_t{r} * product.features;
      for (int32_t j = 0; j < product.features; ++j) wrong += right[j % kFeatures] != got[j];
    }
    return wrong;
  }

 private:
  const int32_t rows_;
  std::vector<uint16_t> weights_, x_;
  std::vector<uint32_t> out_;
};

// On the device and in pinned memory: weights, rows, outputs of the largest product.
class Products {
 public:
  Products(Gpu& gpu, const std::vector<Gpu::ProductCase>& cases)
      : pinned_(gpu, GpuBuffer::Kind::kPinned), device_(gpu, GpuBuffer::Kind::kDevice) {
    int32_t rows = 0;
    for (const Gpu::ProductCase& product : cases) {
      rows = std::max(rows, product.rows);
      features_ = std::max(features_, product.features);
      out_bytes_ = std::max(out_bytes_, bytes_of(product));
    }
    features_ = (features_ + kFeatures - 1) / kFeatures * kFeatures;
    expected_.emplace(rows);
  }
  Status upload(GpuStream& stream) {
    const uint64_t weights = image_bytes(features_), x = image_bytes(expected_->rows());
    out_at_ = weights + x;
    KV_RETURN_IF_ERROR(pinned_.reserve(out_at_ + out_bytes_));
    KV_RETURN_IF_ERROR(device_.reserve(out_at_ + out_bytes_));
    expected_->pack_weights(features_, pinned_.data<uint16_t>());
    expected_->pack_x(reinterpret_cast<uint16_t*>(pinned_.data() + weights));
    const GpuCopy there = {device_.data(), pinned_.data(), out_at_};
    stream.copy({&there, 1});
    x_at_ = weights;
    return stream.wait();
  }
  Result<int64_t> count_wrong(GpuStream& stream, const Gpu::ProductCase& product) {
    ops::gpu::GemmArgs args = {};
    args.weights = device_.data<uint16_t>();
    args.x = reinterpret_cast<const uint16_t*>(device_.data() + x_at_);
    args.out = reinterpret_cast<float*>(device_.data() + out_at_);
    args.out_stride = args.n = product.features;
    args.rows = product.rows;
    args.k = kK;
    args.tile = product.tile;
    stream.launch(args);
    const GpuCopy back = {pinned_.data() + out_at_, device_.data() + out_at_, bytes_of(product)};
    stream.copy({&back, 1});
    KV_RETURN_IF_ERROR(stream.wait());
    return expected_->count_wrong(product, reinterpret_cast<const uint32_t*>(pinned_.data() + out_at_));
  }

 private:
  static uint64_t image_bytes(int32_t rows) {
    return static_cast<uint64_t>(ops::operand_elements(rows, kK)) * sizeof(uint16_t);
  }
  static uint64_t bytes_of(const Gpu::ProductCase& product) {
    return static_cast<uint64_t>(product.rows) * static_cast<uint64_t>(product.features) * sizeof(float);
  }

  GpuBuffer pinned_, device_;
  int32_t features_ = 0;
  uint64_t x_at_ = 0, out_at_ = 0, out_bytes_ = 0;
  std::optional<Expected> expected_;
};

}  // namespace

Status check_products(Gpu& gpu) {
  const std::vector<Gpu::ProductCase> cases = gpu.product_cases();
  Products products(gpu, cases);
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<GpuStream> stream, gpu.make_stream());
  KV_RETURN_IF_ERROR(products.upload(*stream));
  for (const Gpu::ProductCase& product : cases) {
    KV_ASSIGN_OR_RETURN(const int64_t wrong, products.count_wrong(*stream, product));
    if (wrong == 0) continue;
    return error(
        ErrorCode::kUnsupported,
        "products of {} rows on the GPU {} by {} have other bits than its numerics promise, {} of {} "
        "outputs; `kvasir-gpu check` shows more; serve with --device cpu",
        product.rows, gpu.name(), product.kernel, wrong, int64_t{product.rows} * product.features);
  }
  return {};
}

}  // namespace kvasir
