#include "cluster/transport/link_state.h"

#include <algorithm>
#include <utility>

namespace kvasir {

Nanos RunTime::at(Nanos now) {
  if (began_) run_ += std::clamp<Nanos>(now - last_, 0, stride_);
  began_ = true;
  last_ = now;
  return run_;
}

void SendProgress::sent(Nanos now) {
  if (sent_ == taken_) since_ = now;
  ++sent_;
}

bool SendProgress::taken(uint64_t total, Nanos now) {
  if (total > sent_ || total < taken_) return false;
  if (total > taken_) since_ = now;
  taken_ = total;
  return true;
}

uint64_t TakenReports::due() {
  if (taken_ == reported_) return 0;
  return reported_ = taken_;
}

std::vector<MessagePart> Reorder::pass() {
  ++next_;
  std::vector<MessagePart> due;
  for (auto it = held_.begin(); it != held_.end() && it->first == next_; it = held_.erase(it), ++next_) {
    held_bytes_ -= it->second.bytes.size();
    due.push_back(std::move(it->second));
  }
  return due;
}

bool Reorder::hold(uint64_t sequence, MessagePart part) {
  if (sequence <= next_) return false;
  const size_t bytes = part.bytes.size();
  if (!held_.emplace(sequence, std::move(part)).second) return false;
  held_bytes_ += bytes;
  return true;
}

bool Assembly::add(uint64_t message_bytes, std::span<const std::byte> part) {
  if (!open_) {
    open_ = true;
    message_bytes_ = message_bytes;
    message_.reserve(message_bytes);
  }
  if (message_bytes != message_bytes_ || part.size() > message_bytes_ - message_.size()) return false;
  if (part.empty() && message_bytes_ != 0) return false;  // or it could go on for ever
  message_.insert(message_.end(), part.begin(), part.end());
  return true;
}

std::vector<std::byte> Assembly::take() {
  open_ = false;
  return std::exchange(message_, {});
}

}  // namespace kvasir
