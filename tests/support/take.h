// The value of a result that a test cannot go on without.
#pragma once

#include <utility>

#include "base/check.h"
#include "base/status.h"

namespace kvasir::test {

// Ends the program, with the error's message, where there is none.
template <typename T>
T take(Result<T> result) {
  KV_CHECK(result.ok(), "{}", result.status().message());
  return std::move(result).value();
}

}  // namespace kvasir::test
