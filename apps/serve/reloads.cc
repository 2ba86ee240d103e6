#include "apps/serve/reloads.h"

#include <exception>

#include "base/log.h"

namespace kvasir {

void Reloads::add(std::string what, std::function<Status()> read_again, std::string done) {
  const std::lock_guard lock(mutex_);
  all_.push_back({std::move(what), std::move(read_again), std::move(done)});
}

void Reloads::run() {
  const std::lock_guard lock(mutex_);
  if (all_.empty()) log_info("SIGHUP: there is nothing to read again");
  for (const auto& [what, read_again, done] : all_) {
    Status status;
    try {
      status = read_again();
    } catch (const std::exception& e) {
      status = error(ErrorCode::kIo, "{}", e.what());
    }
    if (status.ok()) {
      log_info("SIGHUP: {} {}", what, done);
    } else {
      log_error("SIGHUP: the old {} stay in use: {}", what, status.message());
    }
  }
}

}  // namespace kvasir
