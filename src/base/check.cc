#include "base/check.h"

#include <cstdio>
#include <cstdlib>

namespace kvasir {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  fmt::print(stderr, "{}:{}: check failed: {} ({})\n", file, line, condition, values);
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvasir
