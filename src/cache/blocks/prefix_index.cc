#include "cache/blocks/prefix_index.h"

#include <algorithm>
#include <new>
#include <optional>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"

namespace kvasir {

Tier Adoptable::slowest() const {
  Tier slowest = Tier::kDevice;
  for (size_t p = 0; p < kPlaces; ++p) {
    if (cells[p] > 0) slowest = std::max(slowest, place_at(p).tier);
  }
  return slowest;
}

BlockId PrefixIndex::find(const BlockHash& hash) const {
  const Entry* const entry = entries_.find(hash);
  return entry ? entry->block : kNoBlock;
}

bool PrefixIndex::publish(const BlockHash& hash, BlockId block, const Adoptable& what) {
  Entry& entry = entries_[hash];
  if (entry.block != kNoBlock) return false;
  entry.block = block;
  if (raw(block) >= blocks_.size()) blocks_.resize(raw(block) + size_t{1});
  blocks_[raw(block)] = {&entry, what, !entry.watchers.empty()};
  ++published_;
  if (events_) events_->found(block, what.slowest());
  if (entry.watchers.empty()) return true;
  // extend() touches the lists of later hashes only.
  for (const Watcher& w : entry.watchers) extend(w.seq, *watches_.find(w.seq));
  return true;
}

void PrefixIndex::replace(const BlockHash& hash, BlockId block, const Adoptable& what) {
  Entry* const entry = entries_.find(hash);
  KV_CHECK(entry && entry->block != kNoBlock, "the hash is not published");
  if (raw(block) >= blocks_.size()) blocks_.resize(raw(block) + size_t{1});
  changed_.reserve(changed_.size() + entry->watchers.size());
  if (events_) events_->replaced(entry->block, block, what.slowest());
  blocks_[raw(block)] = std::exchange(blocks_[raw(entry->block)], {});
  entry->block = block;
  update(block, what);
}

void PrefixIndex::unpublish(const BlockHash& hash) {
  Entry* const found = entries_.find(hash);
  KV_CHECK(found && found->block != kNoBlock, "the hash is not published");
  Entry& entry = *found;
  for (const Watcher& w : entry.watchers) {
    Watch& watch = *watches_.find(w.seq);
    // The match now ends at w.depth: it stays on this hash's list, and is removed from the later ones.
    const uint32_t last =
        std::min<uint32_t>(watch.match.matched, static_cast<uint32_t>(watch.chain.size()) - 1);
    for (uint32_t d = w.depth + 1; d <= last; ++d) remove(watch, d);
    for (uint32_t d = w.depth; d < watch.match.matched; ++d) {
      watch.match.what.add(blocks_[raw(entries_.find(watch.chain[d])->block)].what, -1u);
    }
    watch.match.matched = w.depth;
    note_change(w.seq, watch);
  }
  if (events_) events_->found(entry.block, std::nullopt);
  blocks_[raw(entry.block)] = {};
  entry.block = kNoBlock;
  --published_;
  if (entry.watchers.empty()) entries_.erase(hash);
}

void PrefixIndex::update(BlockId block, const Adoptable& what) {
  Published& published = blocks_[raw(block)];
  if (published.what == what) return;
  const Adoptable before = std::exchange(published.what, what);
  if (events_) events_->found(block, what.slowest());
  if (!published.watched) return;
  for (const Watcher& w : published.entry->watchers) {
    Watch& watch = *watches_.find(w.seq);
    KV_CHECK(w.depth < watch.match.matched, "depth={} matched={}", w.depth, watch.match.matched);
    watch.match.what.add(before, -1u);
    watch.match.what.add(what, 1);
    note_change(w.seq, watch);
  }
}

void PrefixIndex::note_watchers(const Entry& entry) {
  if (entry.block != kNoBlock) blocks_[raw(entry.block)].watched = !entry.watchers.empty();
}

void PrefixIndex::watch(SeqId seq, std::vector<BlockHash> chain) {
  const auto [watch, is_new] = watches_.try_emplace(seq);
  KV_CHECK(is_new, "seq={}", raw(seq));
  watch->chain = std::move(chain);
  if (watch->chain.empty()) return;
  try {
    watch->places.resize(watch->chain.size());
    join(seq, *watch, 0);
  } catch (const std::bad_alloc&) {
    watches_.erase(seq);
    throw;
  }
  try {
    extend(seq, *watch);
  } catch (const std::bad_alloc&) {
    unwatch(seq);
    throw;
  }
}

void PrefixIndex::unwatch(SeqId seq) {
  Watch* const watch = watches_.find(seq);
  if (!watch) return;
  for (uint32_t d = 0; d < watch->chain.size() && d <= watch->match.matched; ++d) remove(*watch, d);
  watches_.erase(seq);
}

PrefixIndex::Match PrefixIndex::match(SeqId seq) const {
  const Watch* const watch = watches_.find(seq);
  return watch ? with_window(*watch, watch->match) : Match{};
}

// The part of a match in which the blocks of the window at its end have all their cells. Takes time linear in
// the blocks of the window, and in those by which the match becomes shorter.
PrefixIndex::Match PrefixIndex::with_window(const Watch& watch, Match match) const {
  if (geometry_.window == 0) return match;
  const auto at = [&](uint32_t depth) -> const Adoptable& {
    return blocks_[raw(find(watch.chain[depth]))].what;
  };
  const uint32_t matched = match.matched;
  uint32_t end = matched, dead = 0;
  while (end > 0) {
    dead = geometry_.dead_blocks(end * geometry_.block_tokens);
    if (mutant(Mutant::kPrefixWindowShort)) dead = std::min(dead + 1, end);
    uint32_t first = end;
    while (first > dead && !at(first - 1).lacks_windowed) --first;
    if (first == dead) break;
    end = first - 1;
  }
  if (end == 0) return {};
  for (uint32_t d = end; d < matched; ++d) match.what.add(at(d), -1u);
  const Adoptable all = match.what;
  match.what.add_windowed(all, -1u);
  for (uint32_t d = dead; d < end; ++d) match.what.add_windowed(at(d), 1);
  match.matched = end;
  return match;
}

PrefixIndex::Match PrefixIndex::match_on_device(SeqId seq) const {
  Match m;
  const Watch* const watch = watches_.find(seq);
  if (!watch) return m;
  for (; m.matched < watch->match.matched; ++m.matched) {
    const Adoptable& what = blocks_[raw(find(watch->chain[m.matched]))].what;
    if (what.slowest() != Tier::kDevice) break;
    m.what.add(what, 1);
  }
  return with_window(*watch, m);
}

std::vector<SeqId> PrefixIndex::take_changed() {
  std::vector<SeqId> out = std::exchange(changed_, {});
  std::erase_if(out, [&](SeqId seq) {
    Watch* const watch = watches_.find(seq);
    return !watch || !std::exchange(watch->changed, false);
  });
  return out;
}

void PrefixIndex::note_change(SeqId seq, Watch& watch) {
  if (!std::exchange(watch.changed, true)) changed_.push_back(seq);
}

// Grows the match while the next hash has a block, and puts the watch on the list of each hash it reaches.
void PrefixIndex::extend(SeqId seq, Watch& watch) {
  Match& m = watch.match;
  while (m.matched < watch.chain.size()) {
    const Entry& entry = *entries_.find(watch.chain[m.matched]);
    if (entry.block == kNoBlock) break;
    // First what can fail, so that the lists fit the match at any time.
    if (m.matched + 1 < watch.chain.size()) join(seq, watch, m.matched + 1);
    m.what.add(blocks_[raw(entries_.find(watch.chain[m.matched])->block)].what, 1);
    ++m.matched;
    note_change(seq, watch);
  }
}

void PrefixIndex::join(SeqId seq, Watch& watch, uint32_t depth) {
  Entry& entry = entries_[watch.chain[depth]];
  try {
    entry.watchers.push_back({seq, depth});
  } catch (const std::bad_alloc&) {
    if (entry.watchers.empty() && entry.block == kNoBlock) entries_.erase(watch.chain[depth]);
    throw;
  }
  watch.places[depth] = static_cast<uint32_t>(entry.watchers.size() - 1);
  note_watchers(entry);
}

void PrefixIndex::remove(Watch& watch, uint32_t depth) {
  Entry* const entry = entries_.find(watch.chain[depth]);
  KV_CHECK(entry, "depth={}", depth);
  auto& list = entry->watchers;
  const uint32_t place = watch.places[depth];
  KV_CHECK(place < list.size(), "depth={} place={} of {}", depth, place, list.size());
  const Watcher moved = list.back();
  list[place] = moved;
  watches_.find(moved.seq)->places[moved.depth] = place;
  list.pop_back();
  note_watchers(*entry);
  if (list.empty() && entry->block == kNoBlock) entries_.erase(watch.chain[depth]);
}

}  // namespace kvasir
