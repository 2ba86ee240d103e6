// What happens to single rows, on the simulated machine.
#include "ops/gpu/reference.h"
#include "simt/kernels.h"

namespace kvasir::simt {
namespace {

using ops::gpu::NormOf;

constexpr float kEpsilon = 1e-5F;

ops::reference::Norm reference_of(const ops::gpu::NormArgs& norm) {
  const auto kind =
      norm.kind == NormOf::kLayer ? ops::reference::NormKind::kLayer : ops::reference::NormKind::kRms;
  return {kind, norm.kind == NormOf::kNone ? nullptr : norm.weight, norm.bias, norm.epsilon};
}

struct Norms {
  std::vector<float> weight, bias;
  std::vector<ops::gpu::NormArgs> all;

  Norms(Random& random, int n) : weight(random_values(random, n)), bias(random_values(random, n)) {
    all = {{NormOf::kNone, 0, nullptr, nullptr},
           {NormOf::kRms, kEpsilon, weight.data(), nullptr},
           {NormOf::kLayer, kEpsilon, weight.data(), bias.data()},
           {NormOf::kLayer, kEpsilon, weight.data(), nullptr}};
  }
};

TEST(RowKernels, NormsBecomeOperands) {
  for (const int n : {16, 64, 100, 256, 320, 1000}) {
    Random random(static_cast<uint64_t>(n));
    const Norms norms(random, n);
    constexpr int kRows = 3;
    const std::vector<float> x = random_values(random, 5 * n, 8);
    const std::vector<int32_t> source = {4, 0, 2};
    for (const ops::gpu::NormArgs& norm : norms.all) {
      std::vector<uint16_t> image = unwritten_bf16(ops::operand_elements(kRows, n)), want;
      std::vector<float> values = unwritten(kRows * n), want_values(values.size());
      for (int r = 0; r < kRows; ++r) {
        float* to = want_values.data() + r * n;
        ops::reference::normalise(reference_of(norm), x.data() + source[static_cast<size_t>(r)] * n, n, to);
      }
      for (const float v : want_values) want.push_back(ops::f32_to_bf16(v));
      ops::gpu::NormRowsArgs args = {};
      args.x = x.data();
      args.x_stride = n;
      args.source = source.data();
      args.norm = norm;
      args.count = kRows;
      args.n = n;
      args.image = image.data();
      args.values = values.data();
      run(args, static_cast<uint64_t>(n));
      EXPECT_EQ(difference(values, want_values), "") << "n " << n << ", kind " << static_cast<int>(norm.kind);
      EXPECT_EQ(difference(rows_of(image, kRows, n), want), "") << "n " << n;
    }
  }
}

#if !defined(KVASIR_ON_DEVICE)
TEST(RowKernels, NoBarrierOfANormCanBeLeftOut) {
  constexpr int kN = 700;
  Random random(1);
  const Norms norms(random, kN);
  const std::vector<float> x = random_values(random, kN);
  std::vector<float> want(kN);
  const ops::gpu::NormArgs& norm = norms.all[2];
  ops::reference::normalise(reference_of(norm), x.data(), kN, want.data());
  const auto on_machine = [&](uint64_t seed) {
    std::vector<float> values = unwritten(kN);
    ops::gpu::NormRowsArgs args = {};
    args.x = x.data();
    args.x_stride = kN;
    args.norm = norm;
    args.count = 1;
    args.n = kN;
    args.values = values.data();
    run(args, seed);
    return values;
  };
  ASSERT_EQ(difference(on_machine(1), want), "");
  const int syncs = syncs_of_last_launch();
  for (int skipped = 1; skipped < syncs; ++skipped) {  // the first one protects nothing yet
    bool found = false;
    for (uint64_t seed = 1; seed <= 60 && !found; ++seed) {
      const ScopedMachine without({.skipped_sync = skipped});
      try {
        found = on_machine(seed) != want;
      } catch (const SimtError&) {
        found = true;
      }
    }
    EXPECT_TRUE(found) << "sync " << skipped << " of " << syncs;
  }
}

#endif

TEST(RowKernels, Embeddings) {
  constexpr int kDim = 200, kVocabulary = 130, kPositions = 40, kRows = 4;
  Random random(2);
  const std::vector<uint16_t> table = random_bf16(random, kVocabulary * kDim);
  const std::vector<uint16_t> positions = random_bf16(random, kPositions * kDim);
  const std::vector<uint16_t> table_image = image_of(table, kVocabulary, kDim);
  const std::vector<uint16_t> position_image = image_of(positions, kPositions, kDim);
  const std::vector<int32_t> earlier = {5, 129};
  const std::vector<int32_t> tokens = {7, 129, 0, 128};
  std::vector<ops::gpu::RowPlace> rows(kRows);
  for (size_t r = 0; r < kRows; ++r) rows[r] = {tokens[r], static_cast<uint32_t>(9 * r), 0, 1, 0};
  rows[1].token = -2;  // earlier[1]
  for (const float scale : {1.0F, 11.5F}) {
    for (const bool with_positions : {false, true}) {
      std::vector<float> x = unwritten(kRows * kDim), want(x.size());
      for (size_t r = 0; r < kRows; ++r) {
        const uint16_t* position = positions.data() + (rows[r].position + 2) * kDim;
        ops::reference::embed(table.data() + tokens[r] * kDim, scale, with_positions ? position : nullptr,
                              kDim, want.data() + r * kDim);
      }
      ops::gpu::EmbedArgs args = {};
      args.rows = rows.data();
      args.earlier = earlier.data();
      args.table = table_image.data();
      args.positions = with_positions ? position_image.data() : nullptr;
      args.position_offset = 2;
      args.scale = scale;
      args.x = x.data();
      args.count = kRows;
      args.dim = kDim;
      run(args, 3);
      EXPECT_EQ(difference(x, want), "");
    }
  }
}

TEST(RowKernels, Branches) {
  for (const int n : {48, 576}) {
    Random random(static_cast<uint64_t>(n));
    const Norms norms(random, n);
    constexpr int kRows = 2;
    const std::vector<float> y = random_values(random, kRows * n), bias = random_values(random, n);
    const std::vector<float> before = random_values(random, kRows * n, 4);
    for (const ops::gpu::NormArgs& norm : norms.all) {
      for (const float scale : {1.0F, 0.22F}) {
        for (const bool with_bias : {false, true}) {
          std::vector<float> x = before, want = before;
          ops::reference::Branch branch;
          branch.bias = with_bias ? bias.data() : nullptr;
          branch.post_norm = reference_of(norm);
          branch.scale = scale;
          for (int r = 0; r < kRows; ++r) {
            ops::reference::add_to_residual(branch, y.data() + r * n, n, want.data() + r * n);
          }
          ops::gpu::AddBranchArgs args = {};
          args.y = y.data();
          args.bias = branch.bias;
          args.norm = norm;
          args.scale = scale;
          args.x = x.data();
          args.count = kRows;
          args.n = n;
          run(args, 5);
          EXPECT_EQ(difference(x, want), "") << n << ", kind " << static_cast<int>(norm.kind);
        }
      }
    }
  }
}

// From an image into blocks, and back into other rows. Of blocks nothing but the runs' tokens is written; a
// slice that has left the step writes and reads nothing.
TEST(RowKernels, XIsKeptAndComesBack) {
  constexpr uint64_t kOffset = 4096;
  constexpr int kRows = 70, kBlocks = 4;
  for (const int dim : {16, 93, 128, 200}) {
    for (const int block_tokens : {16, 64}) {
      Random random(static_cast<uint64_t>(dim));
      const int row = ops::x_row_elements(dim);
      EXPECT_EQ(row, dim == 93 ? 96 : dim);
      const auto block_elements = static_cast<size_t>(block_tokens * row);
      const std::vector<uint16_t> rows = random_bf16(random, int64_t{kRows} * dim);
      std::vector<uint16_t> image = image_of(rows, kRows, dim);
      std::vector<uint16_t> memory(kOffset / 2 + kBlocks * block_elements, 0xFFFF), want = memory;
      const std::vector<ops::gpu::SlicePlace> slices = {{nullptr, 0, 0, 0, 0}, {nullptr, 0, 0, 0, 1}};
      const auto block = [&](uint32_t b) { return uint64_t{b} * block_elements * sizeof(uint16_t); };
      const auto b = static_cast<uint32_t>(block_tokens);
      const std::vector<ops::gpu::XRun> runs = {
          {block(2), {}, 5 * b + 3, 9, 58, 0}, {block(0), {}, b, b, 2, 0}, {block(3), {}, 2 * b, 4, 0, 1}};
      for (size_t i = 0; i < 2; ++i) {
        for (uint32_t t = 0; t < runs[i].tokens; ++t) {
          const auto at =
              kOffset / 2 + runs[i].x / 2 + ((runs[i].first_position + t) % b) * static_cast<size_t>(row);
          for (int d = 0; d < row; ++d) {
            const auto from = (static_cast<size_t>(runs[i].first_row) + t) * static_cast<size_t>(dim);
            want[at + static_cast<size_t>(d)] = d < dim ? rows[from + static_cast<size_t>(d)] : uint16_t{0};
          }
        }
      }
      ops::gpu::CopyXArgs args = {};
      args.runs = runs.data();
      args.slices = slices.data();
      args.memory = reinterpret_cast<std::byte*>(memory.data());
      args.layer_offset = kOffset;
      args.block_tokens = b;
      args.image = image.data();
      args.count = static_cast<int32_t>(runs.size());
      args.dim = dim;
      run(args, 3);
      EXPECT_EQ(difference(memory, want), "") << dim;

      std::vector<ops::gpu::XRun> back = runs;
      back[0].first_row = 1;
      back[1].first_row = 65;
      std::vector<uint16_t> other = unwritten_bf16(ops::operand_elements(65 + block_tokens, dim));
      args.runs = back.data();
      args.image = other.data();
      args.to_image = 1;
      run(args, 4);
      const int64_t k_tiles = ops::tiles_for(dim);
      uint64_t wrong = 0;
      for (int64_t r = 0; r < 65 + block_tokens; ++r) {
        const int64_t from = r >= 1 && r < 10 ? 57 + r : r >= 65 ? r - 63 : -1;
        for (int64_t i = 0; i < k_tiles * ops::kTileK; ++i) {
          const uint16_t expected = from < 0   ? uint16_t{0xFFFF}
                                    : i >= dim ? uint16_t{0}
                                               : rows[static_cast<size_t>(from * dim + i)];
          wrong += other[static_cast<size_t>(ops::operand_offset(r, i, k_tiles))] != expected;
        }
      }
      EXPECT_EQ(wrong, 0U) << dim;
    }
  }
}

TEST(RowKernels, Activations) {
  using ops::gpu::Activate;
  for (const int n : {40, 1100}) {
    Random random(static_cast<uint64_t>(n));
    constexpr int kRows = 2;
    std::vector<float> in = random_values(random, kRows * 2 * n, 20);
    in[0] = 0;
    in[1] = -1e30F;
    in[2] = 1e30F;
    const std::vector<float> bias = random_values(random, n);
    for (const Activate kind : {Activate::kSilu, Activate::kGelu, Activate::kRelu}) {
      const int width = kind == Activate::kRelu ? n : 2 * n;
      std::vector<uint16_t> image = unwritten_bf16(ops::operand_elements(kRows, n));
      std::vector<uint16_t> want(static_cast<size_t>(kRows * n));
      for (int r = 0; r < kRows; ++r) {
        const float* row = in.data() + r * width;
        if (kind == Activate::kSilu) ops::reference::silu_mul(row, n, want.data() + r * n);
        if (kind == Activate::kGelu) ops::reference::gelu_mul(row, n, want.data() + r * n);
        if (kind == Activate::kRelu) ops::reference::relu_bias(row, bias.data(), n, want.data() + r * n);
      }
      ops::gpu::ActivateArgs args = {};
      args.kind = kind;
      args.in = in.data();
      args.bias = kind == Activate::kRelu ? bias.data() : nullptr;
      args.image = image.data();
      args.count = kRows;
      args.n = n;
      run(args, 7);
      EXPECT_EQ(difference(rows_of(image, kRows, n), want), "")
          << "n " << n << ", kind " << static_cast<int>(kind);
    }
  }
}

}  // namespace
}  // namespace kvasir::simt
