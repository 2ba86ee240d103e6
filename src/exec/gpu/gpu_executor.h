// Runs steps on a GPU, up to two deep. docs/gpu.md says what it computes, and what it does not do yet.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <thread>

#include "base/clock.h"
#include "contract/executor.h"
#include "contract/geometry.h"
#include "exec/gpu/device_tables.h"
#include "exec/gpu/gpu.h"
#include "exec/gpu/gpu_failure.h"
#include "exec/gpu/gpu_flight.h"
#include "exec/gpu/gpu_model.h"
#include "exec/gpu/step_mail.h"
#include "exec/logits_tap.h"
#include "exec/sampler.h"
#include "exec/step_transfers.h"
#include "exec/token_masks.h"

namespace kvasir {

struct GpuExecutorOptions {
  int depth = 2;  // 1 or 2
  // Layers of few rows that no transfer touches are queued as a CUDA graph.
  bool graphs = false;
  // Shared with the mover; null: the executor has its own.
  GpuFailure* failure = nullptr;
  // For tests that repeat themselves: there is no thread, and submit() and wait() are the pilot. Then wait()
  // goes along with a step to its end, and submit() with the oldest one as long as this says so.
  std::function<bool()> goes_along_in_submit = nullptr;
};

// The *pilot*, a thread of the executor's own, has all that is private here, but for the mail. submit() gives
// it a step and wait() takes a result; neither touches the device. So a device stands at no gate because the
// engine plans.
//
// The pilot queues a whole step at once and goes along with it: where the step's layers wait for transfers,
// the device waits at a *gate*, and where transfers start, it sets a *mark*. The pilot sees the marks, starts
// what is due, waits for what the next layer needs and opens its gate. A gate is opened only when every
// moment before it has been seen, since a link calls a transfer that has not been started done.
//
// A stream has no room for a long step behind a closed gate (kMostBehindAGate). Such a step is queued while
// the pilot goes along with it: it passes the step's moments where there is no room for the next entry. A
// second step is queued behind the first when there is room for all of it.
//
// A second step is queued behind the first one as soon as it is submitted, at a gate that opens when the
// first has ended: then the transfers of the second begin, and what the first has deferred is left out of it.
// A token that the first samples is read where the first has put it. If the second needs more memory than
// there is, or the first still has rows to make for the host, it is queued when the first has ended:
// allocating would wait for the gates of the first, which the pilot has to open.
//
// With GpuExecutorOptions::graphs, the layers of a step are one graph of the stream
// (GpuStream::begin_graph()) if they have no gate and no mark, few rows, and all rows pass all of them. The
// kernels and their arguments are the same. Each of the two steps has its own graph for each number of rows
// that another product serves, and for few and for many queries of attention, so that none is changed while
// it runs, and all steps of a graph have the same kernels. Making one would wait for gates, as allocating
// does, so a step whose graph is not there yet is queued when the first has ended.
//
// A row is drawn by the device if its request has a temperature, top_k and top_p alone
// (is_drawn_on_device()). The logits of all others come to the host, where Sampler draws; so do those whose
// log-probabilities are asked for. Which of the two draws depends on the request alone.
class GpuExecutor final : public Executor {
 public:
  // Everything referred to outlives the executor. device_memory: of all frames and the stage ring, the
  // device's. link: null where there is none; steps then have no transfers. kUnsupported: in this geometry K
  // and V, or X, are not bf16. kExhausted: no pinned memory.
  static Result<std::unique_ptr<GpuExecutor>> make(Gpu& gpu, const GpuModel& model,
                                                   const CacheGeometry& geometry, std::byte* device_memory,
                                                   const Clock& clock, Link* link,
                                                   GpuExecutorOptions options = {});
  // The device ends what is queued. Steps that it does not have yet never run.
  ~GpuExecutor() override;

