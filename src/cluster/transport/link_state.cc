#include "cluster/transport/link_state.h"

#include <algorithm>

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

}  // namespace kvasir
