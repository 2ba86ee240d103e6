#include "cluster/memory/lent_memory.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <iterator>
#include <new>

#include "base/check.h"
#include "base/log.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

// How long a thread that waits for the budget sleeps at most: what it waits for may change.
constexpr Nanos kBudgetPoll = 10 * kNanosPerMilli;

std::pair<std::string, uint64_t> life_of(const PeerId& id) {
  return {id.instance, id.epoch};
}

// Cells that are held while they are used.
class PinnedCells {
 public:
  explicit PinnedCells(LentCells& cells) : cells_(cells) {}
  ~PinnedCells() { cells_.unpin(pins_); }
  PinnedCells(const PinnedCells&) = delete;
  PinnedCells& operator=(const PinnedCells&) = delete;

  bool pin(const PeerId& debtor, std::span<const CellRun> runs, size_t count) {
    // Nothing is pinned that there is no memory to remember.
    pins_.reserve(count);
    at_.reserve(count);
    return cells_.pin(debtor, runs, at_, pins_);
  }
  std::span<std::byte* const> at() const { return at_; }

 private:
  LentCells& cells_;
  std::vector<uint32_t> pins_;
  std::vector<std::byte*> at_;
};

}  // namespace

LentMemory::LentMemory(LentMemoryOptions options, PeerId self, const MemoryShape& shape,
                       const ops::Kernels& kernels, LentCells& cells, const Clock& clock, SendData send)
    : options_(options),
      self_(std::move(self)),
      shape_(shape),
      kernels_(kernels),
      cells_(cells),
      clock_(clock),
      send_(std::move(send)),
      budget_(options.share, std::max(options.threads, 1), options.burst, clock.now()) {
  KV_CHECK(options.threads >= 0 && shape.kv.layers == 1 && ops::is_valid(shape.kv) &&
               ops::kv_plane_bytes(shape.kv) == shape.geometry.layer_plane_bytes(),
           "threads={} layers={} plane={} of {}", options.threads, shape.kv.layers,
           ops::kv_plane_bytes(shape.kv), shape.geometry.layer_plane_bytes());
  for (int i = 0; i < options.threads; ++i) threads_.emplace_back([this] { run(); });
}

LentMemory::~LentMemory() {
  stop();
}

void LentMemory::stop() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    changed_.notify_all();
  }
  for (std::thread& thread : threads_) {
    if (thread.joinable()) thread.join();
  }
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [&] { return running_ == 0; });
  for (const std::shared_ptr<Debtor>& debtor : turns_) debtor->queue.clear();  // they name their debtor
}

// ---------------------------------------------------------------- what comes

void LentMemory::handle(const PeerId& from, std::span<const std::byte> message) {
  const auto header = parse_header(message);
  if (!header || header->kind == DataKind::kReply) {
    std::lock_guard lock(mutex_);
    ++stats_.malformed;
    return;
  }
  Request request;
  request.header = *header;
  request.arrived = clock_.now();
  DataCode code = parse(from, message, request);
  {
    std::lock_guard lock(mutex_);
    if (stopping_) return;
    // Told is told, also by a query that is refused.
    if (code == DataCode::kOk && request.body.table != 0 && !tables_[life_of(from)].complete(request.body)) {
      code = DataCode::kNoTable;
    }
    if (code == DataCode::kOk) {
      request.debtor = debtor_of(from);
      const Debtor& debtor = *request.debtor;
      if (at_once(debtor, request)) {
        begin(request, request.arrived);
      } else if (too_busy(debtor, request, request.arrived)) {
        code = DataCode::kBusy;
      } else {
        queue(std::move(request), message);
        return;
      }
    }
    if (code != DataCode::kOk) count_error(code);
  }
  if (code == DataCode::kOk) {
    serve(request, /*may_pause=*/false);
  } else {
    reply_error(from, *header, code);
  }
}

DataCode LentMemory::parse(const PeerId& from, std::span<const std::byte> message, Request& request) const {
  const DataHeader& header = request.header;
  if (header.creditor_epoch != self_.epoch || header.debtor_epoch != from.epoch) return DataCode::kStaleEpoch;
  if (header.kind == DataKind::kAttend) return parse_query(message, request);
  CellSpan& at = request.at;
  if (!parse_copy(message, at, request.payload)) return DataCode::kMalformed;
  const uint64_t cell = shape_.geometry.kv_cell_bytes();
  if (at.bytes == 0 || at.bytes > cell || at.offset > cell - at.bytes) return DataCode::kMalformed;
  if (header.kind == DataKind::kWrite && !cells_.may_write(at.contract)) return DataCode::kMalformed;
  const uint64_t carried = header.kind == DataKind::kWrite ? at.bytes : 0;
  return request.payload.size() == carried ? DataCode::kOk : DataCode::kMalformed;
}

