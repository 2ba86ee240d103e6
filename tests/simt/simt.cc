#include "simt/simt.h"

#include <ucontext.h>

#include <algorithm>
#include <csetjmp>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <new>
#include <numeric>
#include <vector>

#include "base/random.h"
#include "ops/gpu/fused16.h"

#if defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KV_SIMT_ASAN 1
#endif
#elif defined(__SANITIZE_ADDRESS__)
#define KV_SIMT_ASAN 1
#endif
#if defined(KV_SIMT_ASAN)
#include <sanitizer/common_interface_defs.h>
#endif

namespace kvasir::simt {
namespace {

using ops::gpu::CopyBarrier;
using ops::gpu::kWarp;

constexpr size_t kStackBytes = size_t{128} << 10;

Machine machine;
int most_syncs = 0;

struct Fibre {
  std::jmp_buf at;
  ucontext_t begin;
  std::unique_ptr<char[]> stack{new char[kStackBytes]};
  void* fake_stack = nullptr;
  bool started = false;
  bool ended = false;
  const char* waits_for = nullptr;
  int syncs = 0;
};

// What the lanes of a warp do together: each leaves its arguments, and the last one does it for all.
struct Together {
  const char* name = nullptr;
  void* lanes[kWarp] = {};
  std::vector<int> waiting;
};

struct CopyPhase {
  int arrivals = 0;  // of each phase
  int missing = 0;
  int64_t bytes =
      0;  // expected and not there yet; below 0 while bytes have landed before they were announced
  uint64_t phase = 0;
  std::vector<int> waiting;
};

struct Copy {
  std::byte* to;
  const std::byte* from;
  uint32_t bytes;
  CopyBarrier* barrier;
};

struct FreeAligned {
  void operator()(std::byte* p) const { ::operator delete (p, std::align_val_t{1024}); }
};

// One block of threads, which are fibres on the caller's thread.
class Block {
 public:
  Block(const Launch& how, const std::function<void()>& kernel,
        const std::vector<std::unique_ptr<Fibre>>& fibres, Random& random)
      : grid_x_(how.grid_x),
        threads_(how.threads),
        kernel_(kernel),
        fibres_(fibres),
        random_(random),
        shared_(static_cast<std::byte*>(
            ::operator new (std::max<size_t>(how.shared_bytes, 1), std::align_val_t{1024}))),
        early_copies_(random.below(2) == 0),
        warps_run_ahead_(random.below(2) == 0),
        ranks_(static_cast<size_t>(how.threads / kWarp)),
        warps_(ranks_.size()) {
    std::memset(shared_.get(), 0xFF, how.shared_bytes);
    for (uint64_t& rank : ranks_) rank = random.bits();
  }

  void run(int x, int y);

  // --- Called by threads.
  static Block& active() { return *active_; }
  int thread() const { return current_; }
  int x() const { return x_; }
  int y() const { return y_; }
  int grid_x() const { return grid_x_; }
  std::byte* shared() const { return shared_.get(); }
  Fibre& fibre() { return *fibres_[static_cast<size_t>(current_)]; }

  void together(const char* name, void* mine, void (*act)(void* const* lanes));
  void sync();
  void init(CopyBarrier* barrier, int arrivals);
  void arrive(CopyBarrier* barrier, uint32_t bytes);
  void wait_for(CopyBarrier* barrier, uint32_t parity);
  void copy(void* to, const void* from, uint32_t bytes, CopyBarrier* barrier);
  // Ends the whole launch. Does not return: what is on the thread's stack stays as it is.
  void stop(const char* why);

 private:
  int take_runnable();
  void land(size_t index);
  void end_phase(CopyPhase& phase);
  CopyPhase& phase_of(CopyBarrier* barrier);
  void wait(std::vector<int>& list, const char* what);
  void wake(std::vector<int>& list);
  std::string standstill() const;

  void resume(Fibre& fibre);
  void leave();
  void body();
  static void enter() { active_->body(); }

  static Block* active_;

