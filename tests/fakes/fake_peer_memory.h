// A PeerMemory in memory, for tests: one peer, whose memory the test fills, that attends with the
// code of a lender and answers when and how the test says.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <span>
#include <thread>
#include <utility>
#include <vector>

#include "contract/peer_memory.h"
#include "ops/cpu/kernels.h"
#include "ops/kv_layout.h"

namespace kvasir::test {

// Thread-safe.
class FakePeerMemory final : public PeerMemory {
 public:
  enum class Answers : uint8_t {
    kAtOnce,    // while the operation is begun
    kInThread,  // on a thread of the peer, one after the other
    kWhenTold,  // by answer_all()
  };
  // shape: of one layer of a block.
  FakePeerMemory(const ops::Kernels& kernels, const ops::KvShape& shape, int64_t queries_per_kv,
                 uint64_t bytes);
  // Ends all that has not ended, in failure.
  ~FakePeerMemory() override;

  void write(uint64_t at, std::span<const std::byte> from, Done done) override;
  void read(uint64_t at, std::span<std::byte> to, Done done) override;
  void attend(const RemoteQuery& query, std::span<float> partials, Done done) override;

  // The tier's bytes. Not while an operation is on its way.
  std::span<std::byte> memory() { return memory_; }

  void set_answers(Answers answers);
  // On its thread an answer takes so long at least, and a random while up to twice that.
  void be_slow(Nanos time, uint64_t seed);
  void answer_all();
  // The nth operation from now on, the next one being 0, fails.
  void fail(uint64_t nth);
  // It is never answered: it fails when `deadline` has passed, however others are answered.
  void lose(uint64_t nth, Nanos deadline);
  // Of what it answers to queries of several subtrees, the first two change places.
  void swap_peaks(bool on);

  struct Asked {
    uint32_t first_leaf;
    uint32_t end_leaf;
    uint32_t rows;
    friend bool operator==(const Asked&, const Asked&) = default;
  };
  // The queries so far, in their order.
  std::vector<Asked> asked() const;
  double last_own_leaf_rows() const;
  // Operations whose end has not begun.
  size_t pending() const;

 private:
  struct Operation {
    std::function<void()> act;  // null: it fails
    Done done;
    std::chrono::steady_clock::time_point not_before{};
  };

  void begin(std::function<void()> act, Done done);
  static void finish(Operation& operation);
  void attend_here(const RemoteQuery& query, std::span<const float> q, std::span<const uint64_t> pieces,
                   std::span<float> partials, bool swap) const;
  void run();

  const ops::Kernels& kernels_;
  const ops::KvShape shape_;
  const int64_t queries_per_kv_;
  std::vector<std::byte> memory_;

  mutable std::mutex mutex_;
  std::condition_variable changed_;
  Answers answers_ = Answers::kAtOnce;
  Nanos slow_ = 0;
  uint64_t slow_seed_ = 0;
  bool swap_peaks_ = false;
  uint64_t begun_ = 0;
  std::map<uint64_t, Nanos> faults_;  // by operation: 0 to fail, or the deadline of a lost one
  std::vector<Asked> asked_;
  double own_leaf_rows_ = 0;
  std::deque<Operation> told_;     // waits for answer_all()
  std::deque<Operation> threads_;  // of the peer's thread, lost ones included
  size_t pending_ = 0;
  bool ends_ = false;
  std::thread thread_;
};

}  // namespace kvasir::test
