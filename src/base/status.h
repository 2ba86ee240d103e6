// Status and Result<T>: how a function reports an error that a correct program can meet.
//
// The message is one line for the user: it names the thing and says what to do.
#pragma once

#include <fmt/format.h>

#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace kvasir {

enum class ErrorCode {
  kInvalidArgument,  // the caller's input is wrong; a retry will not help
  kNotFound,         // a file, model or name that does not exist
  kCorrupt,          // inconsistent data: a damaged file, a truncated message
  kUnsupported,      // well formed, but not supported by this build
  kExhausted,        // a bound is reached (memory, queue, disk): may work later
  kOverShare,        // the caller takes all that it may take of what others need, too: may work later
  kUnavailable,      // loading, draining, or a peer that does not answer
  kIo,               // the operating system reported an error
};

class [[nodiscard]] Status {
 public:
  Status() = default;  // success
  Status(ErrorCode code, std::string message) : code_(code), message_(std::move(message)), ok_(false) {}

  bool ok() const { return ok_; }
  // REQUIRES: !ok()
  ErrorCode code() const {
    KV_CHECK(!ok_, "an ok Status has no code");
    return code_;
  }
  const std::string& message() const { return message_; }

 private:
  ErrorCode code_ = ErrorCode::kInvalidArgument;
  std::string message_;
  bool ok_ = true;
};

// error(ErrorCode::kCorrupt, "{}: tensor '{}' ends past the file", path, name)
template <typename... Args>
Status error(ErrorCode code, fmt::format_string<Args...> format, Args&&... args) {
  return Status(code, fmt::format(format, std::forward<Args>(args)...));
}

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : state_(std::in_place_index<0>, std::move(value)) {}
  Result(Status status) : state_(std::in_place_index<1>, std::move(status)) {
    KV_CHECK(!std::get<1>(state_).ok(), "a Result holds a value or an error");
  }

  bool ok() const { return state_.index() == 0; }
  // REQUIRES: ok()
  T& value() & {
    require_ok();
    return std::get<0>(state_);
  }
  const T& value() const& {
    require_ok();
    return std::get<0>(state_);
  }
  T&& value() && {
    require_ok();
    return std::get<0>(std::move(state_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  Status status() const { return ok() ? Status() : std::get<1>(state_); }

 private:
  void require_ok() const { KV_CHECK(ok(), "value of an error: {}", std::get<1>(state_).message()); }

  std::variant<T, Status> state_;
};

}  // namespace kvasir

// KV_RETURN_IF_ERROR(expression that yields a Status)
#define KV_RETURN_IF_ERROR(expression)                                                \
  do {                                                                                \
    if (::kvasir::Status kv_status = (expression); !kv_status.ok()) return kv_status; \
  } while (false)

#define KV_CONCAT_INNER(a, b) a##b
#define KV_CONCAT(a, b) KV_CONCAT_INNER(a, b)
// KV_ASSIGN_OR_RETURN(auto file, open_file(path))
#define KV_ASSIGN_OR_RETURN(declaration, expression)                                          \
  auto KV_CONCAT(kv_result_, __LINE__) = (expression);                                        \
  if (!KV_CONCAT(kv_result_, __LINE__).ok()) return KV_CONCAT(kv_result_, __LINE__).status(); \
  declaration = std::move(KV_CONCAT(kv_result_, __LINE__)).value()
