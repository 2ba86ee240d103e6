// Kernels on the simulated machine, and what their tests share. With KVASIR_ON_DEVICE the same tests run on
// the device, without those of planted faults.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <limits>
#include <span>
#include <vector>

#include "base/random.h"
#include "ops/gpu/kernel_args.h"
#include "ops/gpu/layouts.h"
#include "ops/numerics.h"

#if defined(KVASIR_ON_DEVICE)
#include "exec/cuda/launch.h"
#else
#include "ops/gpu/kernels/choose.h"
#include "simt/simt.h"
#endif

namespace kvasir::simt {

#if defined(KVASIR_ON_DEVICE)
// Null: all that was queued is done. Else what went wrong.
const char* wait_for_device();

// Queues a kernel and waits for it.
template <typename Args>
void run(const Args& args, uint64_t) {
  const char* wrong = cuda::launch(args, nullptr);
  ASSERT_EQ(wrong, nullptr) << wrong;
  wrong = wait_for_device();
  ASSERT_EQ(wrong, nullptr) << wrong;
}
#else
// As exec/cuda/launch.h does on a device.
template <typename Args>
void run(const Args& args, uint64_t seed) {
  ops::gpu::choose(args, [&](auto kernel) {
    using Kernel = decltype(kernel);
    const ops::gpu::Shape shape = Kernel::shape(args);
    ASSERT_LE(shape.threads, Kernel::kThreads);
    ASSERT_LE(shape.shared_bytes, 227 << 10) << "more shared memory than a block can have";
    launch({shape.grid_x, shape.grid_y, shape.threads, static_cast<size_t>(shape.shared_bytes), seed},
           [&] { Kernel::run(args); });
  });
}
#endif

// What a kernel must write is at first no number.
inline std::vector<float> unwritten(int64_t n) {
  return std::vector<float>(static_cast<size_t>(n), std::numeric_limits<float>::quiet_NaN());
}
inline std::vector<uint16_t> unwritten_bf16(int64_t n) {
  return std::vector<uint16_t>(static_cast<size_t>(n), 0xFFFF);
}

// In [-scale, scale], of changing magnitude, so that sums cancel and are cut.
inline float random_value(Random& random, float scale = 1) {
  const auto magnitude = static_cast<float>(std::exp2(-static_cast<double>(random.below(6))));
  return static_cast<float>(2 * random.unit() - 1) * scale * magnitude;
}
inline std::vector<float> random_values(Random& random, int64_t n, float scale = 1) {
  std::vector<float> out(static_cast<size_t>(n));
  for (float& x : out) x = random_value(random, scale);
  return out;
}
inline std::vector<uint16_t> random_bf16(Random& random, int64_t n, float scale = 1) {
  std::vector<uint16_t> out(static_cast<size_t>(n));
  for (uint16_t& x : out) x = ops::f32_to_bf16(random_value(random, scale));
  return out;
}

// An image whose rows of padding are no numbers.
inline std::vector<uint16_t> image_of(std::span<const uint16_t> rows, int64_t count, int64_t k) {
  std::vector<uint16_t> image(static_cast<size_t>(ops::operand_elements(count, k)));
  ops::pack_operand(rows.data(), k, count, k, image.data());
  const int64_t k_tiles = (k + ops::kTileK - 1) / ops::kTileK;
  for (int64_t r = count; r % ops::kTileRows != 0; ++r) {
    for (int64_t i = 0; i < k_tiles * ops::kTileK; ++i) {
      image[static_cast<size_t>(ops::operand_offset(r, i, k_tiles))] = 0xFFFF;
    }
  }
  return image;
}
// The rows of an image, [count][k]; the padding of k must be +0.
inline std::vector<uint16_t> rows_of(std::span<const uint16_t> image, int64_t count, int64_t k) {
  std::vector<uint16_t> rows(static_cast<size_t>(count * k));
  const int64_t k_tiles = (k + ops::kTileK - 1) / ops::kTileK;
  for (int64_t r = 0; r < count; ++r) {
    for (int64_t i = 0; i < k_tiles * ops::kTileK; ++i) {
      const uint16_t x = image[static_cast<size_t>(ops::operand_offset(r, i, k_tiles))];
      if (i < k) {
        rows[static_cast<size_t>(r * k + i)] = x;
      } else {
        EXPECT_EQ(x, 0) << "padding at row " << r << ", " << i;
      }
    }
  }
  return rows;
}

template <typename T>
bool same_bits(std::span<const T> a, std::span<const T> b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size_bytes()) == 0;
}
// Where two arrays differ first, for a message.
template <typename T>
std::string difference(const std::vector<T>& got, const std::vector<T>& want) {
  if (got.size() != want.size()) return "sizes differ";
  size_t count = 0, first = 0;
  for (size_t i = got.size(); i-- > 0;) {
    if (std::memcmp(&got[i], &want[i], sizeof(T)) == 0) continue;
    ++count;
    first = i;
  }
  if (count == 0) return "";
  return std::to_string(count) + " of " + std::to_string(got.size()) + " differ, the first at " +
         std::to_string(first) + ": " + std::to_string(got[first]) + " instead of " +
         std::to_string(want[first]);
}

}  // namespace kvasir::simt
