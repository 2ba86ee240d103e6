// `kvasir convert`: a model as a GGUF file of another type.
#pragma once

#include <string>

namespace CLI {
class App;
}

namespace kvasir {

struct ConvertOptions {
  std::string model_path;
  std::string output;
  std::string type;  // a recipe's name
  int threads = 0;   // 0: one per core
};

void add_convert_flags(CLI::App& app, ConvertOptions& options);

// 0, or 1 after one line on standard error.
int run_convert(const ConvertOptions& options);

}  // namespace kvasir
