// How operations begin; borrowed_replies.cc has how they end, borrowed_fetch.cc what is attended to here,
// borrowed_places.cc what lies where.
#include "cluster/memory/borrowed_memory.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvasir {
namespace {

// The room for what is fetched is this many windows', so that some are on their way while one is attended to.
constexpr uint64_t kFetchSlots = 4;
// Of the shares that would be cheaper to fetch from a creditor, one in so many goes there all the same: so it
// is seen when it costs less again.
constexpr uint32_t kShipAnyway = 16;

uint32_t window_leaves(const MemoryShape& shape, uint64_t max_fetch_bytes) {
  return static_cast<uint32_t>(
      std::clamp<uint64_t>(max_fetch_bytes / kFetchSlots / shape.leaf_bytes(), 1, kMaxQueryLeaves));
}

}  // namespace

BorrowedMemory::BorrowedMemory(BorrowedMemoryOptions options, PeerId self, const MemoryShape& shape,
                               const ops::Kernels& kernels, const Clock& clock, SendData send)
    : options_(options),
      self_(std::move(self)),
      shape_(shape),
      kernels_(kernels),
      clock_(clock),
      send_(std::move(send)),
      window_leaves_(window_leaves(shape, options.max_fetch_bytes)),
      places_(options.cells) {
  KV_CHECK(options.deadline > 0, "deadline={}", options.deadline);
  const uint64_t slots =
      std::clamp<uint64_t>(options.max_fetch_bytes / (window_leaves_ * shape.leaf_bytes()), 1, kFetchSlots);
  slots_.resize(slots);
  for (uint32_t slot = 0; slot < slots; ++slot) free_slots_.push_back(slot);
}

BorrowedMemory::~BorrowedMemory() {
  After after;
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
    while (!operations_.empty()) {
      const OperationPtr operation = operations_.begin()->second;
      fail(operation, error(ErrorCode::kUnavailable, "the instance shuts down"), after);
    }
    changed_.notify_all();
  }
  if (worker_.joinable()) worker_.join();
  drive(std::move(after));
}

// ---------------------------------------------------------------- operations

void BorrowedMemory::write(uint64_t at, std::span<const std::byte> from, Done done) {
  auto operation = std::make_shared<Operation>();
  operation->kind = DataKind::kWrite;
  operation->done = std::move(done);
  operation->from = from;
  copy(std::move(operation), at, from.size());
}

void BorrowedMemory::read(uint64_t at, std::span<std::byte> to, Done done) {
  auto operation = std::make_shared<Operation>();
  operation->kind = DataKind::kRead;
  operation->done = std::move(done);
  operation->to = to;
  copy(std::move(operation), at, to.size());
}

void BorrowedMemory::copy(OperationPtr operation, uint64_t at, uint64_t bytes) {
  const uint64_t cell_bytes = shape_.geometry.kv_cell_bytes();
  const uint64_t cell = at / cell_bytes, offset = at % cell_bytes;
  KV_CHECK(bytes > 0 && cell < places_.size() && offset + bytes <= cell_bytes,
           "at={} bytes={} cells={} of {}", at, bytes, places_.size(), cell_bytes);
  After after;
  {
    std::unique_lock lock(mutex_);
    const CellPlace& place = operation->place = places_[cell];
    if (place.creditor == CellPlace::kNowhere) {
      lock.unlock();
      operation->done(error(ErrorCode::kUnavailable, "cell {} is not lent any more; recompute it", cell));
      return;
    }
    add(operation);
    operation->open = 1;
    const MessagePtr message = copy_message(operation, operation->kind, place, offset, bytes);
    message->into = operation->to;
    enqueue(message, after);
    if (stopping_) fail(operation, error(ErrorCode::kUnavailable, "the instance shuts down"), after);
  }
  drive(std::move(after));
}

BorrowedMemory::MessagePtr BorrowedMemory::copy_message(const OperationPtr& operation, DataKind kind,
                                                        const CellPlace& place, uint64_t offset,
                                                        uint64_t bytes) const {
  auto message = std::make_shared<Message>();
  message->kind = kind;
  message->operation = operation;
  message->creditor = place.creditor;
  message->at = {place.contract, place.index, offset, bytes};
  message->request_bytes = kDataHeaderBytes + kCellSpanBytes + (kind == DataKind::kWrite ? bytes : 0);
  message->reply_payload = kind == DataKind::kRead ? bytes : 0;
  return message;
}

void BorrowedMemory::attend(const RemoteQuery& query, std::span<float> partials, Done done) {
  const LeafRun run{query.first_leaf, query.end_leaf};
  KV_CHECK(run.end > run.first && query.rows > 0 && query.q_stride >= shape_.q_dim() &&
               query.pieces.size() == size_t{run.leaves()} * shape_.blocks_per_leaf() &&
               partials.size_bytes() == shape_.partial_bytes(query.rows, subtrees_of(run)),
           "leaves=[{}, {}) rows={} q_stride={} pieces={} partials={}", run.first, run.end, query.rows,
           query.q_stride, query.pieces.size(), partials.size());
  auto operation = std::make_shared<Operation>();
  operation->kind = DataKind::kAttend;
  operation->done = std::move(done);
  operation->rows = query.rows;
  operation->own_leaf_rows = query.own_leaf_rows;
  operation->partials = partials;
  const auto q_dim = static_cast<size_t>(shape_.q_dim());
  operation->q.resize(query.rows * q_dim);
  for (uint32_t r = 0; r < query.rows; ++r) {
    std::memcpy(&operation->q[r * q_dim], query.q + r * query.q_stride, q_dim * sizeof(float));
  }
  uint64_t as_of = 0;
  do {
    const Status found = look_up(query, *operation, as_of);
    if (!found.ok()) return operation->done(found);
  } while (!begin(operation, as_of));
}

