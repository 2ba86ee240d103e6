// A hash map in a few large allocations, whose entries stay where they are until they are erased.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace kvasir {

// Of ids, which are mostly counted up. Multiplication spreads neighbours over the table.
template <typename Key>
struct IdHash {
  uint64_t operator()(Key key) const { return static_cast<uint64_t>(key) * 0x9e3779b97f4a7c15u; }
};

// Entries lie in chunks, and those that are erased are used again: in the steady state nothing is allocated.
// The index is a table with open addressing, at most half full. A lookup that finds something reads one slot
// and one entry, mostly. Used by one thread.
//
// Hash: 64 bits, of which the highest must be spread well.
template <typename Key, typename T, typename Hash = IdHash<Key>>
class PooledMap {
 public:
  struct Entry {
    const Key key;
    T value;
  };

 private:
  struct Slot {
    uint64_t hash = 0;
    Entry* entry = nullptr;
  };

 public:
  PooledMap() = default;
  PooledMap(const PooledMap&) = delete;
  PooledMap& operator=(const PooledMap&) = delete;
  ~PooledMap() {
    for (const Slot& slot : slots_) {
      if (slot.entry) slot.entry->~Entry();
    }
  }

  bool empty() const { return size_ == 0; }
  size_t size() const { return size_; }

  // Null if there is none.
  T* find(const Key& key) {
    if (size_ == 0) return nullptr;
    const uint64_t hash = Hash()(key);
    for (size_t i = home(hash); slots_[i].entry; i = after(i)) {
      if (slots_[i].hash == hash && slots_[i].entry->key == key) return &slots_[i].entry->value;
    }
    return nullptr;
  }
  const T* find(const Key& key) const { return const_cast<PooledMap*>(this)->find(key); }
  bool contains(const Key& key) const { return find(key) != nullptr; }

  // The value of the key, and whether it is new: then it was made of `args`.
  template <typename... Args>
  std::pair<T*, bool> try_emplace(const Key& key, Args&&... args) {
    if (2 * (size_ + 1) > slots_.size()) index(std::max<size_t>(16, 2 * slots_.size()));
    const uint64_t hash = Hash()(key);
    size_t i = home(hash);
    for (; slots_[i].entry; i = after(i)) {
      if (slots_[i].hash == hash && slots_[i].entry->key == key) return {&slots_[i].entry->value, false};
    }
    void* const place = room();
    Entry* entry = nullptr;
    try {
      entry = new (place) Entry{key, T(std::forward<Args>(args)...)};
    } catch (...) {
      erased_.push_back(place);
      throw;
    }
    slots_[i] = {hash, entry};
    ++size_;
    return {&entry->value, true};
  }
  T& operator[](const Key& key) { return *try_emplace(key).first; }

  // False if there is none. Allocates nothing.
  bool erase(const Key& key) {
    if (size_ == 0) return false;
    const uint64_t hash = Hash()(key);
    size_t i = home(hash);
    while (slots_[i].entry && !(slots_[i].hash == hash && slots_[i].entry->key == key)) i = after(i);
    Entry* const entry = slots_[i].entry;
    if (!entry) return false;
    close_gap(i);
    --size_;
    entry->~Entry();
    erased_.push_back(entry);
    return true;
  }
  // Keeps the memory.
  void clear() {
    for (Slot& slot : slots_) {
      if (!slot.entry) continue;
      slot.entry->~Entry();
      erased_.push_back(slot.entry);
      slot = {};
    }
    size_ = 0;
  }
  // Room for so many entries in all.
  void reserve(size_t entries) {
    if (2 * entries > slots_.size()) index(std::bit_ceil(std::max<size_t>(16, 2 * entries)));
    const size_t known = size_ + erased_.size() + static_cast<size_t>(end_ - next_);
    if (entries > known) add_chunk(entries - known);
  }

  // In no particular order. Erasing or adding an entry invalidates iterators.
  template <typename Item>
  class Walk {
   public:
    Walk(const Slot* at, const Slot* end) : at_(at), end_(end) { skip(); }
    Item& operator*() const { return *at_->entry; }
    Walk& operator++() {
      ++at_;
      skip();
      return *this;
    }
    bool operator==(const Walk& o) const { return at_ == o.at_; }

   private:
    void skip() {
      while (at_ != end_ && !at_->entry) ++at_;
    }
    const Slot* at_;
    const Slot* end_;
  };
  auto begin() { return Walk<Entry>(slots_.data(), slots_.data() + slots_.size()); }
  auto end() { return Walk<Entry>(slots_.data() + slots_.size(), slots_.data() + slots_.size()); }
  auto begin() const { return Walk<const Entry>(slots_.data(), slots_.data() + slots_.size()); }
  auto end() const { return Walk<const Entry>(slots_.data() + slots_.size(), slots_.data() + slots_.size()); }

 private:
  struct alignas(Entry) Room {
    std::byte bytes[sizeof(Entry)];
  };

  size_t home(uint64_t hash) const { return hash >> shift_; }
  size_t after(size_t slot) const { return (slot + 1) & (slots_.size() - 1); }

  // Moves later entries of the run into the gap where they would be found earlier.
  void close_gap(size_t gap) {
    const size_t mask = slots_.size() - 1;
    for (size_t i = after(gap); slots_[i].entry; i = after(i)) {
      if (((i - home(slots_[i].hash)) & mask) < ((i - gap) & mask)) continue;
      slots_[gap] = slots_[i];
      gap = i;
    }
    slots_[gap] = {};
  }
  // A table of so many slots, a power of two.
  void index(size_t slots) {
    const std::vector<Slot> before = std::exchange(slots_, std::vector<Slot>(slots));
    shift_ = 64 - static_cast<uint32_t>(std::bit_width(slots - 1));
    for (const Slot& slot : before) {
      if (!slot.entry) continue;
      size_t i = home(slot.hash);
      while (slots_[i].entry) i = after(i);
      slots_[i] = slot;
    }
  }
  void* room() {
    if (!erased_.empty()) {
      void* const again = erased_.back();
      erased_.pop_back();
      return again;
    }
    if (next_ == end_) add_chunk(std::max<size_t>(8, size_));
    return next_++;
  }
  void add_chunk(size_t entries) {
    erased_.reserve(places_ + entries);
    chunks_.push_back(std::make_unique_for_overwrite<Room[]>(entries));
    places_ += entries;
    while (next_ != end_) erased_.push_back(--end_);
    next_ = chunks_.back().get();
    end_ = next_ + entries;
  }

  std::vector<Slot> slots_;
  uint32_t shift_ = 64;  // the home of a hash is its highest bits
  size_t size_ = 0;
  std::vector<std::unique_ptr<Room[]>> chunks_;
  Room* next_ = nullptr;  // places of the last chunk that were never used
  Room* end_ = nullptr;
  std::vector<void*> erased_;  // places to use again; there is room for all of them
  size_t places_ = 0;
};

}  // namespace kvasir
