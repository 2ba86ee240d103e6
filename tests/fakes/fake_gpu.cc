#include "fakes/fake_gpu.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <thread>
#include <typeindex>
#include <utility>
#include <vector>

#include "base/check.h"
#include "base/mutant.h"
#include "ops/cpu/isa.h"

namespace kvasir::test {

class FakeGpu::Stream final : public EachKernel<Stream, GpuStream> {
 public:
  explicit Stream(FakeGpu& gpu) : gpu_(gpu) {
    gpu_.streams_.push_back(this);
    if (gpu_.is_lost_) lose();
  }
  ~Stream() override {
    const std::lock_guard lock(gpu_.mutex_);
    KV_CHECK(queue_.empty() || !status_.ok(), "{} pieces of work are still queued", queue_.size());
    std::erase(gpu_.streams_, this);
  }

  template <typename Args>
  void add(const Args& args) {
    add_kernel(args);
  }
  // A device has other ones for more rows, and for more queries of a leaf.
  void add(const ops::gpu::GemmArgs& args) {
    add_kernel(args, static_cast<uint32_t>(std::bit_width(static_cast<uint32_t>(args.rows - 1) / 8)));
  }
  void add(const ops::gpu::LeafArgs& args) { add_kernel(args, args.has_many_queries() ? 1 : 0); }

  void copy(std::span<const GpuCopy> copies) override {
    for (const GpuCopy& c : copies) {
      add_work([this, c] {
        std::memcpy(gpu_.memory_.at(static_cast<std::byte*>(c.to), c.bytes),
                    gpu_.memory_.at(static_cast<const std::byte*>(c.from), c.bytes), c.bytes);
        gpu_.copied_bytes_ += c.bytes;
        return true;
      });
    }
  }
  void mark(uint32_t* word, uint32_t value) override {
    const std::lock_guard lock(gpu_.mutex_);
    ++gpu_.marks_;
    add_work([this, word, value] {
      *gpu_.memory_.at(word, 1) = value;
      return true;
    });
  }
  void gate(const uint32_t* word, uint32_t value) override {
    const std::lock_guard lock(gpu_.mutex_);
    ++gpu_.gates_;
    if (status_.ok()) gates_.emplace_back(word, value);
    add_work([this, word, value] {
      if (!has_reached(*gpu_.memory_.at(word, 1), value)) return false;
      gates_.pop_front();
      return true;
    });
  }

  void begin_graph(size_t number) override {
    const std::lock_guard lock(gpu_.mutex_);
    KV_CHECK(!at_hand_, "a graph begins within another");
    at_hand_.emplace(number);
  }
  bool end_graph() override {
    const std::lock_guard lock(gpu_.mutex_);
    const Recording recorded = *std::exchange(at_hand_, {});
    if (!status_.ok()) return true;
    std::shared_ptr<Graph>& graph = graphs_[recorded.number];
    if (graph == nullptr) {
      gpu_.expect_no_closed_gate();
      if (gpu_.makes_no_graphs_) return false;
      graph = std::make_shared<Graph>(Graph{recorded.kernels});
    } else if (graph->queued > 0) {
      status_ = error(ErrorCode::kIo, "the GPU failed: a graph is changed while it runs");
      return true;
    } else if (gpu_.refuses_graphs_ ||
               !std::equal(graph->kernels.begin(), graph->kernels.end(), recorded.kernels.begin(),
                           recorded.kernels.end(),
                           [](const Kernel& a, const Kernel& b) { return a.number == b.number; })) {
      graph = nullptr;
      return false;
    } else if (!mutant(Mutant::kGraphKept)) {
      graph->kernels = recorded.kernels;
    }
    if (!has_room_for(graph->kernels.size())) return true;
    ++gpu_.graphs_;
    for (size_t i = 0; i < graph->kernels.size(); ++i) {
      ++graph->queued;
      queue_.push_back([graph, i] {
        graph->kernels[i].run();
        --graph->queued;
        return true;
      });
    }
    go_on();
    return true;
  }
  bool has_graph(size_t number) const override {
    const std::lock_guard lock(gpu_.mutex_);
    const auto found = graphs_.find(number);
    return found != graphs_.end() && found->second != nullptr;
  }

