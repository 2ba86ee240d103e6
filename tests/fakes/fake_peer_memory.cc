#include "fakes/fake_peer_memory.h"

#include <algorithm>
#include <chrono>

#include "base/check.h"
#include "base/random.h"
#include "ops/leaf_attention.h"

namespace kvasir::test {

FakePeerMemory::FakePeerMemory(const ops::Kernels& kernels, const ops::KvShape& shape, int64_t queries_per_kv,
                               uint64_t bytes)
    : kernels_(kernels),
      shape_(shape),
      queries_per_kv_(queries_per_kv),
      memory_(bytes, std::byte{0xff}),
      thread_([this] { run(); }) {}

FakePeerMemory::~FakePeerMemory() {
  {
    const std::scoped_lock lock(mutex_);
    ends_ = true;
    changed_.notify_all();
  }
  thread_.join();
  for (std::deque<Operation>* left : {&told_, &threads_}) {
    for (Operation& operation : *left) {
      operation.act = nullptr;
      finish(operation);
    }
  }
}

// ---------------------------------------------------------------- operations

void FakePeerMemory::write(uint64_t at, std::span<const std::byte> from, Done done) {
  KV_CHECK(at + from.size() <= memory_.size(), "[{}, +{}) of {}", at, from.size(), memory_.size());
  begin([this, at, from] { std::copy(from.begin(), from.end(), memory_.begin() + static_cast<int64_t>(at)); },
        std::move(done));
}

void FakePeerMemory::read(uint64_t at, std::span<std::byte> to, Done done) {
  KV_CHECK(at + to.size() <= memory_.size(), "[{}, +{}) of {}", at, to.size(), memory_.size());
  begin([this, at, to] { std::copy_n(memory_.begin() + static_cast<int64_t>(at), to.size(), to.begin()); },
        std::move(done));
}

void FakePeerMemory::attend(const RemoteQuery& query, std::span<float> partials, Done done) {
  bool swap = false;
  {
    const std::scoped_lock lock(mutex_);
    asked_.push_back({query.first_leaf, query.end_leaf, query.rows});
    own_leaf_rows_ = query.own_leaf_rows;
    swap = swap_peaks_;
  }
  // Neither queries nor offsets need to stay: they are copied, rows without gaps.
  const int64_t width = shape_.kv_heads * queries_per_kv_ * shape_.head_dim;
  std::vector<float> q;
  for (int64_t r = 0; r < query.rows; ++r) {
    q.insert(q.end(), query.q + r * query.q_stride, query.q + r * query.q_stride + width);
  }
  RemoteQuery kept = query;
  kept.q_stride = width;
  std::vector<uint64_t> pieces(query.pieces.begin(), query.pieces.end());
  begin([this, kept, q = std::move(q), pieces = std::move(pieces), partials,
         swap] { attend_here(kept, q, pieces, partials, swap); },
        std::move(done));
}

void FakePeerMemory::attend_here(const RemoteQuery& query, std::span<const float> q,
                                 std::span<const uint64_t> pieces, std::span<float> partials,
                                 bool swap) const {
  std::vector<const std::byte*> at;
  for (uint64_t offset : pieces) {
    KV_CHECK(offset + 2 * ops::kv_plane_bytes(shape_) <= memory_.size(), "piece at {}", offset);
    at.push_back(memory_.data() + offset);
  }
  const ops::LeafRun run{query.first_leaf, query.end_leaf};
  const int64_t peaks = ops::subtrees_of(run), record = ops::partial_floats(queries_per_kv_, shape_.head_dim);
  KV_CHECK(static_cast<int64_t>(partials.size()) == query.rows * shape_.kv_heads * peaks * record,
           "room for {} floats", partials.size());
  const ops::LeafQuery leaves{shape_,     queries_per_kv_, {&run, 1}, at, /*layer_offset=*/0,
                              query.rows, q.data()};
  ops::attend_leaves(kernels_, leaves, std::as_writable_bytes(partials), [] { return true; });
  if (!swap || peaks < 2) return;
  for (int64_t i = 0; i < query.rows * shape_.kv_heads; ++i) {
    float* first = partials.data() + i * peaks * record;
    std::swap_ranges(first, first + record, first + record);
  }
}

void FakePeerMemory::begin(std::function<void()> act, Done done) {
  Operation operation{std::move(act), std::move(done)};
  {
    const std::scoped_lock lock(mutex_);
    const auto now = std::chrono::steady_clock::now();
    const auto fault = faults_.find(begun_++);
    const bool faulty = fault != faults_.end();
    const bool lost = faulty && fault->second > 0;
    if (faulty) operation.act = nullptr;
    if (lost) operation.not_before = now + std::chrono::nanoseconds(fault->second);
    if (lost || answers_ == Answers::kInThread) {
      if (!lost && slow_ > 0) {
        const uint64_t more = random_bits(slow_seed_, 0, begun_) % static_cast<uint64_t>(slow_);
        operation.not_before = now + std::chrono::nanoseconds(slow_ + static_cast<Nanos>(more));
      }
      ++pending_;
      threads_.push_back(std::move(operation));
      changed_.notify_all();
      return;
    }
    if (answers_ == Answers::kWhenTold) {
      ++pending_;
      told_.push_back(std::move(operation));
      return;
    }
  }
  finish(operation);
}

void FakePeerMemory::finish(Operation& operation) {
  if (operation.act) operation.act();
  operation.done(operation.act ? Status() : error(ErrorCode::kUnavailable, "the peer does not answer"));
}

void FakePeerMemory::run() {
  std::unique_lock lock(mutex_);
  while (!ends_) {
    const auto next =
        std::min_element(threads_.begin(), threads_.end(),
                         [](const Operation& a, const Operation& b) { return a.not_before < b.not_before; });
    if (next == threads_.end()) {
      changed_.wait(lock);
      continue;
    }
    if (const auto when = next->not_before; when > std::chrono::steady_clock::now()) {
      changed_.wait_until(lock, when);
      continue;
    }
    Operation operation = std::move(*next);
    threads_.erase(next);
    --pending_;
    lock.unlock();
    finish(operation);
    lock.lock();
  }
}

// ---------------------------------------------------------------- what the test says

void FakePeerMemory::set_answers(Answers answers) {
  const std::scoped_lock lock(mutex_);
  answers_ = answers;
}

void FakePeerMemory::be_slow(Nanos time, uint64_t seed) {
  const std::scoped_lock lock(mutex_);
  slow_ = time;
  slow_seed_ = seed;
}

void FakePeerMemory::answer_all() {
  std::deque<Operation> all;
  {
    const std::scoped_lock lock(mutex_);
    all.swap(told_);
    pending_ -= all.size();
  }
  for (Operation& operation : all) finish(operation);
}

void FakePeerMemory::fail(uint64_t nth) {
  const std::scoped_lock lock(mutex_);
  faults_[begun_ + nth] = 0;
}

void FakePeerMemory::lose(uint64_t nth, Nanos deadline) {
  KV_CHECK(deadline > 0, "deadline={}", deadline);
  const std::scoped_lock lock(mutex_);
  faults_[begun_ + nth] = deadline;
}

void FakePeerMemory::swap_peaks(bool on) {
  const std::scoped_lock lock(mutex_);
  swap_peaks_ = on;
}

std::vector<FakePeerMemory::Asked> FakePeerMemory::asked() const {
  const std::scoped_lock lock(mutex_);
  return asked_;
}

double FakePeerMemory::last_own_leaf_rows() const {
  const std::scoped_lock lock(mutex_);
  return own_leaf_rows_;
}

size_t FakePeerMemory::pending() const {
  const std::scoped_lock lock(mutex_);
  return pending_;
}

}  // namespace kvasir::test
