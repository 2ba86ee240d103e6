#include "cache/link_arbiter.h"

#include "base/check.h"

namespace kvasir {

void LinkArbiter::claim() {
  claims_.fetch_add(1);
}

void LinkArbiter::release() {
  const int claims = claims_.fetch_sub(1);
  KV_CHECK(claims > 0, "claims={}", claims);
  if (claims > 1) return;
  std::lock_guard lock(mutex_);
  for (const auto& [link, released] : links_) released();
}

void LinkArbiter::subscribe(const void* link, std::function<void()> released) {
  std::lock_guard lock(mutex_);
  links_.emplace_back(link, std::move(released));
}

void LinkArbiter::unsubscribe(const void* link) {
  std::lock_guard lock(mutex_);
  std::erase_if(links_, [link](const auto& entry) { return entry.first == link; });
}

}  // namespace kvasir
