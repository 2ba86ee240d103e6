// The simulated machine itself: it must find what a GPU would not tell.
#include "simt/simt.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>
#include <set>
#include <vector>

namespace kvasir::simt {
namespace {

using namespace ops::gpu;

template <typename Kernel>
std::string failure(const Launch& how, const Kernel& kernel) {
  try {
    launch(how, kernel);
  } catch (const SimtError& e) {
    return e.what();
  }
  return "";
}

float* shared_floats() {
  return reinterpret_cast<float*>(shared_memory());
}

TEST(Simt, EveryThreadOfTheGridRunsOnce) {
  std::vector<int> runs(3 * 2 * 64);
  launch({3, 2, 64, 0, 1},
         [&] { ++runs[static_cast<size_t>((block_y() * 3 + block_x()) * 64 + thread_index())]; });
  for (const int n : runs) EXPECT_EQ(n, 1);
}

TEST(Simt, ThreadsRunInAnOrderThatTheSeedChooses) {
  std::set<std::vector<int>> orders;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<int> order;
    launch({1, 1, 64, 0, seed}, [&] { order.push_back(thread_index()); });
    orders.insert(order);
  }
  EXPECT_EQ(orders.size(), 8U);
}

TEST(Simt, SharedMemoryIsNoNumberAtFirst) {
  bool is_number = true;
  launch({1, 1, 32, 256, 1}, [&] { is_number = !std::isnan(shared_floats()[thread_index()]); });
  EXPECT_FALSE(is_number);
}

// Each thread reads what another one has written.
TEST(Simt, AMissingBarrierShows) {
  const auto wrong = [](bool syncs, uint64_t seed) {
    bool some = false;
    launch({1, 1, 128, 512, seed}, [&] {
      shared_floats()[thread_index()] = static_cast<float>(thread_index());
      if (syncs) sync_block();
      if (shared_floats()[127 - thread_index()] != static_cast<float>(127 - thread_index())) some = true;
    });
    return some;
  };
  for (uint64_t seed = 0; seed < 10; ++seed) {
    EXPECT_FALSE(wrong(true, seed));
    EXPECT_TRUE(wrong(false, seed));
  }
}

TEST(Simt, ThreadsThatWaitForEachOther) {
  EXPECT_EQ(failure({1, 1, 64, 0, 1},
                    [] {
                      if (warp_index() == 0) sync_block();
                    }),
            "all threads wait: warp 0 for a barrier; warp 1 has ended;");
  EXPECT_EQ(failure({1, 1, 64, 0, 1}, [] { sync_block(); }), "");
}

TEST(Simt, RowsOfMatricesAreAligned) {
  const auto read_at = [](size_t offset) {
    return failure({1, 1, 32, 32 * 16 + 8, 1}, [offset] {
      uint32_t out[4];
      load_matrices(shared_memory() + static_cast<size_t>(lane_index()) * 16 + offset, out);
    });
  };
  EXPECT_EQ(read_at(0), "");
  EXPECT_EQ(read_at(8), "a row of a matrix that is not at a multiple of 16 bytes");
}

TEST(Simt, LanesThatPart) {
  EXPECT_EQ(failure({1, 1, 32, 0, 1},
                    [] {
                      if (lane_index() < 16) {
                        sync_warp();
                      } else {
                        shuffle_xor(1, 1);
                      }
                    }),
            "lanes of a warp do different things");
}

TEST(Simt, Shuffles) {
  launch({1, 1, 64, 0, 1}, [] {
    const int lane = lane_index();
    EXPECT_EQ(shuffle_xor(lane, 5), lane ^ 5);
    EXPECT_EQ(shuffle_xor(static_cast<float>(lane), 16), static_cast<float>(lane ^ 16));
  });
}

// A copy that has begun is garbage until it is waited for, and takes its bytes at the end.
TEST(Simt, CopiesLandLate) {
  int garbage = 0;
  for (uint64_t seed = 0; seed < 8; ++seed) {
    std::vector<float> from(32, 1);
    launch({1, 1, 32, 256, seed}, [&] {
      auto* barrier = reinterpret_cast<CopyBarrier*>(shared_memory() + 128);
      if (thread_index() == 0) {
        barrier_init(barrier, 1);
        shared_floats()[0] = 5;
        barrier_arrive_expecting(barrier, 128);
        copy_to_shared(shared_memory(), from.data(), 128, barrier);
        if (std::isnan(shared_floats()[0])) ++garbage;
        from[7] = 2;
      }
      sync_warp();
      barrier_wait(barrier, 0);
      EXPECT_EQ(shared_floats()[thread_index()], thread_index() == 7 ? 2 : 1);
    });
  }
  EXPECT_EQ(garbage, 8);
}

TEST(Simt, WrongCopies) {
  std::vector<float> from(64);
  const auto with = [&](const auto& act) {
    return failure({1, 1, 32, 256, 1}, [&] {
      auto* barrier = reinterpret_cast<CopyBarrier*>(shared_memory() + 128);
      if (thread_index() == 0) act(barrier);
    });
  };
  EXPECT_EQ(with([&](CopyBarrier* b) { copy_to_shared(shared_memory(), from.data(), 16, b); }),
            "a copy barrier that is not made yet");
  EXPECT_EQ(with([&](CopyBarrier* b) {
              barrier_init(b, 1);
              copy_to_shared(shared_memory() + 4, from.data(), 16, b);
            }),
            "a copy that is not of whole 16 bytes");
  EXPECT_EQ(with([&](CopyBarrier* b) {
              barrier_init(b, 1);
              copy_to_shared(shared_memory(), from.data(), 16, b);
            }),
            "a block has ended before a copy that it began");
  EXPECT_EQ(with([&](CopyBarrier* b) {
              barrier_init(b, 1);
              barrier_arrive_expecting(b, 32);
              copy_to_shared(shared_memory(), from.data(), 16, b);
              barrier_wait(b, 0);
            }),
            "all threads wait: warp 0 for a copy;");
}

// c[i][j] = 10 i + j is what comes out of the lanes if a and b are one row and one column of an identity.
TEST(Simt, MatricesAndTheFusedStep) {
  // a[i][k] = i + 1 at k = 3 alone, b[k][j] = 2 j + 1 at k = 3 alone.
  std::vector<uint16_t> a(16 * 16), b(16 * 16);
  const auto bf16 = [](int x) { return ops::round_bf16(static_cast<float>(x)); };
  for (int i = 0; i < 16; ++i) a[static_cast<size_t>(16 * i + 3)] = bf16(i + 1);
  for (int j = 0; j < 8; ++j) b[static_cast<size_t>(16 * 3 + j)] = bf16(2 * j + 1);
  launch({1, 1, 32, 1024, 1}, [&] {
    auto* shared = reinterpret_cast<uint16_t*>(shared_memory());
    for (int i = lane_index(); i < 256; i += kWarp) {
      shared[i] = a[static_cast<size_t>(i)];
      shared[256 + i] = b[static_cast<size_t>(i)];
    }
    sync_warp();
    const int lane = lane_index();
    uint32_t of_a[4], of_b[4];
    load_matrices(shared + lane % 16 * 16 + lane / 16 * 8, of_a);
    load_matrices_transposed(shared + 256 + lane % 16 * 16 + lane / 16 * 8, of_b);
    float c[4] = {0.5F, 0.5F, 0.5F, 0.5F};
    fused_step(c, of_a, of_b[0], of_b[1]);
    for (int i = 0; i < 4; ++i) {
      const int row = lane / 4 + i / 2 * 8, column = lane % 4 * 2 + i % 2;
      EXPECT_EQ(c[i], 0.5F + static_cast<float>((row + 1) * (2 * column + 1)));
    }
  });
}

}  // namespace
}  // namespace kvasir::simt