  // Steps of at most so many rows of sequences of at most `longest` tokens.
  struct Steps {
    uint32_t rows;
    uint32_t longest;
    // Attention whose partial results need no more memory is one pass. More takes several (pass_ends()).
    uint64_t partial_bytes = uint64_t{256} << 20;
  };
  // Makes room for them in advance, in what all steps share and for hidden rows. Larger steps still grow it.
  // kExhausted.
  // REQUIRES: no step is in flight.
  Status reserve(const Steps& steps);
  // The same for pinned memory.
  Status reserve_pinned(const Steps& steps);
  // Bytes of the device that reserve() takes.
  static uint64_t activation_bytes(const ModelSpec& spec, const Steps& steps);

  int depth() const override { return options_.depth; }
  void submit(Step step) override;
  StepResult wait() override;
  void step_settled() override { mail_.settle(); }
  Nanos came_on_at() const override { return transfers_.came_on_at(); }
  void give_up_waiting() override { transfers_.give_up_waiting(); }

  // The error after which the device runs nothing more, so that each step fails; "": there was none. Any
  // thread; takes no lock.
  std::string failure() const { return failure_.words(); }

  // Tests and evaluation only; not while a step runs. All logits then come to the host, and wait() tells
  // them.
  void set_tap(LogitsTap tap) { tap_ = std::move(tap); }
  // Tests only, before the first step: marks and gates count from here.
  void count_from(uint32_t value);
  // Not while a step runs: of block tables that the device has.
  const DeviceTables& tables() const { return tables_; }
  // Steps that were queued behind one that had not ended,
  uint64_t queued_early() const { return queued_early_; }
  // and those that a stream has no room for behind their first gate.
  uint64_t queued_long() const { return queued_long_; }
  // Those whose layers were queued as a graph, and how often there was none yet, or one of other kernels.
  uint64_t graphs_queued() const { return graphs_queued_; }
  uint64_t graphs_made() const { return graphs_made_; }
  uint64_t graphs_refused() const { return graphs_refused_; }

 private:
  class Points;
  class Entries;
  static constexpr size_t kFlights = 2;
  // Rows whose logits are made at once.
  static constexpr size_t kLogitRows = 32;
  // Of a step that is a graph: with more, the device has more to do than the host.
  static constexpr int64_t kMostGraphRows = 64;
  // Of such rows a window has one pass of attention. Models have up to two windows.
  static constexpr size_t kMostGraphPasses = 4;
  // Where words_ has the word of the marks, and, 128 bytes on, that of the gates: the device writes one and
  // reads the other.
  static constexpr size_t kMarkWord = 0;
  static constexpr size_t kGateWord = 32;

  // What a buffer has to hold.
  struct Room {
    GpuBuffer* buffer;
    uint64_t bytes;
  };

  GpuExecutor(Gpu& gpu, const GpuModel& model, const CacheGeometry& geometry, std::byte* device_memory,
              const Clock& clock, Link* link, GpuExecutorOptions options, std::unique_ptr<GpuStream> stream);
  GpuFlight& flight(int index) { return flights_[static_cast<size_t>((first_ + index) % 2)]; }
  // --- Queueing.
  // before: the step in flight before it; null: there is none. A long step is left for queue_long(). A step
  // that lacks memory, a graph or room behind the step before is queued later.
  Status queue(GpuFlight& f, GpuFlight* before);
  // At most so many entries of the stream are the step's. new_tables: that are uploaded with it.
  uint64_t count_entries(const GpuFlight& f, uint64_t new_tables) const;
  // Entries behind the first of the step's gates that is closed.
  uint64_t behind_gates(const GpuFlight& f) const;
  bool fits_behind(const GpuFlight& f, const GpuFlight& before) const;
  // Before so many entries of the step (gpu_pilot.cc).
  void make_way(GpuFlight& f, uint64_t entries = 1);
  void queue_mark(GpuFlight& f);
  void queue_gate(GpuFlight& f);
  void queue_copies(GpuFlight& f, std::span<const GpuCopy> copies);
  std::array<Room, 6> shared_room(int64_t rows, int64_t records);
  // All that the step needs, but for places of tables; new_tables: bytes of those that will be uploaded.
  std::array<Room, 13> room_for(GpuFlight& f, uint64_t new_tables);
  Status make_room(GpuFlight& f, std::span<const Room> room);
  GpuScratch scratch_here() const;
  // The number of the stream's graph for the step's layers; nothing: they are no graph.
  std::optional<size_t> graph_of(const GpuFlight& f) const;
  void queue_step_layers(GpuFlight& f, const GpuStep& step, std::optional<size_t> graph);
  uint32_t* mark_word() const { return words_.data<uint32_t>() + kMarkWord; }
  uint32_t* gate_word() const { return words_.data<uint32_t>() + kGateWord; }
  Status upload(GpuFlight& f);
  void queue_begin_gate(GpuFlight& f);
  void queue_slices(GpuFlight& f);
  void queue_hidden_rows(GpuFlight& f);
  // Logits and tokens of some rows. Those that the host reads go to pinned_logits[at ...]; returns how many.
  size_t queue_tokens(GpuFlight& f, size_t first, size_t count, size_t at);
  size_t host_rows(const GpuFlight& f) const;
  bool needs_logits(const GpuFlight& f, const LogitUse& use) const;