  Status wait_for_mark(const uint32_t* word, uint32_t value, const std::atomic<bool>& flag) override {
    std::unique_lock lock(gpu_.mutex_);
    while (status_.ok() && !has_reached(*word, value) && !flag) {
      KV_CHECK(stood_still(lock) || run_one(), "a mark that does not come is waited for");
    }
    return status_;
  }
  Status wait() override {
    std::unique_lock lock(gpu_.mutex_);
    while (status_.ok() && !queue_.empty()) {
      KV_CHECK(stood_still(lock) || run_one(), "a gate that does not open is waited for");
    }
    return status_;
  }

  // Whether one that is queued is closed.
  bool has_closed_gate() const {
    return status_.ok() && std::any_of(gates_.begin(), gates_.end(), [&](const auto& gate) {
             return !has_reached(*gpu_.memory_.at(gate.first, 1), gate.second);
           });
  }

  void lose() {
    if (status_.ok()) status_ = error(ErrorCode::kIo, "the GPU failed: it is lost; restart the server");
  }

  void go_on() {
    if (gpu_.pace_ == FakeGpuPace::kLate || gpu_.stands_still_) return;
    while ((gpu_.pace_ == FakeGpuPace::kEarly || gpu_.random_.below(3) > 0) && run_one()) {
    }
  }

 private:
  // False: its gate is closed.
  using Work = std::function<bool()>;
  struct Kernel {
    std::pair<std::type_index, uint32_t> number;  // which it is
    std::function<void()> run;
  };
  // What is queued runs these kernels with the arguments that they have then.
  struct Graph {
    std::vector<Kernel> kernels;
    size_t queued = 0;  // kernels that have not run
  };
  struct Recording {
    explicit Recording(size_t n) : number(n) {}
    size_t number;
    std::vector<Kernel> kernels{};
  };

  // A device lets the thread that queues wait here until it has gone on.
  bool has_room_for(size_t entries) {
    while (queue_.size() + entries > kMostBehindAGate && !gpu_.stands_still_ && run_one()) {
    }
    if (status_.ok() && queue_.size() + entries > kMostBehindAGate && !gpu_.stands_still_) {
      status_ = error(ErrorCode::kIo, "the GPU failed: a stream is full behind a closed gate");
    }
    return status_.ok();
  }
  void add_work(Work work) {
    const std::lock_guard lock(gpu_.mutex_);
    KV_CHECK(!at_hand_, "a graph has kernels alone");
    if (!has_room_for(1)) return;
    queue_.push_back(std::move(work));
    go_on();
  }
  // variant: of the kernels with these arguments.
  template <typename Args>
  void add_kernel(const Args& args, uint32_t variant = 0) {
    const auto run = [this, args] {
      const ops::KeepSubnormals mode;
      gpu_.kernels_.run(args);
      spoil(args);
    };
    const std::lock_guard lock(gpu_.mutex_);
    if (gpu_.kernels_left_-- == 0) gpu_.lose();
    if (at_hand_) {
      at_hand_->kernels.push_back({{typeid(Args), variant}, run});
    } else {
      add_work([run] {
        run();
        return true;
      });
    }
  }
  template <typename Args>
  void spoil(const Args&) {}
  void spoil(const ops::gpu::GemmArgs& args) {
    const bool spoils =
        args.rows >= gpu_.spoils_from_ || args.tile == gpu_.spoils_tile_ || args.n >= gpu_.spoils_features_;
    float* const last = args.out + (args.rows - 1) * args.out_stride;
    if (spoils) *gpu_.memory_.at(reinterpret_cast<uint32_t*>(last), 1) ^= 1;
  }
  // Whether it does; then some time has passed.
  bool stood_still(std::unique_lock<std::recursive_mutex>& lock) {
    if (!gpu_.stands_still_) return false;
    lock.unlock();
    std::this_thread::yield();
    lock.lock();
    return true;
  }
  bool run_one() {
    if (queue_.empty() || !status_.ok()) return false;
    try {
      if (!queue_.front()()) return false;
    } catch (const BadAddress& bad) {
      status_ = error(ErrorCode::kIo, "the GPU failed: {}", bad.what());
    }
    queue_.pop_front();
    return true;
  }

