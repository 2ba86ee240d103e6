#include "exec/gpu/gpu_executor.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <utility>

#include "base/leaf_tokens.h"
#include "base/mutant.h"
#include "ops/cpu/isa.h"
#include "ops/gpu/layouts.h"

namespace kvasir {
namespace {

using Kind = GpuFlight::Moment::Kind;

}  // namespace

// Queues a step's kernels, and marks and gates among them.
class GpuExecutor::Points final : public PassPoints {
 public:
  Points(GpuExecutor& executor, GpuFlight& flight) : executor_(executor), flight_(flight) {}

  void before_write(uint32_t layer) override {
    if (!has_gate(*flight_.step, layer)) return;
    GpuExecutor& e = executor_;
    e.queue_gate(flight_);
    flight_.moments.push_back({Kind::kGate, layer, e.gates_, e.entries_ - 1});
    e.queue_slices(flight_);
  }
  void written(uint32_t layer) override { mark(layer_written(layer)); }
  void attended(uint32_t layer) override { mark(layer_attended(layer)); }

  static bool has_gate(const Step& step, uint32_t layer) { return !step.waits_before(layer).empty(); }
  static bool has_mark(const Step& step, StepPoint point) {
    return step.transfers_until(point) != step.transfers_until(point - 1);
  }

 private:
  void mark(StepPoint point) {
    if (!has_mark(*flight_.step, point)) return;
    executor_.queue_mark(flight_);
    flight_.moments.push_back({Kind::kMark, point, executor_.marks_, executor_.entries_ - 1});
  }

  GpuExecutor& executor_;
  GpuFlight& flight_;
};

class GpuExecutor::Entries final : public EachKernel<Entries> {
 public:
  Entries(GpuExecutor& executor, GpuFlight& flight) : executor_(executor), flight_(flight) {}
  template <typename Args>
  void add(const Args& args) {
    executor_.make_way(flight_);
    executor_.stream_->launch(args);
  }