  // --- Going along (gpu_pilot.cc).
  bool has_thread() const { return options_.goes_along_in_submit == nullptr; }
  void fly();
  // Opens the mail: the step begins, or is queued behind the one at hand.
  void take_up();
  // Goes along with the oldest step at hand to its end, begins the next one, and answers.
  void complete_oldest();
  void begin(GpuFlight& f);
  void try_to_begin(GpuFlight& f);
  void leave_out_deferred(GpuFlight& f);
  // What the step before has sampled, where the step's tokens and history name it.
  void resolve_references(GpuFlight& f, const GpuFlight& before);
  Status run(GpuFlight& f);
  // While it waits for a mark, a step that comes is taken up, but not while one is being queued.
  Status pass_next(GpuFlight& f);
  Status wait_for(uint32_t mark);
  // The oldest, which has begun. REQUIRES: all steps before are settled.
  Status queue_long();
  // The second, behind the first.
  void queue_second();
  void open_gates(const GpuFlight& f);

  // --- Results (gpu_results.cc).
  Status take_tokens(GpuFlight& f);
  // Of [first, first + count), whose logits lie at pinned_logits[at ...].
  void take_rows(GpuFlight& f, size_t first, size_t count, size_t at);
  Token take_row(GpuFlight& f, const LogitUse& use, std::span<const float> logits, Token drawn);
  void take_hidden(GpuFlight& f);

  Gpu& gpu_;
  const GpuModel& model_;
  const CacheGeometry geometry_;
  std::byte* const device_memory_;
  const Clock& clock_;
  const GpuExecutorOptions options_;
  StepTransfers transfers_;
  TokenMasks masks_;
  Sampler sampler_;
  LogitsTap tap_;
  const std::unique_ptr<GpuStream> stream_;

  DeviceTables tables_;
  GpuBuffer words_;  // pinned: the marks' and the gates'
  GpuBuffer x_, operand_, product_, q_, partials_, logits_;
  uint32_t marks_ = 0, gates_ = 0;  // values that were given out
  uint64_t entries_ = 0;            // that were queued
  bool is_queueing_long_ = false;
  const std::atomic<bool> never_{false};
  std::array<GpuFlight, kFlights> flights_;
  int first_ = 0;    // of the oldest
  int at_hand_ = 0;  // that have not ended
  uint64_t queued_early_ = 0, queued_long_ = 0;
  bool makes_graphs_ = options_.graphs;
  uint64_t graphs_queued_ = 0, graphs_made_ = 0, graphs_refused_ = 0;
  std::vector<GpuCopy> copies_;
  GpuFailure own_failure_;
  GpuFailure& failure_;

  StepMail mail_;
  std::thread pilot_;
};

// Whether the device draws what the sampler would have to otherwise.
bool is_drawn_on_device(const SamplingParams& sampling);

}  // namespace kvasir
