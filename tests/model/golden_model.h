// Finds the model file that the golden data was made from; tests that need it skip themselves without it.
#pragma once

#include <cstdlib>
#include <filesystem>
#include <string>

namespace kvasir {

// KVASIR_TEST_MODEL, else the file in the cache folder; empty if there is none.
inline std::string golden_model_path() {
  namespace fs = std::filesystem;
  if (const char* path = std::getenv("KVASIR_TEST_MODEL")) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder;
  if (cache != nullptr && *cache != '\0') {
    folder = cache;
  } else if (home != nullptr) {
    folder = fs::path(home) / ".cache";
  } else {
    return "";
  }
  const fs::path file = folder / "kvasir" / "models" / "SmolLM2-135M-Instruct.Q4_1.gguf";
  std::error_code ignored;
  return fs::exists(file, ignored) ? file.string() : "";
}

constexpr const char* kNoGoldenModel =
    "no model file: set KVASIR_TEST_MODEL to SmolLM2-135M-Instruct.Q4_1.gguf, or fetch it into the cache";

}  // namespace kvasir
