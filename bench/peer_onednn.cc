// oneDNN's matrix products, for kernels_bench.
#include <benchmark/benchmark.h>
#include <omp.h>

#include <dnnl.hpp>
#include <string>

#include "peers.h"
#include "shares.h"

namespace kvasir::bench {
namespace {

using dnnl::memory;
using Type = memory::data_type;

struct Kind {
  const char* name;
  Product product;
  Type activations, weights, sums;
};

template <typename At>
void fill(memory& target, const dnnl::engine& engine, dnnl::stream& stream, const memory::desc& f32, At at) {
  memory values(f32, engine);
  auto* data = static_cast<float*>(values.get_data_handle());
  const auto dims = f32.dims();
  for (int64_t i = 0; i < dims[0]; ++i) {
    for (int64_t j = 0; j < dims[1]; ++j) data[i * dims[1] + j] = at(i, j);
  }
  dnnl::reorder(values, target).execute(stream, values, target);
  stream.wait();
}

void product(benchmark::State& state, ThreadLimits* limits, Kind kind, Shape shape) {
  omp_set_num_threads(1);
  const int64_t m = state.range(0), n = shape.n, k = shape.k;
  try {
    const dnnl::engine engine(dnnl::engine::kind::cpu, 0);
    dnnl::stream stream(engine);
    using Tag = memory::format_tag;
    // Activations and sums are plain rows; the weights may have any layout that the library likes.
    const memory::desc a({m, k}, kind.activations, Tag::ab), w({k, n}, kind.weights, Tag::any),
        c({m, n}, kind.sums, Tag::ab);
    const dnnl::matmul::primitive_desc description(dnnl::matmul::desc(a, w, c), engine);
    memory x(description.src_desc(), engine), packed(description.weights_desc(), engine),
        y(description.dst_desc(), engine);
    fill(x, engine, stream, memory::desc({m, k}, Type::f32, Tag::ab), peer_activation);
    fill(packed, engine, stream, memory::desc({k, n}, Type::f32, Tag::ab), peer_weight);
    const dnnl::matmul matmul(description);
    for (auto _ : state) {
      matmul.execute(stream, {{DNNL_ARG_SRC, x}, {DNNL_ARG_WEIGHTS, packed}, {DNNL_ARG_DST, y}});
      stream.wait();
    }
    const void* sums = y.get_data_handle();
    const bool right = kind.sums == Type::s32 ? peer_is_right(static_cast<const int32_t*>(sums), m, n, k)
                                              : peer_is_right(static_cast<const float*>(sums), m, n, k);
    if (!right) state.SkipWithError("the product is wrong");
    state.SetLabel(description.impl_info_str());
    count_operations(state, *limits, kind.product, 512, 2.0 * static_cast<double>(m * n * k));
    const auto bytes = static_cast<double>(description.weights_desc().get_size());
    count_bytes(state, *limits, bytes, bytes > 40e6);
  } catch (const dnnl::error& e) {
    state.SkipWithError(e.what());
  }
}

}  // namespace

void register_onednn(ThreadLimits* limits) {
  for (const Kind& kind : {Kind{"u8s8", Product::kInt8, Type::u8, Type::s8, Type::s32},
                           Kind{"f32", Product::kFp32, Type::f32, Type::f32, Type::f32},
                           Kind{"bf16", Product::kBf16, Type::bf16, Type::bf16, Type::f32}}) {
    for (const Shape& shape : peer_shapes()) {
      const std::string name = std::string("onednn/") + kind.name + "/" + shape.name;
      auto* b = benchmark::RegisterBenchmark(name.c_str(), product, limits, kind, shape);
      for (int64_t rows : shape.rows) b->Arg(rows);
    }
  }
}

}  // namespace kvasir::bench
