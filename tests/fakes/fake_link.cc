#include "fakes/fake_link.h"

#include <algorithm>
#include <utility>

namespace kvasir::test {

Status FakeLink::start(const Transfer& transfer) {
  std::lock_guard lock(mutex_);
  if (refusing_ || queue_.size() >= capacity_) {
    return error(ErrorCode::kExhausted, "the link has {} transfers queued: try again later", queue_.size());
  }
  queue_.push_back({transfer, clock_.now()});
  return {};
}

std::vector<TransferDone> FakeLink::completed() {
  std::lock_guard lock(mutex_);
  return std::exchange(done_, {});
}

bool FakeLink::complete_next(Status status) {
  std::lock_guard lock(mutex_);
  if (stalled_ || queue_.empty()) return false;
  auto next = std::min_element(queue_.begin(), queue_.end(), [](const Queued& a, const Queued& b) {
    return a.transfer.priority < b.transfer.priority;
  });
  done_.push_back({next->transfer.id, std::move(status), next->started, clock_.now()});
  queue_.erase(next);
  return true;
}

size_t FakeLink::complete_all() {
  size_t ended = 0;
  while (complete_next()) ++ended;
  return ended;
}

void FakeLink::stall(bool on) {
  std::lock_guard lock(mutex_);
  stalled_ = on;
}

void FakeLink::refuse(bool on) {
  std::lock_guard lock(mutex_);
  refusing_ = on;
}

size_t FakeLink::queued() const {
  std::lock_guard lock(mutex_);
  return queue_.size();
}

}  // namespace kvasir::test
