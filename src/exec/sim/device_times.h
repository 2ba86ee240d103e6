// The true time of a step on a device: linear layers, attention, elementwise kernels, collectives, output
// layer and engine, one after the other.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "base/status.h"
#include "exec/sim/device.h"
#include "exec/sim/step_load.h"

namespace kvasir {

// Seconds of each part; they add up to the step. With several stages: the first micro-batch in all stages,
// and each further one in the slowest stage.
struct StepParts {
  double linear = 0;       // QKV, O and MLP of all layers
  double attention = 0;    // of prefill and decode
  double elementwise = 0;  // norms, rotation, activation, additions
  double collectives = 0;  // all-reduce, and sending between stages
  double output = 0;       // the output layer of the sampled rows
  double projection = 0;   // K and V from X
  double engine = 0;

  double total() const {
    return linear + attention + elementwise + collectives + output + projection + engine;
  }
};

// A curve on a grid of equal steps: evaluated without a search.
class GridCurve {
 public:
  GridCurve() = default;
  explicit GridCurve(const Curve& curve);
  double at(double x) const;

 private:
  double first_ = 0;
  double per_step_ = 1;
  std::vector<double> values_;
};

// Values by number of rows, on a grid that is exact for few rows and has eight points per octave beyond. They
// never fall, and are proportional to the rows beyond the last point.
class RowTable {
 public:
  RowTable() = default;
  explicit RowTable(const std::function<double(double)>& seconds);
  // A positive number below 1 counts as one row.
  double at(double rows) const;

 private:
  static const std::vector<double>& grid();
  std::vector<double> values_;
};

// Immutable, so any thread may call it. The constructor tabulates everything that depends only on the model,
// the device and the cards. A step then costs interpolations: well under a microsecond, and some tens of
// nanoseconds for each chunk.
//
// Pipeline parallel: a step is cut into m <= pipeline equal micro-batches that follow each other through the
// stages, for the best m. Steps do not overlap: the next one begins when the last stage has ended.
class DeviceTimes final : public StepTimes {
 public:
  // kInvalidArgument: shapes that make no sense, or cards that cannot share the model's heads and layers.
  static Status check(const ModelShape& model, const DeviceSpec& device, const Parallelism& parallelism);
  // REQUIRES: check() is ok
  DeviceTimes(ModelShape model, DeviceSpec device, Parallelism parallelism, EngineOverhead overhead);

  double seconds(const StepLoad& load) const override { return parts(load).total(); }
  double collective_seconds(const StepLoad& load) const override { return parts(load).collectives; }
  StepParts parts(const StepLoad& load) const;

  // Partial attention at a peer of the same kind, in one layer: each of `queries` rows of a sequence over all
  // `tokens` of its KV there, including sending the queries and returning the partial results (output,
  // maximum, sum, in fp32). link_bytes_per_s: 0 for the device's PCIe. Each card does this for its own heads.
  double remote_attention_seconds(double queries, double tokens, double link_bytes_per_s = 0) const;

  const ModelShape& model() const { return model_; }
  const DeviceSpec& device() const { return device_; }
  const Parallelism& parallelism() const { return parallelism_; }
  const EngineOverhead& overhead() const { return overhead_; }

  // One product of (m, k) and (k, n) alone.
  double gemm_seconds(double m, double n, double k) const { return gemm(m, n, k, 1); }
  // In one layer on one card, with its share of the heads. `part` of each chunk's work, for micro-batches.
  double prefill_attention_seconds(const std::vector<StepLoad::Chunk>& chunks, double part = 1) const;
  double decode_attention_seconds(double rows, double context) const;
  // Over all cards of a stage.
  double all_reduce_seconds(double bytes) const;

 private:
  // The tabulated curves of a kernel.
  struct Kernel {
    explicit Kernel(const KernelCoefficients& c);
    double launch_s;
    double unit_s;
    double sharpness;
    std::vector<GridCurve> flop_rate, byte_rate;
  };

  double gemm(double m, double n, double k, double compute_factor) const;
  // The same with weights of so many bytes an element.
  double gemm_of(double m, double n, double k, double compute_factor, double element_bytes) const;
  double layer_linear(double rows) const;
  double latent_linear(double rows) const;
  double layer_elementwise(double rows) const;
  double output_layer(double sampled) const;
  // `part` of the load in all layers, without engine and sending. 0 rows cost nothing.
  StepParts all_layers(const StepLoad& load, double part) const;
  double send_seconds(double rows) const;

  const ModelShape model_;
  const DeviceSpec device_;
  const Parallelism parallelism_;
  const EngineOverhead overhead_;
  const double heads_;     // of one card
  const double kv_heads_;  // of one card; at least one
  const Kernel gemm_, prefill_, decode_, elementwise_kernel_;
  const RowTable linear_, elementwise_, all_reduce_, output_, projection_;  // all but `output_`: of one layer
};

}  // namespace kvasir
