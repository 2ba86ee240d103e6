// What the program found: a line for people, and the same as a line of JSON, each written at once.
#pragma once

#include <cstdio>
#include <nlohmann/json_fwd.hpp>
#include <string>

namespace kvasir::gpu_program {

class Report {
 public:
  // json_path: a file that is appended to; empty: none. Throws std::runtime_error if it cannot be opened.
  explicit Report(const std::string& json_path);
  ~Report();
  Report(const Report&) = delete;
  Report& operator=(const Report&) = delete;

  // `text` without a line end.
  void add(const nlohmann::json& fact, const std::string& text);

 private:
  std::FILE* file_ = nullptr;
};

// As printf does.
[[gnu::format(printf, 1, 2)]] std::string text_of(const char* format, ...);

}  // namespace kvasir::gpu_program