  FakeGpu& gpu_;
  std::deque<Work> queue_;
  std::deque<std::pair<const uint32_t*, uint32_t>> gates_;  // that are queued
  std::map<size_t, std::shared_ptr<Graph>> graphs_;         // by number; null: there is none
  std::optional<Recording> at_hand_;
  Status status_;
};

FakeGpu::FakeGpu(FakeGpuPace pace, uint64_t seed, uint64_t device_bytes)
    : memory_(device_bytes), kernels_(memory_), pace_(pace), random_(seed) {}

Result<Gpu::Memory> FakeGpu::memory() const {
  const std::lock_guard lock(mutex_);
  if (hides_memory_) return error(ErrorCode::kIo, "it does not answer");
  return Memory{memory_.free_bytes(), memory_.device_bytes()};
}

// It has one kernel, which computes all of these.
std::vector<Gpu::ProductCase> FakeGpu::product_cases() const {
  return {{"gemm of 8 rows", 1, 8, 64},
          {"gemm of 32 rows", 2, 29, 64},
          {"gemm of 32 rows in more slices", 2, 29, 448},
          {"gemm of 64 x 64", 3, 77, 64},
          {"gemm of 128 x 256", 4, 269, 128}};
}

// A device may wait here until all that is queued is done.
void FakeGpu::expect_no_closed_gate() const {
  for (const Stream* stream : streams_) {
    KV_CHECK(!stream->has_closed_gate(), "memory is allocated or released behind a closed gate");
  }
}

Result<std::byte*> FakeGpu::allocate(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  expect_no_closed_gate();
  std::byte* const memory = allowed_ > 0 ? memory_.allocate(bytes) : nullptr;
  if (memory == nullptr) return error(ErrorCode::kExhausted, "the GPU has no {} bytes left", bytes);
  --allowed_;
  ++allocations_;
  return memory;
}

Result<std::byte*> FakeGpu::allocate_pinned(uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  expect_no_closed_gate();
  std::byte* const memory = allowed_ > 0 ? memory_.allocate_pinned(bytes) : nullptr;
  if (memory == nullptr) return error(ErrorCode::kExhausted, "no {} bytes can be pinned", bytes);
  --allowed_;
  ++allocations_;
  return memory;
}

void FakeGpu::release(std::byte* memory) {
  const std::lock_guard lock(mutex_);
  expect_no_closed_gate();
  memory_.release(memory);
}

Result<std::unique_ptr<GpuStream>> FakeGpu::make_stream() {
  const std::lock_guard lock(mutex_);
  expect_no_closed_gate();
  return std::unique_ptr<GpuStream>(std::make_unique<Stream>(*this));
}

void FakeGpu::lose() {
  const std::lock_guard lock(mutex_);
  is_lost_ = true;
  for (Stream* stream : streams_) stream->lose();
}

void FakeGpu::stand_still(bool on) {
  const std::lock_guard lock(mutex_);
  stands_still_ = on;
}

void FakeGpu::lose_stream(size_t index) {
  const std::lock_guard lock(mutex_);
  streams_.at(index)->lose();
}

void FakeGpu::open_gate(uint32_t* word, uint32_t value) {
  const std::lock_guard lock(mutex_);
  if (!has_reached(*word, value)) *word = value;
  ++opened_;
  for (Stream* stream : streams_) stream->go_on();
}

}  // namespace kvasir::test