DataCode LentMemory::parse_query(std::span<const std::byte> message, Request& request) const {
  AttendBody& body = request.body;
  std::span<const std::byte> q;
  if (!parse_attend(message, body, q)) return DataCode::kMalformed;
  if (body.layer >= shape_.geometry.layers_per_group) return DataCode::kMalformed;
  if (body.rows == 0 || body.rows > kMaxQueryRows) return DataCode::kMalformed;
  if (q.size() != shape_.query_bytes(body.rows)) return DataCode::kMalformed;
  uint32_t at = 0;
  for (const LeafRun& run : body.runs) {
    if (run.first < at || run.end <= run.first) return DataCode::kMalformed;
    at = run.end;
    request.leaves += run.leaves();
  }
  if (request.leaves == 0 || request.leaves > kMaxQueryLeaves) return DataCode::kMalformed;
  if (body.table == 0 && body.known > 0) return DataCode::kMalformed;
  if (body.known + count_cells(body.cells) != request.leaves * shape_.blocks_per_leaf())
    return DataCode::kMalformed;
  if (shape_.partial_bytes(body.rows, subtrees_of(body.runs)) > kMaxReplyBytes) return DataCode::kMalformed;
  request.q.resize(q.size() / sizeof(float));
  std::memcpy(request.q.data(), q.data(), q.size());
  return DataCode::kOk;
}

void LentMemory::lost(const PeerId& id) {
  std::lock_guard lock(mutex_);
  tables_.erase(life_of(id));
  const auto found = debtors_.find(life_of(id));
  if (found == debtors_.end()) return;
  const std::shared_ptr<Debtor> debtor = found->second;
  debtor->gone = true;
  for (const Request& request : debtor->queue) {
    queued_bytes_ -= request.held_bytes();
    if (request.is_query()) open_leaf_rows_ -= request.leaf_rows();
  }
  stats_.queued -= debtor->queue.size();
  debtor->queue.clear();
  std::erase(turns_, debtor);
  debtors_.erase(found);
  changed_.notify_all();
}

void LentMemory::set_share(double share) {
  std::lock_guard lock(mutex_);
  budget_.set_share(share, clock_.now());
  changed_.notify_all();
}

LentMemoryStats LentMemory::stats() const {
  std::lock_guard lock(mutex_);
  return stats_;
}

// ---------------------------------------------------------------- turns

std::shared_ptr<LentMemory::Debtor> LentMemory::debtor_of(const PeerId& id) {
  std::shared_ptr<Debtor>& debtor = debtors_[life_of(id)];
  if (!debtor) {
    debtor = std::make_shared<Debtor>();
    debtor->id = id;
  }
  return debtor;
}

bool LentMemory::at_once(const Debtor& debtor, const Request& request) {
  if (request.is_query()) return false;
  if (request.is_write()) return debtor.queue.empty() && debtor.running == 0;
  return debtor.writes == 0 && !debtor.writing;
}

bool LentMemory::too_busy(const Debtor& debtor, const Request& request, Nanos now) const {
  if (debtor.queue.size() >= options_.max_queued) return true;
  if (queued_bytes_ + request.held_bytes() + request.payload.size() > options_.max_queued_bytes) return true;
  if (!request.is_query()) return false;
  if (budget_.share() <= 0) return true;
  const Nanos before = from_seconds(open_leaf_rows_ * leaf_row_s_.get());
  return budget_.done_at(before, now) - now > options_.max_wait;
}

// If it throws for want of memory, nothing has changed.
void LentMemory::queue(Request request, std::span<const std::byte> message) {
  if (request.is_write()) {
    const size_t offset = message.size() - request.payload.size();
    request.bytes.assign(message.begin() + static_cast<std::ptrdiff_t>(offset), message.end());
    request.payload = request.bytes;
  }
  const std::shared_ptr<Debtor> debtor = request.debtor;
  debtor->queue.push_back(std::move(request));
  const Request& queued = debtor->queue.back();
  if (debtor->queue.size() == 1) {
    try {
      turns_.push_back(debtor);
    } catch (const std::bad_alloc&) {
      debtor->queue.pop_back();
      throw;
    }
  }
  if (queued.is_write()) ++debtor->writes;
  queued_bytes_ += queued.held_bytes();
  if (queued.is_query()) open_leaf_rows_ += queued.leaf_rows();
  ++stats_.queued;
  changed_.notify_one();
}

