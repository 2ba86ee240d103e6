// KvCache: what others are told of blocks that can be reused.
#include <optional>
#include <span>

#include "cache/sequences/kv_cache.h"

namespace kvasir {

// `id` has the tokens of the sequence's block of that number.
void KvCache::describe(const Sequence& seq, uint32_t number, BlockId id) {
  if (seq.salted) return events_->conceal(id);
  const uint32_t b = block_tokens();
  events_->describe(id, seq.hashes[number + 1], number, number > 0 ? &seq.hashes[number] : nullptr,
                    std::span(seq.tokens).subspan(size_t{number} * b, b));
}

std::vector<CacheEvent> KvCache::take_all_events() {
  events_->take();
  return events_->everything();
}

}  // namespace kvasir
