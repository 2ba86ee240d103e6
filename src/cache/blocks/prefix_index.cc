#include "cache/blocks/prefix_index.h"

#include <algorithm>
#include <utility>

#include "base/check.h"

namespace kvasir {

BlockId PrefixIndex::find(const BlockHash& hash) const {
  auto it = entries_.find(hash);
  return it == entries_.end() ? kNoBlock : it->second.block;
}

bool PrefixIndex::publish(const BlockHash& hash, BlockId block, const Adoptable& what) {
  Entry& entry = entries_[hash];
  if (entry.block != kNoBlock) return false;
  entry.block = block;
  if (raw(block) >= blocks_.size()) blocks_.resize(raw(block) + size_t{1});
  blocks_[raw(block)] = {&entry, what, !entry.watchers.empty()};
  ++published_;
  if (entry.watchers.empty()) return true;
  // extend() touches the lists of later hashes only, but may grow the table: copy the list first.
  const std::vector<Watcher> watchers = entry.watchers;
  for (const Watcher& w : watchers) extend(w.seq, watches_.at(w.seq));
  return true;
}

void PrefixIndex::unpublish(const BlockHash& hash) {
  auto it = entries_.find(hash);
  KV_CHECK(it != entries_.end() && it->second.block != kNoBlock, "the hash is not published");
  Entry& entry = it->second;
  const std::vector<Watcher> watchers = entry.watchers;
  for (const Watcher& w : watchers) {
    Watch& watch = watches_.at(w.seq);
    // The match now ends at w.depth: it stays on this hash's list, and is removed from the later ones.
    const uint32_t last =
        std::min<uint32_t>(watch.match.matched, static_cast<uint32_t>(watch.chain.size()) - 1);
    for (uint32_t d = w.depth + 1; d <= last; ++d) remove(watch, d);
    for (uint32_t d = w.depth; d < watch.match.matched; ++d) {
      watch.match.what.add(blocks_[raw(entries_.at(watch.chain[d]).block)].what, -1u);
    }
    watch.match.matched = w.depth;
    changed_.insert(w.seq);
  }
  blocks_[raw(entry.block)] = {};
  entry.block = kNoBlock;
  --published_;
  if (entry.watchers.empty()) entries_.erase(it);
}

void PrefixIndex::update(BlockId block, const Adoptable& what) {
  Published& published = blocks_[raw(block)];
  if (published.what == what) return;
  const Adoptable before = std::exchange(published.what, what);
  if (!published.watched) return;
  for (const Watcher& w : published.entry->watchers) {
    Watch& watch = watches_.at(w.seq);
    KV_CHECK(w.depth < watch.match.matched, "depth={} matched={}", w.depth, watch.match.matched);
    watch.match.what.add(before, -1u);
    watch.match.what.add(what, 1);
    changed_.insert(w.seq);
  }
}

void PrefixIndex::note_watchers(const Entry& entry) {
  if (entry.block != kNoBlock) blocks_[raw(entry.block)].watched = !entry.watchers.empty();
}

void PrefixIndex::watch(SeqId seq, std::vector<BlockHash> chain) {
  auto [it, inserted] = watches_.try_emplace(seq);
  KV_CHECK(inserted, "seq={}", raw(seq));
  it->second.chain = std::move(chain);
  if (it->second.chain.empty()) return;
  it->second.places.resize(it->second.chain.size());
  join(seq, it->second, 0);
  extend(seq, it->second);
}

void PrefixIndex::unwatch(SeqId seq) {
  auto it = watches_.find(seq);
  if (it == watches_.end()) return;
  Watch& watch = it->second;
  for (uint32_t d = 0; d < watch.chain.size() && d <= watch.match.matched; ++d) remove(watch, d);
  watches_.erase(it);
  changed_.erase(seq);
}

PrefixIndex::Match PrefixIndex::match(SeqId seq) const {
  auto it = watches_.find(seq);
  return it == watches_.end() ? Match{} : it->second.match;
}

std::vector<SeqId> PrefixIndex::take_changed() {
  std::vector<SeqId> out(changed_.begin(), changed_.end());
  changed_.clear();
  return out;
}

// Grows the match while the next hash has a block, and puts the watch on the list of each hash it reaches.
void PrefixIndex::extend(SeqId seq, Watch& watch) {
  Match& m = watch.match;
  while (m.matched < watch.chain.size()) {
    const Entry& entry = entries_.at(watch.chain[m.matched]);
    if (entry.block == kNoBlock) break;
    m.what.add(blocks_[raw(entry.block)].what, 1);
    ++m.matched;
    if (m.matched < watch.chain.size()) join(seq, watch, m.matched);
    changed_.insert(seq);
  }
}

void PrefixIndex::join(SeqId seq, Watch& watch, uint32_t depth) {
  Entry& entry = entries_[watch.chain[depth]];
  watch.places[depth] = static_cast<uint32_t>(entry.watchers.size());
  entry.watchers.push_back({seq, depth});
  note_watchers(entry);
}

void PrefixIndex::remove(Watch& watch, uint32_t depth) {
  auto it = entries_.find(watch.chain[depth]);
  KV_CHECK(it != entries_.end(), "depth={}", depth);
  auto& list = it->second.watchers;
  const uint32_t place = watch.places[depth];
  KV_CHECK(place < list.size(), "depth={} place={} of {}", depth, place, list.size());
  const Watcher moved = list.back();
  list[place] = moved;
  watches_.at(moved.seq).places[moved.depth] = place;
  list.pop_back();
  note_watchers(it->second);
  if (list.empty() && it->second.block == kNoBlock) entries_.erase(it);
}

}  // namespace kvasir
