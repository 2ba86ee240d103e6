// Blocks in an order: each at most once, the first to come at the front.
#pragma once

#include <cstddef>
#include <cstdint>
#include <iterator>
#include <vector>

#include "base/check.h"
#include "contract/ids.h"

namespace kvasir {

// A linked list in a table by block: adding or removing a block allocates nothing. Used by one thread.
class BlockList {
 public:
  class Iterator {
   public:
    using iterator_category = std::forward_iterator_tag;
    using value_type = BlockId;
    using difference_type = std::ptrdiff_t;
    using pointer = const BlockId*;
    using reference = BlockId;
    Iterator() = default;
    BlockId operator*() const { return at_; }
    Iterator& operator++() {
      at_ = list_->links_[raw(at_)].next;
      return *this;
    }
    Iterator operator++(int) {
      const Iterator before = *this;
      ++*this;
      return before;
    }
    bool operator==(const Iterator& o) const { return at_ == o.at_; }

   private:
    friend class BlockList;
    Iterator(const BlockList* list, BlockId at) : list_(list), at_(at) {}
    const BlockList* list_ = nullptr;
    BlockId at_ = kNoBlock;
  };
  // Removing a block invalidates the iterators to that block only.
  Iterator begin() const { return {this, first_}; }
  Iterator end() const { return {this, kNoBlock}; }

  bool empty() const { return size_ == 0; }
  uint32_t size() const { return size_; }
  bool contains(BlockId id) const { return raw(id) < links_.size() && links_[raw(id)].listed; }
  // REQUIRES: the list is not empty.
  BlockId front() const {
    KV_CHECK(size_ > 0, "the list of {} blocks has no front", size_);
    return first_;
  }

  // REQUIRES: it is not in the list.
  void push_back(BlockId id) {
    KV_CHECK(!contains(id), "block={}", raw(id));
    if (raw(id) >= links_.size()) links_.resize(raw(id) + size_t{1});
    links_[raw(id)] = {last_, kNoBlock, true};
    (last_ == kNoBlock ? first_ : links_[raw(last_)].next) = id;
    last_ = id;
    ++size_;
  }
  // REQUIRES: it is in the list.
  void erase(BlockId id) {
    KV_CHECK(contains(id), "block={}", raw(id));
    const Link gone = links_[raw(id)];
    (gone.before == kNoBlock ? first_ : links_[raw(gone.before)].next) = gone.next;
    (gone.next == kNoBlock ? last_ : links_[raw(gone.next)].before) = gone.before;
    links_[raw(id)].listed = false;
    --size_;
  }

 private:
  struct Link {
    BlockId before = kNoBlock;
    BlockId next = kNoBlock;
    bool listed = false;
  };
  std::vector<Link> links_;
  BlockId first_ = kNoBlock;
  BlockId last_ = kNoBlock;
  uint32_t size_ = 0;
};

}  // namespace kvasir
