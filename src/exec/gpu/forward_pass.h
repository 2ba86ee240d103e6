// The kernels of a step, in their order.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "exec/gpu/gpu_model.h"
#include "exec/gpu/kernel_queue.h"

namespace kvasir {

// A pass of attention in the layers of one window: what rows [first, end) of a step attend to. All passes of
// a window with the same `count` have the first `count` rows together, one after the other.
struct GpuAttention {
  int32_t window = 0;
  int32_t count = 0;
  int32_t first = 0;  // a multiple of kTileRows
  int32_t end = 0;
  const ops::gpu::RowPlace* rows = nullptr;  // [rows of the step], with the records of this window,
                                             // which begin anew in each pass
  const ops::gpu::LeafWork* work = nullptr;  // [work_count]
  int32_t work_count = 0;
  int32_t most_rows = 1;  // of a piece of work; decides which kernel serves them
};

// Rows of a step that leave X, in a group of layers.
struct GpuXWrites {
  const ops::gpu::XRun* runs = nullptr;  // [count]; each x is of the group's first layer
  int32_t count = 0;
};

// K and V of a layer that are computed from X, as rows of one product. A layer may have several, one after
// the other in the same memory.
struct GpuProjection {
  uint32_t layer = 0;
  const ops::gpu::XRun* runs = nullptr;  // [count]
  int32_t count = 0;
  int32_t rows = 0;
};

// Addresses are the device's.
struct GpuStep {
  int32_t count = 0;                         // rows
  const ops::gpu::RowPlace* rows = nullptr;  // [count]; their records do not matter
  const int32_t* earlier = nullptr;          // what RowPlace::token may refer to
  // K and V: all but layer, group and layer_offset, which the pass fills in.
  ops::gpu::KvLayer kv = {};
  uint32_t layers_per_group = 1;
  // By layer: of the rows that write K and V the first so many go on. It never grows. Empty: all do.
  std::vector<int32_t> staying;
  std::vector<GpuXWrites> x_writes;        // by group; empty: none
  std::vector<GpuProjection> projections;  // by layer
  std::vector<GpuAttention> attention;  // one for each window of the model and each count of rows that go on
};

// Rows that give logits, and how tokens are drawn from them.
struct GpuLogits {
  const int32_t* rows = nullptr;  // [count]: of the step
  int32_t count = 0;
  const ops::gpu::DrawPlace* draws = nullptr;  // [count]
  int32_t* tokens = nullptr;                   // [count]
};

// Told while a pass is queued, so that something can be queued in between.
class PassPoints {
 public:
  virtual ~PassPoints() = default;
  virtual void before_write(uint32_t layer) = 0;  // of K and V
  virtual void written(uint32_t layer) = 0;
  virtual void attended(uint32_t layer) = 0;
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

// Queue kernels, and wait for nothing. The layers leave the residual stream in scratch.x. points: may be
// null.
void queue_layers(const GpuModel& model, const GpuStep& step, const GpuScratch& scratch, KernelQueue& queue,
                  PassPoints* points);
// The last norm, the logits, which are finished, and the draw of tokens from them.
void queue_logits(const GpuModel& model, const GpuLogits& logits, const GpuScratch& scratch,
                  KernelQueue& queue);
// out[i] = the row after the last norm.
void queue_hidden(const GpuModel& model, const int32_t* rows, int32_t count, const GpuScratch& scratch,
                  float* out, KernelQueue& queue);

}  // namespace kvasir
