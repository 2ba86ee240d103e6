// `kvasir train-predictor`: trains --length-predictor hidden on the lengths of a model's answers to a set of
// requests.
#pragma once

#include <cstdint>
#include <string>

#include "runtime/runtime.h"

namespace CLI {
class App;
}

namespace kvasir {

struct TrainPredictorOptions {
  RuntimeOptions runtime;
  std::string trace;       // see apps/predictor/length_trace.h
  std::string output;      // as --length-predictor-file reads it; empty: only the report
  std::string save_trace;  // the requests with their lengths; empty: not kept
  uint32_t max_tokens = 512;
  uint32_t resample = 0;  // further answers to each of `resampled` requests of the test
  uint32_t resampled = 200;
  uint64_t seed = 0;
};

void add_train_predictor_flags(CLI::App& app, TrainPredictorOptions& options);

// 0, or 1 after one line on standard error.
int run_train_predictor(const TrainPredictorOptions& options);

}  // namespace kvasir
