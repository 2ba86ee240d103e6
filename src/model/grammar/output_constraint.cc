#include "model/grammar/output_constraint.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "base/clock.h"
#include "base/mutant.h"
#include "base/patiently.h"

namespace kvasir {
namespace {

bool same(const std::vector<Token>& a, std::span<const Token> b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

// ---------------------------------------------------------------- the mask thread

void MaskQueue::post(std::shared_ptr<OutputConstraint> constraint) {
  {
    const std::lock_guard lock(mutex_);
    if (stopped_) return;
    waiting_.push_back(std::move(constraint));
  }
  wake_.notify_one();
}

std::shared_ptr<OutputConstraint> MaskQueue::take() {
  std::unique_lock lock(mutex_);
  wake_.wait(lock, [this] { return stopped_ || !waiting_.empty(); });
  if (stopped_) return nullptr;
  std::shared_ptr<OutputConstraint> next = std::move(waiting_.front());
  waiting_.pop_front();
  return next;
}

void MaskQueue::stop() {
  std::deque<std::shared_ptr<OutputConstraint>> dropped;
  {
    const std::lock_guard lock(mutex_);
    stopped_ = true;
    dropped.swap(waiting_);
  }
  wake_.notify_all();
}

MaskThread::~MaskThread() {
  queue_->stop();
  thread_.join();
}

void MaskThread::run(MaskQueue& queue) {
  while (const std::shared_ptr<OutputConstraint> next = queue.take()) {
    patiently([&] { next->work(); });
  }
}

// ---------------------------------------------------------------- one output

OutputConstraint::OutputConstraint(CompiledGrammar grammar, std::shared_ptr<MaskQueue> queue,
                                   std::shared_ptr<MaskQueue> slow, OnGrammarFault on_fault)
    : queue_(std::move(queue)),
      slow_queue_(std::move(slow)),
      mask_(grammar.first_mask()),
      on_fault_(std::move(on_fault)),
      matcher_(std::move(grammar)) {}

MaskQueue* OutputConstraint::want(std::span<const Token> output) {
  if (same(wanted_, output)) return nullptr;
  wanted_.assign(output.begin(), output.end());
  if (std::exchange(queued_, true)) return nullptr;
  return slow_ ? slow_queue_.get() : queue_.get();
}

void OutputConstraint::expect(std::span<const Token> output) {
  MaskQueue* told = nullptr;
  {
    const std::lock_guard lock(mutex_);
    told = want(output);
  }
  if (told != nullptr) told->post(shared_from_this());
}

const TokenMask* OutputConstraint::after(std::span<const Token> output, Nanos patience) {
  MaskQueue::Counts& counts = queue_->counts;
  counts.asked.fetch_add(1, std::memory_order_relaxed);
  std::unique_lock lock(mutex_);
  if (MaskQueue* told = want(output)) told->post(shared_from_this());
  const auto there = [&] { return same(known_, output); };
  if (there()) {
    was_late_ = false;
    return &mask_;
  }
  counts.awaited.fetch_add(1, std::memory_order_relaxed);
  if (was_late_) patience = 0;
  if (made_.wait_for(lock, std::chrono::nanoseconds(patience), there)) return &mask_;
  was_late_ = true;
  counts.late.fetch_add(1, std::memory_order_relaxed);
  return nullptr;
}

bool OutputConstraint::was_late() const {
  const std::lock_guard lock(mutex_);
  return was_late_;
}

void OutputConstraint::work() {
  const Nanos begin = busy_time();
  {
    const std::lock_guard lock(mutex_);
    if (same(known_, wanted_)) {  // a step may be reading the mask
      queued_ = false;
      return;
    }
    output_ = wanted_;
  }
  const size_t unseen = mutant(Mutant::kMaskOfBefore) && !output_.empty() ? 1 : 0;
  if (stale_) matcher_.start_anew();
  stale_ = true;  // unless all goes well
  matcher_.follow(std::span(output_).first(output_.size() - unseen));
  matcher_.mask(next_);
  stale_ = false;
  if (on_fault_ && !matcher_.faults().empty()) {
    on_fault_(matcher_.faults().front());
    on_fault_ = nullptr;
  }
  const Nanos took = busy_time() - begin;
  MaskQueue* next = nullptr;
  {
    const std::lock_guard lock(mutex_);
    slow_ = took > kSlow;
    if (!same(wanted_, output_)) {
      next = slow_ ? slow_queue_.get() : queue_.get();
    } else {
      known_.swap(output_);
      std::swap(mask_.words, next_.words);
      queued_ = false;
    }
  }
  if (next != nullptr) return next->post(shared_from_this());
  made_.notify_all();
  MaskQueue::Counts& counts = queue_->counts;
  counts.masks.fetch_add(1, std::memory_order_relaxed);
  counts.nanos.fetch_add(static_cast<uint64_t>(took), std::memory_order_relaxed);
}

}  // namespace kvasir