  const int grid_x_;
  const int threads_;
  const std::function<void()>& kernel_;
  const std::vector<std::unique_ptr<Fibre>>& fibres_;
  Random& random_;
  const std::unique_ptr<std::byte, FreeAligned> shared_;
  const bool early_copies_;
  const bool warps_run_ahead_;
  std::vector<uint64_t> ranks_;
  int x_ = 0, y_ = 0, current_ = 0;
  std::vector<int> runnable_;
  std::vector<Together> warps_;
  std::vector<int> synced_;  // wait for the rest of the block
  std::map<CopyBarrier*, CopyPhase> phases_;
  std::vector<Copy> copies_;
  std::string failure_;
  std::jmp_buf scheduler_;
  void* fake_stack_ = nullptr;
  const void* stack_ = nullptr;  // the scheduler's
  size_t stack_bytes_ = 0;
};

Block* Block::active_ = nullptr;

// ---------------------------------------------------------------- order

void Block::run(int x, int y) {
  active_ = this;
  x_ = x;
  y_ = y;
  for (const auto& f : fibres_) {
    f->started = f->ended = false;
    f->waits_for = nullptr;
    f->syncs = 0;
  }
  runnable_.resize(static_cast<size_t>(threads_));
  std::iota(runnable_.begin(), runnable_.end(), 0);
  for (int left = threads_; left > 0;) {
    const bool early = early_copies_ && random_.below(64) == 0;
    if (!copies_.empty() && (runnable_.empty() || early)) {
      land(random_.below(copies_.size()));
      continue;
    }
    if (runnable_.empty()) throw SimtError(standstill());
    current_ = take_runnable();
    resume(fibre());
    if (!failure_.empty()) throw SimtError(failure_);
    if (fibre().ended) --left;
    most_syncs = std::max(most_syncs, fibre().syncs);
  }
  if (!copies_.empty()) throw SimtError("a block has ended before a copy that it began");
}

int Block::take_runnable() {
  size_t best = random_.below(runnable_.size());
  if (warps_run_ahead_) {
    const auto rank = [&](size_t i) { return ranks_[static_cast<size_t>(runnable_[i] / kWarp)]; };
    for (size_t i = 0; i < runnable_.size(); ++i) {
      if (rank(i) > rank(best)) best = i;
    }
    if (random_.below(512) == 0) ranks_[random_.below(ranks_.size())] = random_.bits();
  }
  std::swap(runnable_[best], runnable_.back());
  const int thread = runnable_.back();
  runnable_.pop_back();
  return thread;
}

void Block::wait(std::vector<int>& list, const char* what) {
  list.push_back(current_);
  fibre().waits_for = what;
  leave();
}

void Block::wake(std::vector<int>& list) {
  runnable_.insert(runnable_.end(), list.begin(), list.end());
  list.clear();
}

std::string Block::standstill() const {
  std::string text = "all threads wait:";
  for (size_t i = 0; i < static_cast<size_t>(threads_); i += kWarp) {
    const Fibre& f = *fibres_[i];
    text += " warp " + std::to_string(i / kWarp) +
            (f.ended ? std::string(" has ended;") : std::string(" for ") + f.waits_for + ";");
  }
  return text;
}

void Block::stop(const char* why) {
  failure_ = why;
  leave();
}

// ---------------------------------------------------------------- what threads do together

void Block::together(const char* name, void* mine, void (*act)(void* const* lanes)) {
  Together& warp = warps_[static_cast<size_t>(current_ / kWarp)];
  if (warp.waiting.empty()) warp.name = name;
  if (std::strcmp(warp.name, name) != 0) stop("lanes of a warp do different things");
  warp.lanes[current_ % kWarp] = mine;
  if (warp.waiting.size() + 1 < kWarp) {
    wait(warp.waiting, name);
    return;
  }
  act(warp.lanes);
  wake(warp.waiting);
}

void Block::sync() {
  if (static_cast<int>(synced_.size()) + 1 < threads_) {
    wait(synced_, "a barrier");
  } else {
    wake(synced_);
  }
}

// ---------------------------------------------------------------- copies

void Block::init(CopyBarrier* barrier, int arrivals) {
  CopyPhase phase;
  phase.arrivals = phase.missing = arrivals;
  phases_[barrier] = phase;
}

CopyPhase& Block::phase_of(CopyBarrier* barrier) {
  if (phases_.count(barrier) == 0) stop("a copy barrier that is not made yet");
  return phases_[barrier];
}

void Block::arrive(CopyBarrier* barrier, uint32_t bytes) {
  CopyPhase& phase = phase_of(barrier);
  phase.bytes += bytes;
  --phase.missing;
  end_phase(phase);
}

void Block::end_phase(CopyPhase& phase) {
  if (phase.missing > 0 || phase.bytes != 0) return;
  ++phase.phase;
  phase.missing = phase.arrivals;
  wake(phase.waiting);
}

// The phase of this parity is the current one, or has just ended.
void Block::wait_for(CopyBarrier* barrier, uint32_t parity) {
  CopyPhase& phase = phase_of(barrier);
  while (phase.phase % 2 == parity) wait(phase.waiting, "a copy");
}

void Block::copy(void* to, const void* from, uint32_t bytes, CopyBarrier* barrier) {
  const auto aligned = [](const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; };
  if (!aligned(to) || !aligned(from) || bytes % 16 != 0 || bytes == 0) {
    stop("a copy that is not of whole 16 bytes");
  }
  phase_of(barrier);
  std::memset(to, 0xFF, bytes);
  copies_.push_back({static_cast<std::byte*>(to), static_cast<const std::byte*>(from), bytes, barrier});
}

void Block::land(size_t index) {
  const Copy copy = copies_[index];
  copies_.erase(copies_.begin() + static_cast<std::ptrdiff_t>(index));
  std::memcpy(copy.to, copy.from, copy.bytes);
  CopyPhase& phase = phases_[copy.barrier];
  phase.bytes -= copy.bytes;
  end_phase(phase);
}

// ---------------------------------------------------------------- switching

void Block::resume(Fibre& f) {
#if defined(KV_SIMT_ASAN)
  __sanitizer_start_switch_fiber(&fake_stack_, f.stack.get(), kStackBytes);
#endif
  if (_setjmp(scheduler_) == 0) {
    if (f.started) _longjmp(f.at, 1);
    f.started = true;
    getcontext(&f.begin);
    f.begin.uc_stack.ss_sp = f.stack.get();
    f.begin.uc_stack.ss_size = kStackBytes;
    f.begin.uc_link = nullptr;
    makecontext(&f.begin, &Block::enter, 0);
    setcontext(&f.begin);
  }
#if defined(KV_SIMT_ASAN)
  __sanitizer_finish_switch_fiber(fake_stack_, nullptr, nullptr);
#endif
}

void Block::leave() {
#if defined(KV_SIMT_ASAN)
  __sanitizer_start_switch_fiber(&fibre().fake_stack, stack_, stack_bytes_);
#endif
  if (_setjmp(fibre().at) == 0) _longjmp(scheduler_, 1);
#if defined(KV_SIMT_ASAN)
  __sanitizer_finish_switch_fiber(fibre().fake_stack, &stack_, &stack_bytes_);
#endif
}

void Block::body() {
#if defined(KV_SIMT_ASAN)
  __sanitizer_finish_switch_fiber(nullptr, &stack_, &stack_bytes_);
#endif
  kernel_();
  fibre().ended = true;
#if defined(KV_SIMT_ASAN)
  __sanitizer_start_switch_fiber(nullptr, stack_, stack_bytes_);
#endif
  _longjmp(scheduler_, 1);
}

}  // namespace

void launch(const Launch& how, const std::function<void()>& kernel) {
  if (how.threads <= 0 || how.threads % kWarp != 0 || how.threads > 1024) {
    throw SimtError("a block of a wrong number of threads");
  }
  Random random(how.seed);
  most_syncs = 0;
  std::vector<int> blocks(static_cast<size_t>(how.grid_x * how.grid_y));
  std::iota(blocks.begin(), blocks.end(), 0);
  for (size_t i = blocks.size(); i > 1; --i) std::swap(blocks[i - 1], blocks[random.below(i)]);
  static std::vector<std::unique_ptr<Fibre>> fibres;  // kept, since their stacks are large
  while (fibres.size() < static_cast<size_t>(how.threads)) fibres.push_back(std::make_unique<Fibre>());
  for (const int block : blocks) {
    Block(how, kernel, fibres, random).run(block % how.grid_x, block / how.grid_x);
  }
}

ScopedMachine::ScopedMachine(const Machine& with) {
  machine = with;
}
ScopedMachine::~ScopedMachine() {
  machine = {};
}

int syncs_of_last_launch() {
  return most_syncs;
}

}  // namespace kvasir::simt

