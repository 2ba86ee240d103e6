// Steps on their way from the engine's thread to the pilot, and their results on the way back.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <mutex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "contract/step.h"

namespace kvasir {

// What LogitsTap is told.
struct TappedRow {
  SeqId seq{};
  uint32_t position = 0;
  std::vector<float> logits;
};

// Belongs to the pilot from open() to answer(), and to the engine's thread otherwise. So the engine's thread
// lets go of what the step names, and the cache then knows that no step reads its block table.
struct StepLetter {
  Step step;
  bool is_early = false;  // submitted before the result of the step before was taken
  StepResult result;
  std::vector<TappedRow> tapped;
  bool lacked_memory =
      false;  // it has ended, but its transfers may not have been started, and it has no result
};

// Two letters, which are used in turn. Nothing here allocates or blocks but for what says so.
class StepMail {
 public:
  // --- The engine's thread.
  // Steps that were submitted and not taken.
  int in_flight() const { return static_cast<int>(submitted_ - taken_); }
  // REQUIRES: in_flight() < 2
  void submit(Step step) {
    StepLetter& letter = letters_[submitted_ % 2];
    letter.step = std::move(step);
    letter.is_early = in_flight() > 0;
    letter.tapped.clear();
    letter.lacked_memory = false;
    ++submitted_;
    settle();
    const std::lock_guard lock(mutex_);
    ++to_open_;
    has_step_ = true;
    came_.notify_one();
  }
  // Waits until the oldest step has ended, and lets go of what it names. The letter is there until the next
  // submit().
  StepLetter& take() {
    settle();
    std::unique_lock lock(mutex_);
    ended_.wait(lock, [&] { return answered_ > taken_; });
    StepLetter& letter = letters_[taken_++ % 2];
    lock.unlock();
    letter.step = {};
    return letter;
  }
  // See Executor::step_settled().
  void settle() {
    const std::lock_guard lock(mutex_);
    settled_ = taken_;
    came_.notify_one();
  }
  // The pilot is to come to an end: it waits no more.
  void close() {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    came_.notify_one();
  }

  // --- The pilot.
  // Whether there is a step to open.
  const std::atomic<bool>& has_step() const { return has_step_; }
  // Waits for that; false: the mail is closed.
  bool await_step() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return is_closed_ || to_open_ > 0; });
    return !is_closed_;
  }
  // The oldest that was not opened. REQUIRES: has_step()
  StepLetter& open() {
    const std::lock_guard lock(mutex_);
    KV_CHECK(to_open_ > 0, "no step was submitted");
    has_step_ = --to_open_ > 0;
    return letters_[opened_++ % 2];
  }
  // Waits until all steps that have a result are settled.
  void await_settled() {
    std::unique_lock lock(mutex_);
    came_.wait(lock, [&] { return is_closed_ || settled_ == answered_; });
  }
  // The oldest that is open has its result.
  void answer() {
    const std::lock_guard lock(mutex_);
    ++answered_;
    ended_.notify_one();
  }

 private:
  std::array<StepLetter, 2> letters_;
  uint64_t submitted_ = 0, taken_ = 0;  // the engine's thread's counts,
  uint64_t opened_ = 0;                 // and the pilot's
  std::atomic<bool> has_step_{false};

  std::mutex mutex_;  // guards what follows
  std::condition_variable came_, ended_;
  uint64_t to_open_ = 0;
  uint64_t answered_ = 0;
  uint64_t settled_ = 0;
  bool is_closed_ = false;
};

}  // namespace kvasir
