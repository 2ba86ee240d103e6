#include "base/check.h"

#include <cstdio>
#include <cstdlib>

#include "base/log.h"

namespace kvasir {

void check_failed(const char* file, int line, const char* condition, const std::string& values) {
  flush_log();
  fmt::print(stderr, "{}:{}: check failed: {} ({})\n", file, line, condition, values);
  std::fflush(stderr);
  std::abort();
}

}  // namespace kvasir
