// The truth about a device: parts worked by hand on a toy, and what must hold of any.
#include "exec/sim/device_times.h"

#include <gtest/gtest.h>

#include "exec/toy_device.h"

namespace kvasir::test {
namespace {

constexpr double kRead = 1073741824.0;       // the toy's bytes/s
constexpr double kCompute = kRead * 1024.0;  // and FLOP/s

DeviceTimes toy(Parallelism p = {}, EngineOverhead overhead = {}) {
  return DeviceTimes(toy_model(), toy_device(), p, overhead);
}
StepLoad prefill(double rows, double history = 0) {
  StepLoad load;
  load.chunks.push_back({rows, history});
  return load;
}
StepLoad decode(double rows, double context) {
  StepLoad load;
  load.decode_rows = rows;
  load.decode_context = context;
  return load;
}

TEST(DeviceTimesTest, CurvesAreLinearBetweenKnotsAndConstantBeyond) {
  const Curve c{{1, 2, 4}, {10, 20, 0}};
  EXPECT_DOUBLE_EQ(c.at(0), 10);
  EXPECT_DOUBLE_EQ(c.at(1.5), 15);
  EXPECT_DOUBLE_EQ(c.at(3), 10);
  EXPECT_DOUBLE_EQ(c.at(9), 0);
  EXPECT_DOUBLE_EQ(Curve().at(3), 0);
  const GridCurve g(c);
  for (double x = 0; x < 5; x += 0.1) EXPECT_NEAR(g.at(x), c.at(x), 1e-12) << x;
}

TEST(DeviceTimesTest, ParametersAndBytesOfShapes) {
  const ModelShape m = toy_model();
  const uint64_t layer = 512 * (512 + 128 + 128) + 512 * 512 + 3 * 512 * 1024;
  EXPECT_EQ(m.parameters(), 4 * layer + 2 * 4096 * 512);
  EXPECT_EQ(m.weight_bytes(), 2 * m.parameters());
  EXPECT_EQ(m.kv_bytes_per_token(), 2u * 4 * 2 * 64 * 2);
}

TEST(DeviceTimesTest, AProductIsItsLaunchAndTheSlowerOfReadingAndComputing) {
  const DeviceTimes t = toy();
  // One row: 2 (512 + 512 * 256 + 256) bytes against 2 * 512 * 256 operations.
  EXPECT_NEAR(t.gemm_seconds(1, 256, 512), 1e-3 + 2 * (256 + 256 * 512 + 512) / kRead, 1e-9);
  // 2^20 rows of 2^12 x 2^12: 2^45 operations are 32 s, bytes 2^34 and 2^25: 16 s.
  EXPECT_NEAR(t.gemm_seconds(1 << 20, 4096, 4096), 1e-3 + 32, 1e-3);
}

TEST(DeviceTimesTest, PartsOfADecodingStep) {
  const StepParts p = toy().parts(decode(1, 1000));
  // QKV 512 x 768, O 512 x 512, gate and up 512 x 2048, down 1024 x 512.
  const double bytes = 2.0 * (512 * 768 + 512 * 512 + 512 * 2048 + 1024 * 512 + 512 + 768 + 512 + 512 + 512 +
                              2048 + 1024 + 512);
  EXPECT_NEAR(p.linear, 4 * (4e-3 + bytes / kRead), 1e-8);
  EXPECT_NEAR(p.attention, 4 * (3e-3 + 2.0 * 2 * 128 * 1000 / kRead), 1e-8);
  EXPECT_NEAR(p.elementwise, 4 * (4e-3 + 2.0 * (5120 + 2 * 640 + 3 * 1024) / kRead), 1e-8);
  EXPECT_EQ(p.collectives + p.output + p.projection + p.engine, 0);
}

TEST(DeviceTimesTest, ExpertsHaveAnElementSizeOfTheirOwn) {
  ModelShape m = toy_model();
  m.experts = 8;
  m.experts_used = 2;
  m.expert_ffn = 256;
  m.shared_ffn = 128;
  m.expert_element_bytes = 0.5;
  // Gate, up and down of eight experts of 256 and one of 128; the router.
  const uint64_t experts = 4 * 8 * 3 * 512 * 256, others = 4 * (512 * 1280 + 3 * 512 * 128 + 512 * 8);
  EXPECT_EQ(m.weight_bytes(), experts / 2 + 2 * (others + 2 * 4096 * 512));
  const auto linear = [](const ModelShape& shape) {
    return DeviceTimes(shape, toy_device(), {}, {}).parts(decode(1, 1000)).linear;
  };
  // One row touches two experts in each of four layers, whose elements are 1.5 bytes less.
  ModelShape wide = m;
  wide.expert_element_bytes = 2;
  EXPECT_NEAR(linear(wide) - linear(m), 4 * 2 * 1.5 * 3 * 512 * 256 / kRead, 1e-8);
}

TEST(DeviceTimesTest, AttentionOfChunks) {
  const DeviceTimes t = toy();
  // 2^10 rows behind 2^10: 2^20 + 2^9 * 1025 pairs, 4 * 64 * 8 operations each.
  const double pairs = 1048576 + 512 * 1025;
  EXPECT_NEAR(t.prefill_attention_seconds({{1024, 1024}}), 2e-3 + 2048 * pairs / kCompute, 1e-9);
  EXPECT_NEAR(t.prefill_attention_seconds({{1024, 1024}, {1024, 1024}}), 2e-3 + 4096 * pairs / kCompute,
              1e-9);
  StepLoad::Chunk half{1024, 1024, 0.5, 0.25};
  EXPECT_NEAR(t.prefill_attention_seconds({half}), 0.25 * (2e-3 + 2048 * pairs / kCompute), 1e-9);
}

TEST(DeviceTimesTest, SamplingProjectionAndEngine) {
  StepLoad load = decode(2, 2);
  load.sampled = 2;
  load.projected = 400;
  const StepParts p = toy({}, {0.5, 0.25, false, ""}).parts(load);
  EXPECT_NEAR(p.output, 1e-3 + 2.0 * (512 * 4096 + 2 * 4096 + 2 * 512) / kRead, 1e-8);
  // 100 tokens in each of four layers: 512 x 256.
  EXPECT_NEAR(p.projection, 4 * (1e-3 + 2.0 * (512 * 256 + 100 * 768) / kRead), 1e-5);
  EXPECT_DOUBLE_EQ(p.engine, 0.5 + 2 * 0.25);
  load.projected = 2;  // two layers at most
  EXPECT_NEAR(toy().parts(load).projection, 2 * (1e-3 + 2.0 * (512 * 256 + 768) / kRead), 1e-8);
}

TEST(DeviceTimesTest, ChunksOfSomeLayersCostTheirShare) {
  StepLoad some = prefill(64);
  some.chunks[0].passed = 0.5;
  EXPECT_NEAR(toy().parts(some).linear, toy().parts(prefill(64)).linear / 2, 1e-12);
  // Beside a whole chunk: half of the layers with 128 rows, half with 64.
  some.chunks.push_back({64, 0});
  EXPECT_NEAR(toy().parts(some).linear,
              (toy().parts(prefill(128)).linear + toy().parts(prefill(64)).linear) / 2, 1e-12);
}

TEST(DeviceTimesTest, TensorParallelSplitsWeightsAndHeads) {
  const StepParts one = toy().parts(decode(1, 100000)), two = toy({2, 1}).parts(decode(1, 100000));
  EXPECT_NEAR(two.linear - 16e-3, (one.linear - 16e-3) / 2, 4e-5);
  EXPECT_NEAR(two.attention - 12e-3, (one.attention - 12e-3) / 2, 1e-9);
  EXPECT_NEAR(two.collectives, 4 * 2.0 / 1024, 1e-12);
  // Beyond the KV heads each card has one, of which others have copies.
  const StepParts four = toy({4, 1}).parts(decode(1, 100000));
  EXPECT_NEAR(four.attention, two.attention, 1e-9);
  EXPECT_NEAR(four.collectives, 4 * 2.0 / 512, 1e-12);
  // Launched by the host, an all-reduce takes half a second at least.
  EXPECT_NEAR(toy({2, 1}, {0, 0, true, ""}).parts(decode(1, 100000)).collectives, 4 * 2 * 0.5, 1e-12);
}

TEST(DeviceTimesTest, PipelineTakesTheBestNumberOfMicroBatches) {
  // One row cannot be cut: the layers one after the other, and three sends.
  const double one = toy().seconds(decode(1, 100));
  EXPECT_NEAR(toy({1, 4}).seconds(decode(1, 100)), one + 3.0 / 256, 1e-9);
  // Much work is: four micro-batches in four stages take 7 of 16 parts, and six sends.
  const StepLoad large = prefill(1 << 16);
  const double whole = toy().seconds(large), cut = toy({1, 4}).seconds(large);
  EXPECT_NEAR(cut / whole, 7.0 / 16, 0.05);
  EXPECT_GT(cut, toy({1, 4}).seconds(prefill(1 << 15)));
}

TEST(DeviceTimesTest, RemoteAttentionIsAttentionAndItsMessages) {
  const DeviceTimes t = toy();
  const double messages = 8 * (64 * 6 + 8);
  EXPECT_NEAR(t.remote_attention_seconds(1, 1000),
              t.decode_attention_seconds(1, 1000) + 2.0 / 256 + messages / (1e9 * 0.5 * 0.5), 1e-9);
  EXPECT_NEAR(t.remote_attention_seconds(1, 1000, 1e6) - t.remote_attention_seconds(1, 1000, 2e6),
              messages / 2e6, 1e-9);
  // Many queries of a sequence share its KV.
  EXPECT_LT(t.remote_attention_seconds(64, 1e5, 1e12), t.decode_attention_seconds(64, 64e5));
  EXPECT_EQ(t.remote_attention_seconds(0, 1000), 0);
}

TEST(DeviceTimesTest, WhatCardsCannotShareIsRefused) {
  const ModelShape m = toy_model();
  const DeviceSpec d = toy_device();
  EXPECT_TRUE(DeviceTimes::check(m, d, {8, 1}).ok());
  EXPECT_NE(DeviceTimes::check(m, d, {3, 1}).message().find("tensor parallel 3"), std::string::npos);
  EXPECT_FALSE(DeviceTimes::check(m, d, {16, 1}).ok());
  EXPECT_NE(DeviceTimes::check(m, d, {1, 5}).message().find("4 layers"), std::string::npos);
  EXPECT_FALSE(DeviceTimes::check(m, d, {1, 0}).ok());
  ModelShape odd = m;
  odd.kv_heads = 3;
  EXPECT_FALSE(DeviceTimes::check(odd, d, {}).ok());
  DeviceSpec alone = d;
  alone.all_reduce.clear();
  EXPECT_TRUE(DeviceTimes::check(m, alone, {}).ok());
  EXPECT_FALSE(DeviceTimes::check(m, alone, {2, 1}).ok());
  alone.gemm.flop_rate.clear();
  EXPECT_FALSE(DeviceTimes::check(m, alone, {}).ok());
}

TEST(DeviceTimesTest, NoRowsCostTheEngineAlone) {
  EXPECT_DOUBLE_EQ(toy({1, 2}, {0.5, 0.25, false, ""}).seconds({}), 0.5);
}

}  // namespace
}  // namespace kvasir::test
