// KV_CHECK: for our own bugs only. It prints the condition, the place and the values, and aborts.
// What can happen in a correct program (a bad file, a full pool, a dead peer) is a Status instead.
#pragma once

#include <fmt/format.h>

#include <string>

namespace kvasir {

[[noreturn]] void check_failed(const char* file, int line, const char* condition, const std::string& values);

}  // namespace kvasir

// KV_CHECK(begin <= end, "begin={} end={}", begin, end)
#define KV_CHECK(condition, ...)                                                          \
  do {                                                                                    \
    if (!(condition)) [[unlikely]] {                                                      \
      ::kvasir::check_failed(__FILE__, __LINE__, #condition, ::fmt::format(__VA_ARGS__)); \
    }                                                                                     \
  } while (false)
