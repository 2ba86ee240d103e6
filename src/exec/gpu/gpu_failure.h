// The first error after which a GPU is not used any more.
#pragma once

#include <atomic>
#include <mutex>
#include <new>
#include <string>

#include "base/status.h"

namespace kvasir {

// The executor and the mover of a GPU share one: after an error of the device that either of them finds, both
// stop using it. Thread-safe.
class GpuFailure {
 public:
  // Not ok: the first one counts. Returns whether it is that.
  bool note(const Status& status) {
    const std::lock_guard lock(mutex_);
    if (status.ok() || has_come_) return false;
    code_ = status.code();
    try {
      words_ = status.message();
    } catch (const std::bad_alloc&) {
      words_ = "the GPU failed";  // so short that it needs no memory
    }
    has_come_ = true;
    return true;
  }
  // "": there was none. Takes no lock.
  std::string words() const { return has_come_ ? words_ : std::string(); }
  Status status() const { return has_come_ ? Status(code_, words_) : Status(); }

 private:
  std::mutex mutex_;
  // Written once, before has_come_ is set.
  ErrorCode code_{};
  std::string words_;
  std::atomic<bool> has_come_{false};
};

}  // namespace kvasir
