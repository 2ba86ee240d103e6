#include "cache/tiers/token_bucket.h"

#include "base/check.h"

namespace kvasir {

TokenBucket::TokenBucket(double bytes_per_s) : bytes_per_s_(bytes_per_s) {
  KV_CHECK(bytes_per_s > 0, "bytes_per_s={}", bytes_per_s);
}

Nanos TokenBucket::pass(uint64_t bytes, Nanos since) {
  if (since > through()) {
    began_ = since;
    bytes_ = 0;
  }
  bytes_ += bytes;
  return through();
}

}  // namespace kvasir
