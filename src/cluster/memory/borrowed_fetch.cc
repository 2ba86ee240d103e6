// Queries whose K and V come here: windows of their leaves wait for a slot of memory, are read, and are
// attended to in order.
#include <cstdlib>
#include <utility>

#include "base/heap.h"
#include "cluster/memory/borrowed_memory.h"

namespace kvasir {

void BorrowedMemory::fetch(const OperationPtr& operation, uint32_t share, Interval rows, After& after) {
  ShareState& state = operation->states[share];
  const LeafShare& leaves = operation->shares.shares[share];
  const float* q = operation->q.data() + rows.begin * static_cast<size_t>(shape_.q_dim());
  float* records = state.records.data() + shape_.partial_bytes(rows.begin, leaves.peaks) / sizeof(float);
  state.fetched =
      std::make_unique<FetchedShare>(shape_, kernels_, leaves.runs, window_leaves_, rows.size(), q, records);
  state.windows.resize(state.fetched->windows());
  for (uint32_t w = 0; w < state.windows.size(); ++w) waiting_.push_back({operation, share, w});
  start_windows(after);
}

// It is large: the thread must not wait for its memory.
bool BorrowedMemory::fill_slot(uint32_t slot) {
  if (slots_[slot]) return true;
  const uint64_t bytes = window_leaves_ * shape_.leaf_bytes();
  slots_[slot].reset(static_cast<std::byte*>(std::malloc(bytes)));
  if (slots_[slot]) stats_.scratch_bytes += bytes;
  return slots_[slot] != nullptr;
}

void BorrowedMemory::start_windows(After& after) {
  while (!free_slots_.empty() && !waiting_.empty()) {
    const WindowRef of = waiting_.front();
    if (!of.operation->status.ok()) {
      waiting_.pop_front();
      continue;
    }
    if (!fill_slot(free_slots_.back())) {
      if (stats_.scratch_bytes > 0) return;  // until one that is in use is free again
      fail(of.operation, error(ErrorCode::kExhausted, "there is no memory for K and V of peers"), after);
      continue;
    }
    waiting_.pop_front();
    Operation& operation = *of.operation;
    ShareState& state = operation.states[of.share];
    Window& window = state.windows[of.window];
    window.slot = free_slots_.back();
    free_slots_.pop_back();
    std::byte* into = slots_[window.slot].get();
    const uint64_t piece = shape_.piece_bytes();
    for (const LeafRun& run : state.fetched->runs(of.window)) {
      for (const CellPlace& place : places_of(operation, run)) {
        const MessagePtr message =
            copy_message(of.operation, DataKind::kRead, place, operation.layer * piece, piece);
        message->into = {into, piece};
        message->share = of.share;
        message->window = of.window;
        into += piece;
        ++window.open;
        enqueue(message, after);
      }
    }
  }
}

void BorrowedMemory::window_read(const WindowRef& of) {
  stats_.fetched_bytes += shape_.piece_bytes();
  ShareState& state = of.operation->states[of.share];
  if (--state.windows[of.window].open == 0 && of.window == state.next) make_ready(of);
}

void BorrowedMemory::make_ready(const WindowRef& of) {
  ready_.push_back(of);
  if (!options_.own_thread || stopping_) return;
  if (!worker_.joinable()) worker_ = std::thread([this] { work(); });
  changed_.notify_one();
}

// Queries that are attended to here have no other thread to fail them.
void BorrowedMemory::work() {
  const WaitsForMemory patient;
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    if (ready_.empty()) {
      changed_.wait(lock);
      continue;
    }
    lock.unlock();
    attend_one();
    lock.lock();
  }
}

bool BorrowedMemory::attend_one() {
  WindowRef of;
  Window* window = nullptr;
  std::span<const std::byte> kv;
  {
    std::lock_guard lock(mutex_);
    if (ready_.empty()) return false;
    of = std::move(ready_.front());
    ready_.pop_front();
    ShareState& state = of.operation->states[of.share];
    window = &state.windows[of.window];
    window->attending = true;
    uint64_t leaves = 0;
    for (const LeafRun& run : state.fetched->runs(of.window)) leaves += run.leaves();
    kv = {slots_[window->slot].get(), leaves * shape_.leaf_bytes()};
  }
  const Operation& operation = *of.operation;
  FetchedShare& share = *operation.states[of.share].fetched;
  const Nanos began = clock_.now();
  const bool whole = share.attend(of.window, kv, [&] { return !operation.failed; });
  const double took = to_seconds(clock_.now() - began);
  After after;
  {
    std::lock_guard lock(mutex_);
    window->attending = false;
    release(*window);
    if (whole) {
      const uint64_t leaf_rows = kv.size() / shape_.leaf_bytes() * share.rows();
      stats_.local_leaf_rows += leaf_rows;
      stats_.local_s += took;
      if (took > 0) own_leaf_row_s_.add(took / static_cast<double>(leaf_rows));
      if (operation.status.ok()) window_done(of, after);
    }
    start_windows(after);
  }
  drive(std::move(after));
  return true;
}

void BorrowedMemory::window_done(const WindowRef& of, After& after) {
  ShareState& state = of.operation->states[of.share];
  if (++state.next < state.windows.size()) {
    const Window& next = state.windows[state.next];
    if (next.slot != kNoSlot && next.open == 0) make_ready({of.operation, of.share, state.next});
    return;
  }
  state.done = true;
  --of.operation->open;
  settle(of.operation, after);
}

void BorrowedMemory::release(Window& window) {
  free_slots_.push_back(window.slot);
  window.slot = kNoSlot;
}

void BorrowedMemory::release_all(const OperationPtr& operation, After& after) {
  const auto is_its = [&](const WindowRef& of) { return of.operation == operation; };
  std::erase_if(waiting_, is_its);
  std::erase_if(ready_, is_its);
  for (ShareState& state : operation->states) {
    for (Window& window : state.windows) {
      if (window.slot != kNoSlot && !window.attending) release(window);
    }
  }
  start_windows(after);
}

}  // namespace kvasir
