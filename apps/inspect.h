// `kvasir inspect`: what a model file holds.
#pragma once

#include <string>

namespace kvasir {

// Prints to standard output; 0, or 1 after one line on standard error.
int run_inspect(const std::string& model_path);

}  // namespace kvasir
