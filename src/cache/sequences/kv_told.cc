// KvCache: what others are told of blocks that can be reused, and people of transfers in flight.
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

KvCache::InFlight KvCache::in_flight(const TransferRecord& record) const {
  InFlight out;
  if (record.seq) out.seq = record.seq->holds.seq;
  uint32_t read = 0, filled = 0;
  const auto add = [&](const Use& use) {
    (use.fills ? out.to : out.from) = use.place;
    (use.fills ? filled : read) += use.groups.count();
  };
  for (const Use& use : record.uses) add(use);
  uint32_t shared_blocks = 0;
  if (record.reads && !out.from) {
    for (const Use& use : record.reads->uses) add(use);
    shared_blocks = static_cast<uint32_t>(record.reads->uses.size());
  }
  // Of what several transfers read each stages one layer: a cell of each block.
  out.cells = filled > 0 ? filled : record.uses.empty() && record.reads ? shared_blocks : read;
  return out;
}

}  // namespace kvasir
