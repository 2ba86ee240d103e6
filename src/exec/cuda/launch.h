// The kernels of ops/gpu on a device, without a header of CUDA.
//
// launch() queues the kernel of these arguments on a stream of the current device and does not wait;
// reference.h says what it computes. Null: queued, or there are no rows. Else CUDA's words for what went
// wrong. Thread-safe.
#pragma once

#include "ops/gpu/kernel_args.h"

struct CUstream_st;

namespace kvasir::cuda {

using Stream = CUstream_st*;

const char* launch(const ops::gpu::EmbedArgs& args, Stream stream);
const char* launch(const ops::gpu::NormRowsArgs& args, Stream stream);
const char* launch(const ops::gpu::GemmArgs& args, Stream stream);
const char* launch(const ops::gpu::FinishQkvArgs& args, Stream stream);
const char* launch(const ops::gpu::CopyXArgs& args, Stream stream);
const char* launch(const ops::gpu::FinishKvArgs& args, Stream stream);
const char* launch(const ops::gpu::LeafArgs& args, Stream stream);
const char* launch(const ops::gpu::MergeArgs& args, Stream stream);
const char* launch(const ops::gpu::ActivateArgs& args, Stream stream);
const char* launch(const ops::gpu::AddBranchArgs& args, Stream stream);
const char* launch(const ops::gpu::DrawArgs& args, Stream stream);

}  // namespace kvasir::cuda
