// Lets bytes through at a rate: the speed of an emulated link.
#pragma once

#include <cstdint>

#include "base/clock.h"

namespace kvasir {

// Tells when bytes are through; to wait until then is the caller's part. It keeps no tokens for later: a link
// that was idle is not faster afterwards, so that a lone small transfer takes its time, too. What it says
// depends on how many bytes came and since when some have waited, not on when it was asked: however late the
// caller wakes up, the bytes that waited meanwhile make up for it.
//
// Not thread-safe.
class TokenBucket {
 public:
  // REQUIRES: bytes_per_s > 0
  explicit TokenBucket(double bytes_per_s);

  // When `bytes` are through, behind all that was passed before. `since`: when these, or others that have
  // waited without a break, could have begun to pass.
  Nanos pass(uint64_t bytes, Nanos since);

 private:
  Nanos through() const { return began_ + from_seconds(static_cast<double>(bytes_) / bytes_per_s_); }

  const double bytes_per_s_;
  // Since when bytes have passed without a gap, and how many: a sum, so that roundings do not add up.
  Nanos began_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace kvasir
