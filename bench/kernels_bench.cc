// Micro-benchmarks of the CPU kernels, one thread, beside the machine's limits (of_..., measured in the same
// run): operations per second for products with many rows, bytes per second for products with one row and for
// attention. Plain products of oneDNN and libxsmm follow, where the build found them.
//
//   kernels_bench [--benchmark_filter=...]
#include <benchmark/benchmark.h>
#include <fmt/format.h>

#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/random.h"
#include "ops/cpu/kernels.h"
#include "ops/cpu/packed_matrix.h"
#include "ops/kv_layout.h"
#include "ops/weight_traits.h"
#include "peers.h"
#include "shares.h"
#include "support/block_weights.h"

namespace kvasir::ops {
namespace {

using bench::count_bytes;
using bench::count_operations;
using bench::Product;
using bench::ThreadLimits;

constexpr double kCachesBytes = 40e6;  // what is larger comes from memory, on the machines that we know

int vector_bits(IsaClass isa) {
  return isa == IsaClass::kAvx512 ? 512 : 256;
}

struct Free {
  void operator()(void* p) const { std::free(p); }
};
using Aligned = std::unique_ptr<void, Free>;
Aligned allocate(size_t bytes) {
  Aligned memory(std::aligned_alloc(64, (bytes + 63) / 64 * 64));
  std::memset(memory.get(), 0, bytes);
  return memory;
}

std::vector<float> random_floats(int64_t n) {
  Random random(1);
  std::vector<float> v(static_cast<size_t>(n));
  for (float& x : v) x = static_cast<float>(2 * random.unit() - 1);
  return v;
}

std::vector<uint8_t> random_weights(WeightType type, int64_t n, int64_t k) {
  Random random(2);
  if (is_quantized(type)) return test::random_blocks(random, type, n * k / block_values(type));
  std::vector<uint8_t> bytes(static_cast<size_t>(n) * row_bytes(type, k));
  const size_t size = row_bytes(type, 1);
  for (size_t i = 0; i < bytes.size(); i += size) {
    const auto x = static_cast<float>(2 * random.unit() - 1);
    const uint16_t half = type == WeightType::kF16 ? f32_to_f16(x) : f32_to_bf16(x);
    std::memcpy(bytes.data() + i, size == 4 ? static_cast<const void*>(&x) : &half, size);
  }
  return bytes;
}

// The instruction that a product is made of. bf16 pairs are two fma where the CPU does not do them at once.
Product limiting_product(const Kernels& kernels, ActivationType act) {
  if (act == ActivationType::kInt8) return Product::kInt8;
  const bool dot =
      kernels.isa() == IsaClass::kAvx512 && has_bf16_dot() && &kernels != &basic_avx512_kernels();
  return act == ActivationType::kBf16 && dot ? Product::kBf16 : Product::kFp32;
}

void gemm(benchmark::State& state, ThreadLimits* limits, const Kernels& kernels, WeightType type,
          ActivationType act, int64_t n, int64_t k) {
  set_flush_to_zero();
  const int64_t m = state.range(0);
  const int64_t stride = row_stride_bytes(k * 4) / 4;
  const auto x = random_floats(m * stride);
  const auto raw = random_weights(type, n, k);
  const Aligned packed = allocate(packed_bytes(type, n, k));
  const PackedMatrix w = pack_matrix(type, raw.data(), n, k, packed.get());
  const Aligned int8_rows = allocate(quantized_rows_bytes(m, k)), bf16_rows = allocate(bf16_rows_bytes(m, k));
  const QuantizedRows a = make_quantized_rows(int8_rows.get(), m, k);
  const Bf16Rows b = make_bf16_rows(bf16_rows.get(), m, k);
  kernels.quantize_rows(x.data(), stride, a, 0, m);
  kernels.round_rows_bf16(x.data(), stride, b, 0, m);
  std::vector<float> c(static_cast<size_t>(m * n));
  for (auto _ : state) {
    if (act == ActivationType::kInt8) {
      kernels.gemm_int8(a, 0, m, w, 0, panel_count(n), c.data(), n, false);
    } else if (act == ActivationType::kBf16) {
      kernels.gemm_bf16(b, 0, m, w, 0, panel_count(n), c.data(), n, false);
    } else {
      kernels.gemm_f32(x.data(), stride, 0, m, w, 0, panel_count(n), c.data(), n, false);
    }
    benchmark::DoNotOptimize(c.data());
    benchmark::ClobberMemory();
  }
  const auto bytes = static_cast<double>(packed_bytes(type, n, k));
  const int bits = vector_bits(kernels.isa());
  count_operations(state, *limits, limiting_product(kernels, act), bits,
                   2.0 * static_cast<double>(m * n * k));
  count_bytes(state, *limits, bytes, bytes > kCachesBytes);
}

// A full leaf for `rows` query rows of `heads` heads that share one KV head; leaves cycle through 64 MB.
void leaf(benchmark::State& state, ThreadLimits* limits, IsaClass isa, KvType type, int64_t rows,
          int64_t heads, int64_t dim) {
  set_flush_to_zero();
  const Kernels& kernels = kernels_for(isa);
  const KvShape shape{1, 1, dim, 256, type};
  const size_t plane = kv_plane_bytes(shape);
  const size_t leaves = (size_t{32} << 20) / plane;
  const Aligned k = allocate(plane * leaves), v = allocate(plane * leaves);
  const auto q = random_floats(rows * heads * dim);
  const std::vector<int32_t> valid(static_cast<size_t>(rows), 256);
  std::vector<float> out(static_cast<size_t>(rows * partial_floats(heads, dim)));
  size_t next = 0;
  for (auto _ : state) {
    const void* k_tile = static_cast<uint8_t*>(k.get()) + next * plane;
    const void* v_tile = static_cast<uint8_t*>(v.get()) + next * plane;
    next = (next + 1) % leaves;
    AttentionLeafArgs args;
    args.q = q.data();
    args.q_stride = heads * dim;
    args.rows = rows;
    args.heads = heads;
    args.head_dim = dim;
    args.valid = valid.data();
    args.k_tiles = &k_tile;
    args.v_tiles = &v_tile;
    args.block_tokens = 256;
    args.type = type;
    args.out = out.data();
    args.out_stride = partial_floats(heads, dim);
    kernels.attention_leaf(args);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  count_operations(state, *limits, Product::kFp32, vector_bits(isa),
                   4.0 * static_cast<double>(rows * heads * dim * 256));
  count_bytes(state, *limits, 2.0 * static_cast<double>(plane), true);
}

// K and V of one token into their frames; tokens cycle through 64 MB.
void write_kv(benchmark::State& state, IsaClass isa, KvType type, int64_t heads, int64_t dim) {
  set_flush_to_zero();
  const Kernels& kernels = kernels_for(isa);
  const KvShape shape{1, heads, dim, 64, type};
  const size_t plane = kv_plane_bytes(shape);
  const auto blocks = static_cast<int64_t>((size_t{32} << 20) / plane);
  const auto bytes = plane * static_cast<size_t>(blocks);
  const Aligned k = allocate(bytes), v = allocate(bytes);
  const auto row = random_floats(heads * dim);
  int64_t token = 0;
  for (auto _ : state) {
    const size_t at = static_cast<size_t>(token / shape.block_tokens) * plane;
    kernels.write_kv(shape, 0, token % shape.block_tokens, row.data(), row.data(),
                     static_cast<uint8_t*>(k.get()) + at, static_cast<uint8_t*>(v.get()) + at);
    token = (token + 1) % (blocks * shape.block_tokens);
    benchmark::ClobberMemory();
  }
  state.counters["Mtoken/s"] =
      benchmark::Counter(1e-6 * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// What a row costs apart from products: quantisation, norm, and the gated activation.
void row(benchmark::State& state, IsaClass isa, int which) {
  set_flush_to_zero();
  const Kernels& kernels = kernels_for(isa);
  const int64_t n = 1536;
  const auto x = random_floats(n);
  const Aligned memory = allocate(quantized_rows_bytes(1, n));
  const QuantizedRows rows = make_quantized_rows(memory.get(), 1, n);
  std::vector<float> out(static_cast<size_t>(n));
  const Aligned bf16 = allocate(bf16_rows_bytes(1, n));
  const Bf16Rows rounded = make_bf16_rows(bf16.get(), 1, n);
  for (auto _ : state) {
    if (which == 0) kernels.quantize_rows(x.data(), n, rows, 0, 1);
    if (which == 1) kernels.rms_norm(x.data(), x.data(), n, 1e-5f, out.data());
    if (which == 2) kernels.silu_mul(x.data(), x.data(), n, out.data());
    if (which == 3) kernels.round_rows_bf16(x.data(), n, rounded, 0, 1);
    benchmark::DoNotOptimize(out.data());
    benchmark::ClobberMemory();
  }
  state.counters["Gelement/s"] = benchmark::Counter(
      1e-9 * static_cast<double>(n) * static_cast<double>(state.iterations()), benchmark::Counter::kIsRate);
}

// Products of bf16 rows, and of f32 rows with every kind of weight.
void register_float_products(const std::string& prefix, const Kernels& isa_kernels, ThreadLimits* limits) {
  const auto add = [&](const std::string& name, WeightType type, ActivationType act, const Kernels& kernels) {
    benchmark::RegisterBenchmark((prefix + name + "/k576_n1536").c_str(), gemm, limits, std::cref(kernels),
                                 type, act, int64_t{1536}, int64_t{576})
        ->Arg(1)
        ->Arg(8)
        ->Arg(64)
        ->Arg(512);
    // About 60 MB: larger than the caches.
    const int64_t n = type == WeightType::kF32 ? 3840 : 7680;
    if (is_quantized(type)) return;
    benchmark::RegisterBenchmark((prefix + name + "/60MB").c_str(), gemm, limits, std::cref(kernels), type,
                                 act, n, int64_t{4096})
        ->Arg(1)
        ->Arg(64);
  };
  add("gemm_bf16/BF16", WeightType::kBf16, ActivationType::kBf16, isa_kernels);
  if (isa_kernels.isa() == IsaClass::kAvx512 && has_bf16_dot()) {
    add("gemm_bf16_two_fma/BF16", WeightType::kBf16, ActivationType::kBf16, basic_avx512_kernels());
  }
  for (WeightType type :
       {WeightType::kF32, WeightType::kF16, WeightType::kBf16, WeightType::kQ8_0, WeightType::kQ4_1}) {
    add(std::string("gemm_f32/") + weight_type_name(type), type, ActivationType::kF32, isa_kernels);
  }
}

void register_for(IsaClass isa, ThreadLimits* limits) {
  const std::string prefix = std::string(isa_name(isa)) + "/";
  const Kernels& kernels = kernels_for(isa);
  for (const WeightTraits& t : kWeightTraits) {
    if (!is_quantized(t.type)) continue;
    const std::string name = prefix + "gemm_int8/" + t.name;
    // Rows of a multiple of 256 for the K types; the other types have both lengths.
    for (int64_t k : {576, 768}) {
      if (k % t.block_values != 0) continue;
      benchmark::RegisterBenchmark(fmt::format("{}/k{}_n1536", name, k).c_str(), gemm, limits,
                                   std::cref(kernels), t.type, ActivationType::kInt8, int64_t{1536}, k)
          ->Arg(1)
          ->Arg(2)
          ->Arg(8)
          ->Arg(16)
          ->Arg(32)
          ->Arg(64)
          ->Arg(512);
    }
    // About 60 MB: larger than the caches.
    const auto n =
        static_cast<int64_t>(60e6 / static_cast<double>(packed_bytes(t.type, kPanel, 4096))) * kPanel;
    benchmark::RegisterBenchmark((name + "/60MB").c_str(), gemm, limits, std::cref(kernels), t.type,
                                 ActivationType::kInt8, n, int64_t{4096})
        ->Arg(1);
  }
  register_float_products(prefix, kernels, limits);
  for (KvType type : kKvTypes) {
    const std::string name = prefix + "leaf/" + kv_type_name(type);
    benchmark::RegisterBenchmark((name + "/rows1_heads3_dim64").c_str(), leaf, limits, isa, type, 1, 3, 64);
    benchmark::RegisterBenchmark((name + "/rows1_heads1_dim64").c_str(), leaf, limits, isa, type, 1, 1, 64);
    benchmark::RegisterBenchmark((name + "/rows1_heads4_dim128").c_str(), leaf, limits, isa, type, 1, 4, 128);
    benchmark::RegisterBenchmark((name + "/rows64_heads3_dim64").c_str(), leaf, limits, isa, type, 64, 3, 64);
    benchmark::RegisterBenchmark((name + "/rows16_heads3_dim64").c_str(), leaf, limits, isa, type, 16, 3, 64);
    benchmark::RegisterBenchmark((name + "/rows1_heads8_dim64").c_str(), leaf, limits, isa, type, 1, 8, 64);
    benchmark::RegisterBenchmark((prefix + "write_kv/" + kv_type_name(type) + "/heads3_dim64").c_str(),
                                 write_kv, isa, type, 3, 64);
  }
  const char* rows[] = {"quantize", "rms_norm", "silu_mul", "round_bf16"};
  for (int i = 0; i < 4; ++i) {
    benchmark::RegisterBenchmark((prefix + rows[i] + "/n1536").c_str(), row, isa, i);
  }
}

}  // namespace
}  // namespace kvasir::ops

int main(int argc, char** argv) {
  using kvasir::ops::IsaClass;
  kvasir::bench::ThreadLimits limits;
  for (IsaClass isa : {IsaClass::kAvx512, IsaClass::kAvx2}) {
    if (kvasir::ops::is_supported(isa)) kvasir::ops::register_for(isa, &limits);
  }
  kvasir::bench::register_onednn(&limits);
  kvasir::bench::register_libxsmm(&limits);
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  kvasir::bench::ShareReporter reporter;
  benchmark::RunSpecifiedBenchmarks(&reporter);
  return 0;
}
