#include "apps/serve/reloads.h"

#include <exception>

#include "base/log.h"

namespace kvasir {

void Reloads::add(std::string what, std::function<Status()> read_again) {
  const std::lock_guard lock(mutex_);
  all_.emplace_back(std::move(what), std::move(read_again));
}

void Reloads::run() {
  const std::lock_guard lock(mutex_);
  if (all_.empty()) log_info("SIGHUP: there is nothing to read again");
  for (const auto& [what, read_again] : all_) {
    Status status;
    try {
      status = read_again();
    } catch (const std::exception& e) {
      status = error(ErrorCode::kIo, "{}", e.what());
    }
    if (status.ok()) {
      log_info("SIGHUP: {} were read again", what);
    } else {
      log_error("SIGHUP: the old {} stay in use: {}", what, status.message());
    }
  }
}

}  // namespace kvasir
