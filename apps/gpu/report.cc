#include "apps/gpu/report.h"

#include <cstdarg>
#include <nlohmann/json.hpp>
#include <stdexcept>

namespace kvasir::gpu_program {

Report::Report(const std::string& json_path) {
  if (json_path.empty()) return;
  file_ = std::fopen(json_path.c_str(), "a");
  if (file_ == nullptr) throw std::runtime_error("cannot write " + json_path);
}

Report::~Report() {
  if (file_ != nullptr) std::fclose(file_);
}

void Report::add(const nlohmann::json& fact, const std::string& text) {
  std::printf("%s\n", text.c_str());
  std::fflush(stdout);
  if (file_ == nullptr) return;
  std::fprintf(file_, "%s\n", fact.dump().c_str());
  std::fflush(file_);
}

std::string text_of(const char* format, ...) {
  char line[1024];
  va_list arguments;
  va_start(arguments, format);
  std::vsnprintf(line, sizeof line, format, arguments);
  va_end(arguments);
  return line;
}

}  // namespace kvasir::gpu_program
