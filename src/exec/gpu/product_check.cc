#include "exec/gpu/product_check.h"

#include <bit>
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

// How many outputs of weights and rows differ.
int64_t count_wrong(const std::vector<uint16_t>& weights, const std::vector<uint16_t>& x, const float* out) {
  const size_t features = weights.size() / kK;
  int64_t wrong = 0;
  for (size_t r = 0; r < x.size() / kK; ++r) {
    for (size_t j = 0; j < features; ++j) {
      float sum = 0;
      for (size_t k = 0; k < kK; k += ops::kFusedProducts) {
        sum = ops::fused16(sum, x.data() + r * kK + k, weights.data() + j * kK + k);
      }
      const float got = out[r * features + j];
      wrong += std::bit_cast<uint32_t>(sum) != std::bit_cast<uint32_t>(got);
    }
  }
  return wrong;
}

// In one piece of memory, of the device or pinned: weights, rows, outputs.
struct Places {
  explicit Places(const Gpu::ProductTile& tile)
      : x(image_bytes(tile.features)),
        out(x + image_bytes(tile.rows)),
        bytes(out + static_cast<uint64_t>(tile.rows) * static_cast<uint64_t>(tile.features) * sizeof(float)) {
  }
  static uint64_t image_bytes(int32_t rows) {
    return static_cast<uint64_t>(ops::operand_elements(rows, kK)) * sizeof(uint16_t);
  }
  uint64_t x, out, bytes;
};

// number: of the tile.
Result<int64_t> wrong_outputs(Gpu& gpu, const Gpu::ProductTile& tile, int32_t number) {
  Random random(static_cast<uint64_t>(number));
  const std::vector<uint16_t> weights = values(tile.features, random), x = values(tile.rows, random);
  const Places at(tile);
  GpuBuffer pinned(gpu, GpuBuffer::Kind::kPinned), device(gpu, GpuBuffer::Kind::kDevice);
  KV_RETURN_IF_ERROR(pinned.reserve(at.bytes));
  KV_RETURN_IF_ERROR(device.reserve(at.bytes));
  ops::pack_operand(weights.data(), kK, tile.features, kK, pinned.data<uint16_t>());
  ops::pack_operand(x.data(), kK, tile.rows, kK, reinterpret_cast<uint16_t*>(pinned.data() + at.x));
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<GpuStream> stream, gpu.make_stream());
  const GpuCopy there = {device.data(), pinned.data(), at.out};
  stream->copy({&there, 1});
  ops::gpu::GemmArgs args = {};
  args.weights = device.data<uint16_t>();
  args.x = reinterpret_cast<const uint16_t*>(device.data() + at.x);
  args.out = reinterpret_cast<float*>(device.data() + at.out);
  args.out_stride = args.n = tile.features;
  args.rows = tile.rows;
  args.k = kK;
  args.tile = number;
  stream->launch(args);
  const GpuCopy back = {pinned.data() + at.out, device.data() + at.out, at.bytes - at.out};
  stream->copy({&back, 1});
  KV_RETURN_IF_ERROR(stream->wait());
  return count_wrong(weights, x, reinterpret_cast<const float*>(pinned.data() + at.out));
}

}  // namespace

Status check_products(Gpu& gpu) {
  int32_t number = 0;
  for (const Gpu::ProductTile& tile : gpu.product_tiles()) {
    KV_ASSIGN_OR_RETURN(const int64_t wrong, wrong_outputs(gpu, tile, ++number));
    if (wrong == 0) continue;
    return error(ErrorCode::kUnsupported,
                 "products of {} rows on the GPU {} have other bits than its numerics promise, {} of {} "
                 "outputs; `kvasir-gpu check` shows more; serve with --device cpu",
                 tile.rows, gpu.name(), wrong, tile.rows * tile.features);
  }
  return {};
}

}  // namespace kvasir
