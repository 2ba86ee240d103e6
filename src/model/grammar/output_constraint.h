// The constraint of one output, whose masks are made on threads of their own.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>
#include <span>
#include <thread>
#include <vector>

#include "contract/token_constraint.h"
#include "model/grammar/grammar_matcher.h"

namespace kvasir {

class OutputConstraint;

// What waits for the mask thread, in the order in which it came. Thread-safe; outputs that outlive the thread
// keep it.
class MaskQueue {
 public:
  // work() of the constraint is called soon; after stop() it is not.
  void post(std::shared_ptr<OutputConstraint> constraint);
  // Waits for the next one; null: there will be none.
  std::shared_ptr<OutputConstraint> take();
  void stop();

  struct Counts {
    std::atomic<uint64_t> masks{0};    // that were made
    std::atomic<uint64_t> nanos{0};    // in which they were made
    std::atomic<uint64_t> asked{0};    // by a step
    std::atomic<uint64_t> awaited{0};  // of these, such as were not there at once
    std::atomic<uint64_t> late{0};     // and such as did not come in time
  };
  Counts counts;

 private:
  std::mutex mutex_;
  std::condition_variable wake_;
  std::deque<std::shared_ptr<OutputConstraint>> waiting_;  // guarded by mutex_
  bool stopped_ = false;                                   // guarded by mutex_
};

class MaskThread {
 public:
  MaskThread() : queue_(std::make_shared<MaskQueue>()), thread_([queue = queue_] { run(*queue); }) {}
  ~MaskThread();
  MaskThread(const MaskThread&) = delete;
  MaskThread& operator=(const MaskThread&) = delete;

  const std::shared_ptr<MaskQueue>& queue() const { return queue_; }

 private:
  static void run(MaskQueue& queue);

  const std::shared_ptr<MaskQueue> queue_;
  std::thread thread_;
};

class OutputConstraint final : public TokenConstraint, public std::enable_shared_from_this<OutputConstraint> {
 public:
  // Once a mask has taken long, the next ones are made by way of the queue `slow`, so that other outputs do
  // not wait for them. All counts are those of `queue`. The mask thread calls on_fault.
  OutputConstraint(CompiledGrammar grammar, std::shared_ptr<MaskQueue> queue, std::shared_ptr<MaskQueue> slow,
                   OnGrammarFault on_fault);

  void expect(std::span<const Token> output) override;
  const TokenMask* after(std::span<const Token> output, Nanos patience) override;
  bool was_late() const override;

  // Makes the mask for what is expected. The mask thread.
  void work();

 private:
  static constexpr Nanos kSlow = 10 * kNanosPerMilli;
  // Null, or the queue that must be told. REQUIRES: mutex_ is held.
  MaskQueue* want(std::span<const Token> output);

  const std::shared_ptr<MaskQueue> queue_, slow_queue_;
  mutable std::mutex mutex_;
  std::condition_variable made_;
  std::vector<Token> wanted_;  // guarded by mutex_
  std::vector<Token> known_;   // guarded by mutex_: what mask_ is for
  TokenMask mask_;             // changed under mutex_, when wanted_ is not known_
  bool queued_ = false;        // guarded by mutex_: in a queue, or at work
  bool slow_ = false;          // guarded by mutex_: the last mask took long
  // Guarded by mutex_: the last mask that was asked for was late. Then no step waits for the next one, since
  // all of a step would wait with it.
  bool was_late_ = false;
  // Of the mask thread, after the constructor.
  OnGrammarFault on_fault_;  // null: there is none, or it was called
  GrammarMatcher matcher_;
  bool stale_ = false;  // memory was missing while it was changed
  std::vector<Token> output_;
  TokenMask next_;
};

}  // namespace kvasir