 private:
  GpuExecutor& executor_;
  GpuFlight& flight_;
};

Result<std::unique_ptr<GpuExecutor>> GpuExecutor::make(Gpu& gpu, const GpuModel& model,
                                                       const CacheGeometry& geometry,
                                                       std::byte* device_memory, const Clock& clock,
                                                       Link* link, GpuExecutorOptions options) {
  if (geometry.has(Form::kX) && geometry.x_bytes_per_token_layer != gpu_x_bytes(model.spec)) {
    return error(ErrorCode::kUnsupported, "a GPU keeps X as bf16, {} bytes a token and layer, not {}",
                 gpu_x_bytes(model.spec), geometry.x_bytes_per_token_layer);
  }
  const auto plane = static_cast<uint64_t>(model.spec.kv_dim()) * sizeof(uint16_t);
  if (geometry.kv_plane_bytes_per_token_layer != plane) {
    return error(ErrorCode::kUnsupported, "a GPU keeps K and V as bf16; use --kv-cache-dtype bf16");
  }
  KV_ASSIGN_OR_RETURN(std::unique_ptr<GpuStream> stream, gpu.make_stream());
  auto made = std::unique_ptr<GpuExecutor>(new GpuExecutor(gpu, model, geometry, device_memory, clock, link,
                                                           std::move(options), std::move(stream)));
  KV_RETURN_IF_ERROR(made->words_.reserve(2 * kGateWord * sizeof(uint32_t)));
  std::memset(made->words_.data(), 0, made->words_.bytes());
  if (made->has_thread()) made->pilot_ = std::thread([&executor = *made] { executor.fly(); });
  return made;
}

GpuExecutor::GpuExecutor(Gpu& gpu, const GpuModel& model, const CacheGeometry& geometry,
                         std::byte* device_memory, const Clock& clock, Link* link, GpuExecutorOptions options,
                         std::unique_ptr<GpuStream> stream)
    : gpu_(gpu),
      model_(model),
      geometry_(geometry),
      device_memory_(device_memory),
      clock_(clock),
      options_(std::move(options)),
      transfers_(link, clock),
      sampler_(ops::kernels_for(ops::detect_isa())),
      stream_(std::move(stream)),
      tables_(gpu),
      words_(gpu, GpuBuffer::Kind::kPinned),
      x_(gpu, GpuBuffer::Kind::kDevice),
      operand_(gpu, GpuBuffer::Kind::kDevice),
      product_(gpu, GpuBuffer::Kind::kDevice),
      q_(gpu, GpuBuffer::Kind::kDevice),
      partials_(gpu, GpuBuffer::Kind::kDevice),
      logits_(gpu, GpuBuffer::Kind::kDevice),
      flights_{{GpuFlight(gpu, model), GpuFlight(gpu, model)}},
      failure_(options_.failure != nullptr ? *options_.failure : own_failure_) {}

GpuExecutor::~GpuExecutor() {
  give_up_waiting();
  mail_.close();
  if (pilot_.joinable()) pilot_.join();
  // Lets the device finish steps that were never waited for.
  if (words_.bytes() > 0) gpu_.open_gate(gate_word(), gates_);
  (void)stream_->wait();
}

// ---------------------------------------------------------------- room

namespace {

uint64_t bytes_of_floats(int64_t count) {
  return static_cast<uint64_t>(count) * sizeof(float);
}
uint64_t bytes_of_bf16(int64_t count) {
  return static_cast<uint64_t>(count) * sizeof(uint16_t);
}

// What a step gives for embeddings of such rows.
uint64_t hidden_bytes(const ModelSpec& spec, int64_t rows) {
  return bytes_of_floats(rows * spec.dim);
}

// Of a pass of attention: a row has a partial result for each of its leaves.
int64_t most_records(const ModelSpec& spec, const GpuExecutor::Steps& steps) {
  const int64_t leaves = (int64_t{steps.longest} + kLeafTokens - 1) / kLeafTokens;
  const auto bytes = bytes_of_floats(GpuScratch::sizes(spec, 0, /*records=*/1, 0).partials);
  const int64_t usual = static_cast<int64_t>(steps.partial_bytes / bytes);
  return std::min(steps.rows * leaves, std::max(ops::kTileRows * leaves, usual));
}

}  // namespace

Status GpuExecutor::reserve(const Steps& steps) {
  const int64_t records = most_records(model_.spec, steps);
  for (const Room& room : shared_room(steps.rows, records)) {
    KV_RETURN_IF_ERROR(room.buffer->reserve(room.bytes));
  }
  const uint64_t hidden = hidden_bytes(model_.spec, steps.rows);
  for (GpuFlight& f : flights_) {
    f.image.set_most_records(records);
    f.image.set_most_projected(steps.rows);
    KV_RETURN_IF_ERROR(f.hidden.reserve(hidden));
  }
  return tables_.reserve();
}

Status GpuExecutor::reserve_pinned(const Steps& steps) {
  for (GpuFlight& f : flights_) {
    KV_RETURN_IF_ERROR(f.pinned_hidden.reserve(hidden_bytes(model_.spec, steps.rows)));
  }
  return {};
}

uint64_t GpuExecutor::activation_bytes(const ModelSpec& spec, const Steps& steps) {
  const GpuScratch::Sizes s =
      GpuScratch::sizes(spec, steps.rows, most_records(spec, steps), static_cast<int64_t>(kLogitRows));
  return bytes_of_floats(s.x + s.product + s.partials + s.logits) + bytes_of_bf16(s.operand + s.q) +
         kFlights * hidden_bytes(spec, steps.rows) + DeviceTables::kReservedBytes;
}

std::array<GpuExecutor::Room, 6> GpuExecutor::shared_room(int64_t rows, int64_t records) {
  const GpuScratch::Sizes sizes = GpuScratch::sizes(model_.spec, rows, records, kLogitRows);
  return {{{&x_, bytes_of_floats(sizes.x)},
           {&operand_, bytes_of_bf16(sizes.operand)},
           {&product_, bytes_of_floats(sizes.product)},
           {&q_, bytes_of_bf16(sizes.q)},
           {&partials_, bytes_of_floats(sizes.partials)},
           {&logits_, bytes_of_floats(sizes.logits)}}};
}

std::array<GpuExecutor::Room, 13> GpuExecutor::room_for(GpuFlight& f, uint64_t new_tables) {
  std::array<Room, 13> room{};
  const auto shared = shared_room(f.image.product_rows(), f.image.records());
  auto next = std::copy(shared.begin(), shared.end(), room.begin());
  const uint64_t tokens = f.image.logit_uses().size() * sizeof(Token);
  const uint64_t hidden = hidden_bytes(model_.spec, static_cast<int64_t>(f.image.hidden_uses().size()));
  const auto for_host = static_cast<int64_t>(std::min(host_rows(f), kLogitRows));
  *next++ = {&f.tokens, tokens};
  *next++ = {&f.pinned_tokens, tokens};
  *next++ = {&f.hidden, hidden};
  *next++ = {&f.pinned_hidden, hidden};
  *next++ = {&f.pinned_logits, bytes_of_floats(for_host * model_.spec.vocab_size)};
  *next++ = {&f.image_here, f.image.bytes()};
  *next++ = {&f.pinned_image, f.image.bytes() + new_tables};
  return room;
}

// The image of a step grows to powers of two, so that it seldom grows as sequences do.
Status GpuExecutor::make_room(GpuFlight& f, std::span<const Room> room) {
  for (const Room& r : room) {
    if (r.bytes <= r.buffer->bytes()) continue;
    const bool is_image = r.buffer == &f.image_here || r.buffer == &f.pinned_image;
    KV_RETURN_IF_ERROR(r.buffer->reserve(is_image ? std::bit_ceil(r.bytes) : r.bytes));
    // A step that refers to tokens of one that failed shall read ids that there are.
    if (r.buffer == &f.pinned_tokens) std::memset(f.pinned_tokens.data(), 0, f.pinned_tokens.bytes());
  }
  return {};
}

void GpuExecutor::count_from(uint32_t value) {
  marks_ = gates_ = *mark_word() = *gate_word() = value;
}

// ---------------------------------------------------------------- queueing

Status GpuExecutor::queue(GpuFlight& f, GpuFlight* before) {
  f.lacks_room = false;
  const bool is_behind = before != nullptr;
  f.image.lay_out(*f.step, geometry_, is_behind ? &before->image : nullptr);
  tables_.sweep();
  const DeviceTables::Need tables = tables_.need_of(f.step->slices);
  const auto room = room_for(f, tables.new_bytes);
  const bool has_room = tables.allocates_nothing && std::all_of(room.begin(), room.end(), [](const Room& r) {
                          return r.bytes <= r.buffer->bytes();
                        });
  const std::optional<size_t> graph = graph_of(f);
  const bool has_graph = !graph || stream_->has_graph(*graph);
  if (is_behind && (!before->is_complete || !has_room || !has_graph)) return {};
  KV_RETURN_IF_ERROR(make_room(f, room));
  if (is_behind || !f.step->waits.empty()) f.entries = count_entries(f, tables.new_tables);
  if (is_behind && !fits_behind(f, *before)) {
    f.lacks_room = true;
    return {};
  }
  const bool is_long = !is_behind && f.entries > kMostBehindAGate && !f.step->waits.empty();
  if (is_long && !is_queueing_long_ && !mutant(Mutant::kStreamOverfull)) return {};
  f.moments.reserve(3 * static_cast<size_t>(model_.spec.layers));
  KV_RETURN_IF_ERROR(upload(f));
  if (is_behind) queue_begin_gate(f);
  GpuStep step = f.image.step_at(f.image_here.data());
  step.kv.memory = device_memory_;
  if (f.image.refers_to_earlier()) {
    const GpuCopy chosen = {before->tokens.data(), before->pinned_tokens.data(),
                            before->image.logit_uses().size() * sizeof(Token)};
    queue_copies(f, {&chosen, 1});
    step.earlier = before->tokens.data<int32_t>();
  }
  queue_step_layers(f, step, graph);
  queue_hidden_rows(f);
  f.is_queued = true;
  const size_t rows = f.image.logit_uses().size();
  // With more, the host takes them some at a time.
  if (host_rows(f) > kLogitRows) return {};
  size_t at = 0;
  for (size_t first = 0; first < rows; first += kLogitRows) {
    at += queue_tokens(f, first, std::min(kLogitRows, rows - first), at);
  }
  queue_mark(f);
  f.end_mark = marks_;
  f.is_complete = true;
  queued_early_ += is_behind ? 1 : 0;
  return {};
}

// Which kernels there are, and in which order, depends on the number alone: products have four by rows, and
// attention two in each window (ops/gpu/kernels/choose.h).
std::optional<size_t> GpuExecutor::graph_of(const GpuFlight& f) const {
  const Step& step = *f.step;
  const auto last = static_cast<uint32_t>(model_.spec.layers) - 1;
  const bool has_transfers =
      !step.waits.empty() || step.transfers_until(layer_attended(last)) > step.transfers_until(kStepBegins);
  if (!makes_graphs_ || (has_transfers && !mutant(Mutant::kGraphWithoutGates))) return {};
  const int64_t rows = f.image.rows();
  if (rows == 0 || rows > kMostGraphRows || !f.image.all_stay()) return {};
  if (!step.x_writes.empty() || !step.projections.empty()) return {};
  constexpr size_t kProducts = 4;  // up to 8, 16, 32 and 64 rows
  static_assert(kMostGraphRows == 8 << (kProducts - 1));
  const auto product = static_cast<size_t>(std::bit_width(static_cast<uint64_t>(rows - 1) / 8));
  const auto own = mutant(Mutant::kGraphShared) ? 0 : static_cast<size_t>(&f - flights_.data());
  const size_t passes = f.image.attention_passes();
  if (passes > kMostGraphPasses) return {};
  const uint64_t attention = mutant(Mutant::kGraphOfOthers) ? 0 : f.image.passes_with_many_queries();
  return ((own * kProducts + product) << kMostGraphPasses) + attention;
}

void GpuExecutor::queue_step_layers(GpuFlight& f, const GpuStep& step, std::optional<size_t> graph) {
  Entries kernels(*this, f);
  if (graph) {
    const bool makes_it = !stream_->has_graph(*graph);
    stream_->begin_graph(*graph);
    queue_layers(model_, step, scratch_here(), kernels, nullptr);
    if (stream_->end_graph()) {
      ++graphs_queued_;
      graphs_made_ += makes_it ? 1 : 0;
      return;
    }
    ++graphs_refused_;
    // The next step would ask in vain, and be queued late.
    if (makes_it) makes_graphs_ = false;
  }
  Points points(*this, f);
  queue_layers(model_, step, scratch_here(), kernels, &points);
}

// ---------------------------------------------------------------- entries of the stream

namespace {

class KernelCount final : public EachKernel<KernelCount> {
 public:
  template <typename Args>
  void add(const Args&) {
    ++count;
  }
  uint64_t count = 0;
};

}  // namespace

uint64_t GpuExecutor::count_entries(const GpuFlight& f, uint64_t new_tables) const {
  // The image, gate and slices of the beginning, tokens of the step before; hidden rows; the last mark.
  constexpr uint64_t kBesides = 4 + 2 + 1;
  constexpr uint64_t kOfSomeTokens = 4;  // kernels of kLogitRows of them, and the copy of their ids
  KernelCount kernels;
  queue_layers(model_, f.image.step_at(f.image_here.data()), scratch_here(), kernels, nullptr);
  uint64_t points = 0;
  for (uint32_t layer = 0; layer < static_cast<uint32_t>(model_.spec.layers); ++layer) {
    points += Points::has_gate(*f.step, layer) ? 2 : 0;
    points += Points::has_mark(*f.step, layer_written(layer)) ? 1 : 0;
    points += Points::has_mark(*f.step, layer_attended(layer)) ? 1 : 0;
  }
  const uint64_t tokens = (f.image.logit_uses().size() + kLogitRows - 1) / kLogitRows;
  return new_tables + kernels.count + points + kOfSomeTokens * tokens + host_rows(f) + kBesides;
}

uint64_t GpuExecutor::behind_gates(const GpuFlight& f) const {
  const auto next = std::find_if(f.moments.begin() + static_cast<ptrdiff_t>(f.passed), f.moments.end(),
                                 [](const GpuFlight::Moment& m) { return m.kind == Kind::kGate; });
  return next == f.moments.end() ? 0 : entries_ - next->entry;
}

bool GpuExecutor::fits_behind(const GpuFlight& f, const GpuFlight& before) const {
  return mutant(Mutant::kStreamOverfull) || behind_gates(before) + f.entries <= kMostBehindAGate;
}

void GpuExecutor::queue_mark(GpuFlight& f) {
  make_way(f);
  stream_->mark(mark_word(), ++marks_);
}

void GpuExecutor::queue_gate(GpuFlight& f) {
  make_way(f);
  f.last_gate = ++gates_;
  stream_->gate(gate_word(), gates_);
}

void GpuExecutor::queue_copies(GpuFlight& f, std::span<const GpuCopy> copies) {
  make_way(f, copies.size());
  stream_->copy(copies);
}

GpuScratch GpuExecutor::scratch_here() const {
  return {x_.data<float>(),    operand_.data<uint16_t>(), product_.data<float>(),
          q_.data<uint16_t>(), partials_.data<float>(),   logits_.data<float>()};
}

// New tables lie behind the image in pinned memory; everything is one batch of copies.
Status GpuExecutor::upload(GpuFlight& f) {
  copies_.clear();
  for (size_t s = 0; s < f.step->slices.size(); ++s) {
    const std::shared_ptr<const BlockTable>& table = f.step->slices[s].table;
    KV_ASSIGN_OR_RETURN(const DeviceTables::Place place, tables_.place_of(table));
    f.image.set_table(s, place.at);
    if (!place.is_new || table->empty()) continue;
    copies_.push_back({place.at, table->data(), table->size() * sizeof(KvPlanes)});
  }
  f.image.pack(f.pinned_image.data());
  if (f.begun) leave_out_deferred(f);
  std::byte* to = f.pinned_image.data() + f.image.bytes();
  for (GpuCopy& copy : copies_) {
    std::memcpy(to, copy.from, copy.bytes);
    copy.from = to;
    if (!mutant(Mutant::kPinnedReused)) to += copy.bytes;
  }
  copies_.push_back({f.image_here.data(), f.pinned_image.data(), f.image.bytes()});
  queue_copies(f, copies_);
  return {};
}

void GpuExecutor::queue_begin_gate(GpuFlight& f) {
  queue_gate(f);
  f.begin_gate = gates_;
  queue_slices(f);
}

// Which slices have left the step, as it is known when the stream comes here.
void GpuExecutor::queue_slices(GpuFlight& f) {
  const GpuCopy flags = {f.image_here.data(), f.pinned_image.data(), f.image.slices().size()};
  queue_copies(f, {&flags, 1});
}

void GpuExecutor::queue_hidden_rows(GpuFlight& f) {
  const size_t count = f.image.hidden_uses().size();
  if (count == 0) return;
  Entries kernels(*this, f);
  queue_hidden(model_, f.image.hidden_at(f.image_here.data()), static_cast<int32_t>(count), scratch_here(),
               f.hidden.data<float>(), kernels);
  const GpuCopy copy = {f.pinned_hidden.data(), f.hidden.data(),
                        count * static_cast<size_t>(model_.spec.dim) * sizeof(float)};
  queue_copies(f, {&copy, 1});
}

size_t GpuExecutor::queue_tokens(GpuFlight& f, size_t first, size_t count, size_t at) {
  Entries kernels(*this, f);
  queue_logits(model_, f.image.logits_at(f.image_here.data(), first, count, f.tokens.data<int32_t>()),
               scratch_here(), kernels);
  const auto vocabulary = static_cast<size_t>(model_.spec.vocab_size);
  copies_.clear();
  copies_.push_back(
      {f.pinned_tokens.data<Token>() + first, f.tokens.data<Token>() + first, count * sizeof(Token)});
  for (size_t i = 0; i < count; ++i) {
    if (!needs_logits(f, f.image.logit_uses()[first + i])) continue;
    copies_.push_back({f.pinned_logits.data<float>() + at++ * vocabulary,
                       logits_.data<float>() + i * vocabulary, vocabulary * sizeof(float)});
  }
  queue_copies(f, copies_);
  return copies_.size() - 1;
}

}  // namespace kvasir
