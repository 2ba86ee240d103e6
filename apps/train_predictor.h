// `kvasir train-predictor`: teaches --length-predictor hidden what a model's answers to a set of requests are
// like.
#pragma once

#include <cstdint>
#include <string>

#include "apps/runtime.h"

namespace CLI {
class App;
}

namespace kvasir {

struct TrainPredictorOptions {
  RuntimeOptions runtime;
  std::string trace;       // see predictor/length_trace.h
  std::string output;      // as --length-predictor-file reads it; empty: only the report
  std::string save_trace;  // the requests with their lengths; empty: not kept
  uint32_t max_tokens = 512;
  uint32_t resample = 0;  // answers more, of each of
  uint32_t resampled = 200;
  uint64_t seed = 0;
};

void add_train_predictor_flags(CLI::App& app, TrainPredictorOptions& options);

// 0, or 1 after one line on standard error.
int run_train_predictor(const TrainPredictorOptions& options);

}  // namespace kvasir