// ---------------------------------------------------------------- the instructions

namespace kvasir::ops::gpu {

using simt::Block;

bool planted(Fault fault) {
  return simt::machine.fault == fault;
}

int thread_index() {
  return Block::active().thread();
}
int block_x() {
  return Block::active().x();
}
int block_y() {
  return Block::active().y();
}
int grid_x() {
  return Block::active().grid_x();
}
std::byte* shared_memory() {
  return Block::active().shared();
}

void sync_block() {
  Block& block = Block::active();
  if (block.fibre().syncs++ != simt::machine.skipped_sync) block.sync();
}
void sync_warp() {
  int nothing = 0;
  Block::active().together("sync_warp", &nothing, [](void* const*) {});
}

namespace {

template <typename T>
struct Shuffled {
  T value;
  int mask;
  T result;
};

template <typename T>
T shuffled(T value, int mask) {
  Shuffled<T> mine = {value, mask, value};
  Block::active().together("shuffle_xor", &mine, [](void* const* lanes) {
    for (int lane = 0; lane < kWarp; ++lane) {
      auto& to = *static_cast<Shuffled<T>*>(lanes[lane]);
      to.result = static_cast<Shuffled<T>*>(lanes[lane ^ to.mask])->value;
    }
  });
  return mine.result;
}

struct Matrices {
  const void* row;
  uint32_t* out;
};

template <bool kTransposed>
void read_matrices(void* const* lanes) {
  for (int lane = 0; lane < kWarp; ++lane) {
    if (reinterpret_cast<uintptr_t>(static_cast<const Matrices*>(lanes[lane])->row) % 16 != 0) {
      Block::active().stop("a row of a matrix that is not at a multiple of 16 bytes");
    }
  }
  const auto element = [&](int matrix, int row, int column) {
    const auto* from = static_cast<const Matrices*>(lanes[8 * matrix + row])->row;
    uint16_t bits = 0;
    std::memcpy(&bits, static_cast<const std::byte*>(from) + 2 * column, sizeof(bits));
    return uint32_t{bits};
  };
  for (int lane = 0; lane < kWarp; ++lane) {
    for (int m = 0; m < 4; ++m) {
      const int row = lane / 4, column = lane % 4 * 2;
      const uint32_t low = kTransposed ? element(m, column, row) : element(m, row, column);
      const uint32_t high = kTransposed ? element(m, column + 1, row) : element(m, row, column + 1);
      static_cast<const Matrices*>(lanes[lane])->out[m] = low | (high << 16);
    }
  }
}

struct FusedStep {
  float* c;
  const uint32_t* a;
  uint32_t b[2];
};

void step_all(void* const* lanes) {
  const auto lane_of = [&](int lane) { return static_cast<const FusedStep*>(lanes[lane]); };
  const auto half = [](uint32_t pair, int i) {
    return static_cast<uint16_t>(i % 2 == 0 ? pair : pair >> 16);
  };
  uint16_t a[16][16], b[8][16];  // b by column
  for (int row = 0; row < 16; ++row) {
    for (int k = 0; k < 16; ++k) {
      a[row][k] = half(lane_of(row % 8 * 4 + k % 8 / 2)->a[row / 8 + k / 8 * 2], k);
    }
  }
  for (int column = 0; column < 8; ++column) {
    for (int k = 0; k < 16; ++k) b[column][k] = half(lane_of(column * 4 + k % 8 / 2)->b[k / 8], k);
  }
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 8; ++column) {
      float& c = lane_of(row % 8 * 4 + column / 2)->c[row / 8 * 2 + column % 2];
      if (!simt::machine.half_steps) {
        c = fused16(c, a[row], b[column]);
        continue;
      }
      for (int begin = 0; begin < 16; begin += 8) {
        uint16_t x[16] = {};
        std::copy_n(a[row] + begin, 8, x);
        uint16_t y[16] = {};
        std::copy_n(b[column] + begin, 8, y);
        c = fused16(c, x, y);
      }
    }
  }
}

}  // namespace