Status BorrowedMemory::look_up(const RemoteQuery& query, Operation& operation, uint64_t& as_of) const {
  KV_RETURN_IF_ERROR(find_places(query, operation, as_of));
  auto shares = share_leaves({query.first_leaf, query.end_leaf}, shape_.blocks_per_leaf(), operation.places);
  if (!shares.ok()) return shares.status();
  operation.shares = std::move(*shares);
  operation.states = std::vector<ShareState>(operation.shares.shares.size());
  for (size_t s = 0; s < operation.states.size(); ++s) {
    const uint64_t bytes = shape_.partial_bytes(query.rows, operation.shares.shares[s].peaks);
    operation.states[s].records.resize(bytes / sizeof(float));
  }
  return {};
}

Status BorrowedMemory::find_places(const RemoteQuery& query, Operation& operation, uint64_t& as_of) const {
  const uint64_t cell_bytes = shape_.geometry.kv_cell_bytes();
  const uint64_t offset = query.pieces.front() % cell_bytes;
  KV_CHECK(offset % shape_.piece_bytes() == 0, "piece {} is no layer of a cell", query.pieces.front());
  operation.layer = static_cast<uint32_t>(offset / shape_.piece_bytes());
  if (query.end_leaf - query.first_leaf > kMaxQueryLeaves) {
    return error(ErrorCode::kUnavailable, "{} leaves in one query; ask for {} at most",
                 query.end_leaf - query.first_leaf, kMaxQueryLeaves);
  }
  operation.places.clear();
  operation.places.reserve(query.pieces.size());
  std::lock_guard lock(mutex_);
  as_of = forgotten_;
  for (const uint64_t piece : query.pieces) {
    const uint64_t cell = piece / cell_bytes;
    KV_CHECK(cell < places_.size() && piece % cell_bytes == offset, "piece={} offset={} cells={}", piece,
             offset, places_.size());
    operation.places.push_back(places_[cell]);
  }
  return {};
}

bool BorrowedMemory::begin(const OperationPtr& operation, uint64_t as_of) {
  After after;
  {
    std::lock_guard lock(mutex_);
    if (forgotten_ != as_of) return false;
    add(operation);
    operation->open = operation->states.size();
    for (uint32_t s = 0; s < operation->states.size() && !stopping_; ++s) {
      const LeafShare& share = operation->shares.shares[s];
      if (!share.split() && ships(share, *operation)) {
        ++stats_.shipped;
        ship(operation, s, after);
      } else {
        ++(share.split() ? stats_.fetched_split : stats_.fetched_cost);
        fetch(operation, s, {0, operation->rows}, after);
      }
    }
    if (stopping_) fail(operation, error(ErrorCode::kUnavailable, "the instance shuts down"), after);
  }
  drive(std::move(after));
  return true;
}

void BorrowedMemory::add(const OperationPtr& operation) {
  operation->age = next_age_++;
  operation->deadline = clock_.now() + options_.deadline;
  operations_.emplace(operation->age, operation);
}

bool BorrowedMemory::ships(const LeafShare& share, const Operation& operation) {
  if (options_.fetch != Fetch::kByCost) return options_.fetch == Fetch::kNever;
  Creditor& creditor = creditors_[share.creditor];
  const auto cost = creditor.estimate.cost();
  if (!cost) return true;
  // Until something was attended to here, we take ourselves for as fast as the creditor.
  const double own = own_leaf_row_s_.empty() ? cost->attend_s : own_leaf_row_s_.get();
  const RemoteRun run = remote_run(shape_, share.leaves(), share.peaks, operation.rows);
  if (ship_or_fetch(run, *cost, own, own * operation.own_leaf_rows).ship()) return true;
  return ++creditor.cheap_here % kShipAnyway == 0;
}

void BorrowedMemory::ship(const OperationPtr& operation, uint32_t s, After& after) {
  const LeafShare& share = operation->shares.shares[s];
  const uint64_t row_bytes = std::max(shape_.query_bytes(1), shape_.partial_bytes(1, share.peaks));
  const uint64_t limit = std::min(options_.max_message_bytes, kMaxReplyBytes);
  const auto rows = static_cast<uint32_t>(
      std::clamp<uint64_t>(limit / row_bytes, 1, std::min(operation->rows, kMaxQueryRows)));
  for (uint32_t first = 0; first < operation->rows; first += rows) {
    auto message = std::make_shared<Message>();
    message->kind = DataKind::kAttend;
    message->operation = operation;
    message->creditor = share.creditor;
    message->share = s;
    message->first_row = first;
    message->rows = std::min(rows, operation->rows - first);
    name_all_cells(*message);
    message->reply_payload = shape_.partial_bytes(message->rows, share.peaks);
    ++operation->states[s].open;
    enqueue(message, after);
  }
}

