// Which kernel serves which arguments. Calls run(Kernel()), which returns what
// choose() returns.
#pragma once

#include "ops/gpu/kernels/copy_x.h"
#include "ops/gpu/kernels/draw.h"
#include "ops/gpu/kernels/finish_qkv.h"
#include "ops/gpu/kernels/gemm.h"
#include "ops/gpu/kernels/leaf.h"
#include "ops/gpu/kernels/leaf_many.h"
#include "ops/gpu/kernels/merge.h"
#include "ops/gpu/kernels/rows.h"

namespace kvasir::ops::gpu {

template <typename Run>
auto choose(const EmbedArgs&, const Run& run) {
  return run(Embed());
}
template <typename Run>
auto choose(const NormRowsArgs&, const Run& run) {
  return run(NormRows());
}
template <typename Run>
auto choose(const GemmArgs& args, const Run& run) {
  if (args.rows <= 8) return run(Gemm<8>());
  if (args.rows <= 16) return run(Gemm<16>());
  if (args.rows <= 32) return run(Gemm<32>());
  return run(Gemm<64>());
}
template <typename Run>
auto choose(const FinishQkvArgs&, const Run& run) {
  return run(FinishQkv());
}
template <typename Run>
auto choose(const CopyXArgs&, const Run& run) {
  return run(CopyX());
}
template <typename Run>
auto choose(const FinishKvArgs&, const Run& run) {
  return run(FinishKv());
}
template <typename Run>
auto choose(const LeafArgs& args, const Run& run) {
  const int head_dim = args.kv.head_dim;
  if (args.has_many_queries()) {
    if (head_dim == 64) return run(LeafMany<64>());
    if (head_dim == 80) return run(LeafMany<80>());
    if (head_dim == 96) return run(LeafMany<96>());
    return run(LeafMany<128>());
  }
  if (head_dim == 64) return run(Leaf<64>());
  if (head_dim == 128) return run(Leaf<128>());
  return run(Leaf<0>());
}
template <typename Run>
auto choose(const MergeArgs&, const Run& run) {
  return run(MergeLeaves());
}
template <typename Run>
auto choose(const ActivateArgs&, const Run& run) {
  return run(ActivateRows());
}
template <typename Run>
auto choose(const AddBranchArgs&, const Run& run) {
  return run(AddBranch());
}
template <typename Run>
auto choose(const DrawArgs&, const Run& run) {
  return run(DrawToken());
}

}  // namespace kvasir::ops::gpu