float shuffle_xor(float value, int mask) {
  return shuffled(value, mask);
}
int shuffle_xor(int value, int mask) {
  return shuffled(value, mask);
}
uint64_t shuffle_xor(uint64_t value, int mask) {
  return shuffled(value, mask);
}
void add_in_shared(uint64_t* to, uint64_t value) {
  *to += value;
}
uint64_t multiply_high(uint64_t a, uint64_t b) {
  __extension__ using Wide = unsigned __int128;
  return static_cast<uint64_t>((static_cast<Wide>(a) * b) >> 64);
}

void barrier_init(CopyBarrier* barrier, int arrivals) {
  Block::active().init(barrier, arrivals);
}
void fence_barrier_init() {}
void fence_shared_to_copies() {}
void barrier_arrive(CopyBarrier* barrier) {
  Block::active().arrive(barrier, 0);
}
void barrier_arrive_expecting(CopyBarrier* barrier, uint32_t bytes) {
  Block::active().arrive(barrier, bytes);
}
void barrier_wait(CopyBarrier* barrier, uint32_t parity) {
  Block::active().wait_for(barrier, parity);
}
void copy_to_shared(void* to, const void* from, uint32_t bytes, CopyBarrier* barrier) {
  Block::active().copy(to, from, bytes, barrier);
}

void load_matrices(const void* row, uint32_t (&out)[4]) {
  Matrices mine = {row, out};
  Block::active().together("load_matrices", &mine, read_matrices<false>);
}
void load_matrices_transposed(const void* row, uint32_t (&out)[4]) {
  Matrices mine = {row, out};
  Block::active().together("load_matrices_transposed", &mine, read_matrices<true>);
}
void fused_step(float (&c)[4], const uint32_t (&a)[4], uint32_t b0, uint32_t b1) {
  FusedStep mine = {c, a, {b0, b1}};
  Block::active().together("fused_step", &mine, step_all);
}

}  // namespace kvasir::ops::gpu
