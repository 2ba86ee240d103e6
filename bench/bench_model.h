// The model of a benchmark: a file, or random weights of a shape.
#pragma once

#include <CLI/CLI.hpp>
#include <memory>
#include <string>

#include "base/status.h"
#include "model/files/model_file.h"
#include "support/tiny_llama.h"

namespace kvasir::bench {

struct ModelChoice {
  std::string file;
  std::string weights = "Q4_1";
  test::TinyLlamaShape shape;  // 12 layers of 768, with keys and values in every head

  ModelChoice() {
    shape.layers = 12;
    shape.dim = 768;
    shape.heads = shape.kv_heads = 12;
    shape.head_dim = 64;
    shape.ffn = 2048;
    shape.vocab = 1024;
  }

  void add_flags(CLI::App& app) {
    app.add_option("-m,--model", file, "a GGUF file; without it random weights of a shape");
    app.add_option("--weights", weights, "type of the random weights");
    app.add_option("--layers", shape.layers);
    app.add_option("--dim", shape.dim);
    app.add_option("--heads", shape.heads);
    app.add_option("--kv-heads", shape.kv_heads);
    app.add_option("--head-dim", shape.head_dim);
    app.add_option("--ffn", shape.ffn);
  }

  Result<std::unique_ptr<ModelFile>> open() const {
    if (!file.empty()) return ModelFile::open(file);
    if (const auto type = ops::weight_type_of_name(weights)) {
      return ModelFile::from_bytes(test::make_tiny_llama(shape, *type, 1), "random weights");
    }
    return error(ErrorCode::kInvalidArgument, "--weights {}: give a type of GGUF, such as Q4_K", weights);
  }
};

}  // namespace kvasir::bench