// Allocates nothing: a thread that serves has no caller to tell.
bool LentMemory::take(Request& out, Nanos now) {
  for (auto turn = turns_.begin(); turn != turns_.end(); ++turn) {
    const std::shared_ptr<Debtor> debtor = *turn;
    Request& first = debtor->queue.front();
    if (first.is_write() ? debtor->running > 0 : debtor->writing) continue;
    if (first.is_query()) {
      first.refusal = verdict(first, now);
      if (first.refusal == DataCode::kOk && budget_.ready_at(now) > now) continue;
    }
    queued_bytes_ -= first.held_bytes();
    --stats_.queued;
    if (first.is_write()) --debtor->writes;
    out = std::move(first);
    debtor->queue.pop_front();
    std::rotate(turn, std::next(turn), turns_.end());  // its next turn is the last one
    if (debtor->queue.empty()) turns_.pop_back();
    begin(out, now);
    return true;
  }
  return false;
}

void LentMemory::begin(Request& request, Nanos now) {
  ++running_;
  ++request.debtor->running;
  if (request.is_write()) request.debtor->writing = true;
  request.waited = now - request.arrived;
}

void LentMemory::end(const Request& request) {
  Debtor& debtor = *request.debtor;
  --running_;
  --debtor.running;
  if (request.is_write()) debtor.writing = false;
  if (request.is_query()) open_leaf_rows_ -= request.leaf_rows();
  if (debtor.running == 0 && debtor.queue.empty() && !debtor.gone) {
    std::erase_if(debtors_, [&](const auto& entry) { return entry.second.get() == &debtor; });
  }
  changed_.notify_all();
}

void LentMemory::run() {
  ops::set_flush_to_zero();
  std::unique_lock lock(mutex_);
  while (!stopping_) {
    Request request;
    if (take(request, clock_.now())) {
      lock.unlock();
      serve(request, /*may_pause=*/true);
      lock.lock();
    } else if (turns_.empty()) {
      changed_.wait(lock);
    } else {
      const Nanos now = clock_.now();
      const Nanos ready = std::clamp<Nanos>(budget_.ready_at(now) - now, kNanosPerMicro, kBudgetPoll);
      changed_.wait_for(lock, std::chrono::nanoseconds(ready));
    }
  }
}

bool LentMemory::serve_one() {
  Request request;
  {
    std::lock_guard lock(mutex_);
    if (!take(request, clock_.now())) return false;
  }
  serve(request, /*may_pause=*/false);
  return true;
}

// ---------------------------------------------------------------- service

void LentMemory::serve(Request& request, bool may_pause) {
  std::vector<std::byte> reply;
  DataCode code = request.refusal;
  try {
    if (code == DataCode::kOk) {
      code = request.is_query() ? attend(request, reply, may_pause) : copy(request, reply);
    }
  } catch (const std::bad_alloc&) {
    code = DataCode::kBusy;
  }
  bool answered = true;
  {
    std::lock_guard lock(mutex_);
    answered = !request.debtor->gone && !stopping_;
    count(request, code);
    end(request);
  }
  if (!answered) return;
  // A debtor that cannot be reached, or whose answer has no memory here, keeps a deadline of its own.
  try {
    if (code != DataCode::kOk) return reply_error(request.debtor->id, request.header, code);
    set_header(reply, reply_header(request));
    static_cast<void>(send_(request.debtor->id, std::move(reply)));
  } catch (const std::bad_alloc&) {
    log_warning("no memory to answer {}", request.debtor->id.instance);
  }
}

DataCode LentMemory::copy(const Request& request, std::vector<std::byte>& reply) {
  const PeerId& debtor = request.debtor->id;
  const CellSpan& at = request.at;
  // Before the cell is pinned, since there may be no memory for it.
  reply = make_reply(reply_header(request), request.is_write() ? 0 : at.bytes);
  const CellRun run = {at.contract, at.index, 0, 1};
  PinnedCells pinned(cells_);
  if (!pinned.pin(debtor, std::span(&run, 1), 1)) return DataCode::kNoCell;
  std::byte* cell = pinned.at().front();
  if (request.is_write()) {
    std::memcpy(cell + at.offset, request.payload.data(), at.bytes);
  } else {
    append_bytes(reply, {cell + at.offset, at.bytes});
  }
  return DataCode::kOk;
}

