#include "server/response_store.h"

namespace kvasir {
namespace {

constexpr uint64_t kEntryBytes = 512;  // the nodes of list and map, and what the allocator adds

uint64_t bytes_of(const ApiMessage& m) {
  uint64_t bytes = sizeof(m) + m.role.size() + m.content.size() + m.reasoning.size() + m.tool_call_id.size() +
                   m.name.size();
  for (const ApiToolCall& call : m.tool_calls) {
    bytes += sizeof(call) + call.id.size() + call.name.size() + call.arguments.size();
  }
  return bytes;
}

}  // namespace

uint64_t StoredResponse::bytes() const {
  uint64_t bytes = kEntryBytes + owner.size() + body.size();
  for (const ApiMessage& m : messages) bytes += bytes_of(m);
  return bytes;
}

void ResponseStore::erase(Entries::iterator entry) {
  const uint64_t bytes = entry->second->bytes();
  bytes_ -= bytes;
  const auto held = by_owner_.find(entry->second->owner);
  held->second.bytes -= bytes;
  if (--held->second.entries == 0) by_owner_.erase(held);
  by_id_.erase(entry->first);
  entries_.erase(entry);
}

ResponseStore::Entries::iterator ResponseStore::next_to_go(bool by_bytes) {
  const uint64_t all = by_bytes ? bytes_ : entries_.size();
  auto entry = std::prev(entries_.end());
  // Some owner has an equal share at least.
  for (;; --entry) {
    const Held& held = by_owner_.at(entry->second->owner);
    if ((by_bytes ? held.bytes : held.entries) * by_owner_.size() >= all) return entry;
  }
}

void ResponseStore::add(const std::string& id, StoredResponse response) {
  const uint64_t bytes = response.bytes();
  if (bytes > max_bytes_ || max_entries_ == 0) return;
  auto kept = std::make_shared<const StoredResponse>(std::move(response));
  const std::lock_guard lock(mutex_);
  if (const auto it = by_id_.find(id); it != by_id_.end()) erase(it->second);
  while (bytes_ + bytes > max_bytes_ || entries_.size() >= max_entries_) {
    erase(next_to_go(/*by_bytes=*/bytes_ + bytes > max_bytes_));
  }
  Held& held = by_owner_[kept->owner];
  entries_.emplace_front(id, std::move(kept));
  by_id_[id] = entries_.begin();
  bytes_ += bytes;
  held.bytes += bytes;
  ++held.entries;
}

std::shared_ptr<const StoredResponse> ResponseStore::find(const std::string& id, std::string_view owner) {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end() || it->second->second->owner != owner) return nullptr;
  entries_.splice(entries_.begin(), entries_, it->second);
  return it->second->second;
}

bool ResponseStore::remove(const std::string& id, std::string_view owner) {
  const std::lock_guard lock(mutex_);
  const auto it = by_id_.find(id);
  if (it == by_id_.end() || it->second->second->owner != owner) return false;
  erase(it->second);
  return true;
}

uint64_t ResponseStore::bytes() const {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

size_t ResponseStore::entries() const {
  const std::lock_guard lock(mutex_);
  return entries_.size();
}

}  // namespace kvasir