void BorrowedMemory::enqueue(const MessagePtr& message, After& after) {
  Creditor& creditor = creditors_[message->creditor];
  message->to = creditor.id;
  message->sequence = next_sequence_++;
  message->sent = false;
  messages_.emplace(message->sequence, message);
  message->operation->sequences.push_back(message->sequence);
  creditor.queue.push_back(message->sequence);
  ++stats_.queued;
  if (after.creditors.empty() || after.creditors.back() != message->creditor) {
    after.creditors.push_back(message->creditor);
  }
}

// ---------------------------------------------------------------- sending

void BorrowedMemory::drive(After after) {
  while (!after.ended.empty() || !after.creditors.empty()) {
    if (!after.creditors.empty()) {
      const uint32_t creditor = after.creditors.back();
      after.creditors.pop_back();
      send_next(creditor, after);
      continue;
    }
    const OperationPtr operation = std::move(after.ended.back());
    after.ended.pop_back();
    if (operation->status.ok() && operation->kind == DataKind::kAttend) merge(*operation);
    operation->done(operation->status);
  }
}

BorrowedMemory::MessagePtr BorrowedMemory::first_queued(Creditor& creditor) {
  while (!creditor.queue.empty()) {
    const auto found = messages_.find(creditor.queue.front());
    if (found != messages_.end()) return found->second;
    creditor.queue.pop_front();
  }
  return nullptr;
}

void BorrowedMemory::send_next(uint32_t c, After& after) {
  MessagePtr message;
  {
    std::lock_guard lock(mutex_);
    Creditor& creditor = creditors_[c];
    message = first_queued(creditor);
    // The thread that is sending now comes here again.
    if (!message || creditor.sending || clock_.now() < creditor.resume_at) return;
    message->alone = creditor.in_flight_bytes == 0;
    if (!message->alone &&
        creditor.in_flight_bytes + message->flight_bytes() > options_.max_in_flight_bytes) {
      return;
    }
    creditor.queue.pop_front();
    if (message->is_query()) name_cells(*message);
    const uint64_t bytes = message->flight_bytes();
    creditor.in_flight_bytes += bytes;
    creditor.sending = true;
    stats_.in_flight_bytes += bytes;
    --stats_.queued;
    if (message->is_query()) {
      const uint64_t q = shape_.query_bytes(message->rows);
      stats_.query_bytes += q;
      stats_.query_extra_bytes += message->request_bytes - q;
    }
    message->sent = true;
    message->sent_at = clock_.now();
    ++message->operation->in_use;
  }
  const Status sent = send(*message);
  std::lock_guard lock(mutex_);
  creditors_[c].sending = false;
  --message->operation->in_use;
  if (!sent.ok()) {
    fail(message->operation, error(ErrorCode::kUnavailable, "{}: {}", message->to.instance, sent.message()),
         after);
  }
  settle(message->operation, after);
  after.creditors.push_back(c);
}

void BorrowedMemory::name_all_cells(Message& message) const {
  const Operation& operation = *message.operation;
  const LeafShare& share = operation.shares.shares[message.share];
  message.body = {operation.layer, message.rows, share.runs, share.cells};
  message.request_bytes =
      kDataHeaderBytes + attend_body_bytes(message.body) + shape_.query_bytes(message.rows);
}

void BorrowedMemory::name_cells(Message& message) {
  creditors_[message.creditor].tables.shorten(message.body);
  message.request_bytes =
      kDataHeaderBytes + attend_body_bytes(message.body) + shape_.query_bytes(message.rows);
}

Status BorrowedMemory::send(Message& message) {
  std::vector<std::byte> bytes = make_request(message);
  const Nanos left = std::max<Nanos>(message.operation->deadline - message.sent_at, 0);
  set_header(bytes, {.kind = message.kind,
                     .sequence = message.sequence,
                     .debtor_epoch = self_.epoch,
                     .creditor_epoch = message.to.epoch,
                     .span_ns = static_cast<uint64_t>(left)});
  return send_(message.to, std::move(bytes));
}

std::vector<std::byte> BorrowedMemory::make_request(const Message& message) const {
  const Operation& operation = *message.operation;
  if (!message.is_query()) {
    const std::span<const std::byte> payload =
        message.kind == DataKind::kWrite ? operation.from : std::span<const std::byte>();
    auto bytes = make_copy_message({.kind = message.kind}, message.at, payload.size());
    append_bytes(bytes, payload);
    return bytes;
  }
  const auto q_dim = static_cast<size_t>(shape_.q_dim());
  const auto q =
      std::as_bytes(std::span(operation.q).subspan(message.first_row * q_dim, message.rows * q_dim));
  auto bytes = make_attend_message({.kind = message.kind}, message.body, q.size());
  append_bytes(bytes, q);
  return bytes;
}

}  // namespace kvasir