DataCode LentMemory::attend(Request& request, std::vector<std::byte>& reply, bool may_pause) {
  PinnedCells cells(cells_);
  if (!cells.pin(request.debtor->id, request.body.cells, request.leaves * shape_.blocks_per_leaf()))
    return DataCode::kNoCell;
  return attend_pinned(request, cells.at(), reply, may_pause);
}

DataCode LentMemory::attend_pinned(Request& request, std::span<const std::byte* const> cells,
                                   std::vector<std::byte>& reply, bool may_pause) {
  const AttendBody& body = request.body;
  const uint64_t bytes = shape_.partial_bytes(body.rows, subtrees_of(body.runs));
  reply = make_reply(reply_header(request), bytes);
  reply.resize(kDataHeaderBytes + bytes);
  DataCode code = DataCode::kOk;
  Nanos since = clock_.now();
  const auto go_on = [&] {
    std::unique_lock lock(mutex_);
    const Nanos now = clock_.now();
    budget_.spend(now - since, now);
    request.worked += now - since;
    stats_.busy_s += to_seconds(now - since);
    since = now;
    if (may_pause && budget_.ready_at(now) > now) {
      pause(lock, request);
      since = clock_.now();
      request.waited += since - now;
    }
    code = verdict(request, since);
    return code == DataCode::kOk;
  };
  const ops::LeafQuery query = shape_.leaf_query(body.layer, body.rows, body.runs, cells, request.q.data());
  ops::attend_leaves(kernels_, query, std::span(reply).subspan(kDataHeaderBytes), go_on);
  return code;
}

void LentMemory::pause(std::unique_lock<std::mutex>& lock, const Request& request) {
  for (Nanos now = clock_.now();; now = clock_.now()) {
    const Nanos ready = budget_.ready_at(now);
    if (ready <= now || verdict(request, now) != DataCode::kOk) return;
    changed_.wait_for(lock, std::chrono::nanoseconds(std::min(ready - now, kBudgetPoll)));
  }
}

DataCode LentMemory::verdict(const Request& request, Nanos now) const {
  if (stopping_ || request.debtor->gone) return DataCode::kTooLate;
  if (static_cast<uint64_t>(now - request.arrived) >= request.header.span_ns) return DataCode::kTooLate;
  return budget_.share() > 0 ? DataCode::kOk : DataCode::kBusy;
}

// ---------------------------------------------------------------- answers

DataHeader LentMemory::reply_header(const Request& request) const {
  DataHeader header = request.header;
  header.kind = DataKind::kReply;
  header.code = DataCode::kOk;
  header.span_ns = static_cast<uint64_t>(request.worked);
  header.waited_ns = static_cast<uint64_t>(request.waited);
  return header;
}

void LentMemory::reply_error(const PeerId& to, const DataHeader& request, DataCode code) {
  DataHeader header = request;
  header.kind = DataKind::kReply;
  header.code = code;
  header.span_ns = header.waited_ns = 0;
  static_cast<void>(send_(to, make_reply(header, 0)));
}

void LentMemory::count(const Request& request, DataCode code) {
  if (code != DataCode::kOk) return count_error(code);
  if (request.is_query()) {
    ++stats_.queries;
    stats_.leaf_rows += request.leaves * request.body.rows;
    if (request.worked > 0) leaf_row_s_.add(to_seconds(request.worked) / request.leaf_rows());
  } else if (request.is_write()) {
    ++stats_.writes;
    stats_.written_bytes += request.at.bytes;
  } else {
    ++stats_.reads;
    stats_.read_bytes += request.at.bytes;
  }
}

void LentMemory::count_error(DataCode code) {
  switch (code) {
    case DataCode::kOk:
      break;
    case DataCode::kMalformed:
      ++stats_.malformed;
      break;
    case DataCode::kStaleEpoch:
      ++stats_.stale_epoch;
      break;
    case DataCode::kNoCell:
      ++stats_.no_cell;
      break;
    case DataCode::kNoTable:
      ++stats_.no_table;
      break;
    case DataCode::kBusy:
      ++stats_.busy;
      break;
    case DataCode::kTooLate:
      ++stats_.too_late;
      break;
  }
}

}  // namespace kvasir
