// The kernels of a step, in their order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/gpu/gpu_model.h"
#include "exec/gpu/kernel_queue.h"

namespace kvasir {

// What the rows of a step attend to in the layers of one window.
struct GpuAttention {
  int32_t window = 0;
  const ops::gpu::RowPlace* rows = nullptr;  // [count]: the step's, with the records of this window
  const ops::gpu::LeafWork* work = nullptr;  // [work_count]
  int32_t work_count = 0;
  int32_t most_rows = 1;  // of a piece of work, as plan_leaves() was told
};

// Addresses are the device's.
struct GpuStep {
  int32_t count = 0;                 // rows
  const int32_t* earlier = nullptr;  // what RowPlace::token may refer to
  // K and V: all but layer, group and layer_offset, which the pass fills in.
  ops::gpu::KvLayer kv = {};
  uint32_t layers_per_group = 1;
  std::vector<GpuAttention> attention;  // one for each window that the model has
  // Rows that give logits, and how tokens are drawn from them.
  const int32_t* logit_rows = nullptr;  // [logit_count]
  int32_t logit_count = 0;
  const ops::gpu::DrawPlace* draws = nullptr;  // [logit_count]
  int32_t* tokens = nullptr;                   // [logit_count]
};

// The activations of a step.
struct GpuScratch {
  float* x = nullptr;           // [rows][dim]
  uint16_t* operand = nullptr;  // image, [rows][the widest operand]
  float* product = nullptr;     // [rows][the widest product but the logits]
  uint16_t* q = nullptr;        // [rows][q_dim]
  float* partials = nullptr;    // [records][heads][2 + head_dim]
  float* logits = nullptr;      // [logit rows][vocabulary]

  // Elements that steps of so many rows, partial results and rows with logits
  // need.
  struct Sizes {
    int64_t x, operand, product, q, partials, logits;
  };
  static Sizes sizes(const ModelSpec& spec, int64_t rows, int64_t records, int64_t logit_rows);
};

// Queues the whole pass, and waits for nothing.
void queue_forward_pass(const GpuModel& model, const GpuStep& step, const GpuScratch& scratch,
                        KernelQueue& queue);

}  // namespace kvasir
