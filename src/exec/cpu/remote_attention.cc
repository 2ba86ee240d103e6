#include "exec/cpu/remote_attention.h"

#include <algorithm>
#include <chrono>
#include <new>
#include <tuple>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "ops/cpu/kernels.h"
#include "ops/leaf_run.h"

namespace kvasir {
namespace {

// The longest that a condition is waited for at once: no deadline of a clock overflows.
constexpr Nanos kLongestWait = 3600 * kNanosPerSecond;

struct RowBySlice {
  bool operator()(const StepRow& row, uint32_t slice) const { return row.slice < slice; }
  bool operator()(uint32_t slice, const StepRow& row) const { return slice < row.slice; }
};

}  // namespace

RemoteAttention::RemoteAttention(PeerMemory* peers, const ModelSpec& config, const CacheGeometry& geometry)
    : peers_(peers), config_(config), geometry_(geometry) {}

RemoteAttention::~RemoteAttention() {
  std::unique_lock lock(mutex_);
  some_ended_.wait(lock, [&] {
    return std::none_of(answers_.begin(), answers_.end(), [](const auto& a) { return a->pending; });
  });
}

// ---------------------------------------------------------------- room for a step

Status RemoteAttention::prepare(const Step& step) {
  asked_.clear();
  if (step.remote.empty()) return {};
  if (!peers_) {
    return error(ErrorCode::kUnsupported,
                 "step {} attends to leaves at peers, but this executor was given no peers", raw(step.id));
  }
  check(step);
  size_t next = 0;
  for (size_t i = 0; i < step.remote.size(); ++i) {
    const RemoteLeaves& run = step.remote[i];
    if (i == 0 || run.layer != step.remote[i - 1].layer) next = 0;
    const int64_t rows = step.slices[run.slice].tokens.size();
    if (!take(next, rows * config_.kv_heads * row_floats(run))) {
      return error(ErrorCode::kExhausted, "no memory for what peers answer to a step of {} tokens",
                   step.row_count());
    }
  }
  return {};
}

void RemoteAttention::check(const Step& step) const {
  const uint32_t blocks_per_leaf = ops::kLeafTokens / geometry_.block_tokens;
  for (size_t i = 0; i < step.remote.size(); ++i) {
    const RemoteLeaves& run = step.remote[i];
    KV_CHECK(run.layer < geometry_.layers && run.slice < step.slices.size(), "step {}: layer={} slice={}",
             raw(step.id), run.layer, run.slice);
    KV_CHECK(run.first_leaf < run.end_leaf &&
                 uint64_t{run.end_leaf} * ops::kLeafTokens <= step.slices[run.slice].tokens.begin,
             "step {}: leaves [{}, {}) for rows from {} on", raw(step.id), run.first_leaf, run.end_leaf,
             step.slices[run.slice].tokens.begin);
    const uint64_t pieces = uint64_t{run.end_leaf - run.first_leaf} * blocks_per_leaf;
    KV_CHECK(run.first_piece + pieces <= step.remote_pieces.size(), "step {}: pieces [{}, +{}) of {}",
             raw(step.id), run.first_piece, pieces, step.remote_pieces.size());
    if (i == 0) continue;
    const RemoteLeaves& before = step.remote[i - 1];
    KV_CHECK(std::tie(before.layer, before.slice, before.end_leaf) <=
                 std::tie(run.layer, run.slice, run.first_leaf),
             "step {}: leaves at peers are not in order", raw(step.id));
  }
}

int64_t RemoteAttention::row_floats(const RemoteLeaves& run) const {
  return ops::subtrees_of({run.first_leaf, run.end_leaf}) *
         ops::partial_floats(config_.queries_per_kv(), config_.head_dim);
}

RemoteAttention::Answer* RemoteAttention::take(size_t& next, int64_t floats) {
  try {
    const std::scoped_lock lock(mutex_);
    while (next < answers_.size() && answers_[next]->pending) ++next;
    if (next == answers_.size()) answers_.push_back(std::make_unique<Answer>());
    Answer& answer = *answers_[next];
    if (answer.partials.size() < static_cast<size_t>(floats)) {
      answer.partials.resize(static_cast<size_t>(floats));
    }
    ++next;
    return &answer;
  } catch (const std::bad_alloc&) {
    return nullptr;
  }
}

uint64_t RemoteAttention::scratch_bytes() const {
  uint64_t floats = 0;
  for (const auto& answer : answers_) floats += answer->partials.size();
  return floats * sizeof(float);
}

// ---------------------------------------------------------------- one layer

void RemoteAttention::ask(const Step& step, uint32_t layer, std::span<const StepRow> rows, const float* qkv,
                          double own_leaf_rows, const StepTransfers& transfers) {
  const int64_t width = config_.q_dim() + 2 * config_.kv_dim();
  const uint32_t blocks_per_leaf = ops::kLeafTokens / geometry_.block_tokens;
  asked_.clear();
  size_t next = 0;
  for (const RemoteLeaves& run : step.remote_in(layer)) {
    const auto [begin, end] = std::equal_range(rows.begin(), rows.end(), run.slice, RowBySlice());
    Asked& asked = asked_.emplace_back();
    asked.slice = run.slice;
    if (begin == end || transfers.deferred(run.slice)) continue;
    asked.first_row = begin - rows.begin();
    asked.rows = end - begin;
    asked.row_floats = row_floats(run);
    asked.answer = take(next, asked.rows * config_.kv_heads * asked.row_floats);
    if (!asked.answer) continue;
    if (mutant(Mutant::kStaleRemoteAnswer) && layer > 0) continue;
    Answer& answer = *asked.answer;
    answer.pending = true;  // no other thread knows of it yet
    RemoteQuery query;
    query.first_leaf = run.first_leaf;
    query.end_leaf = run.end_leaf;
    query.rows = static_cast<uint32_t>(asked.rows);
    query.own_leaf_rows = own_leaf_rows;
    query.q = qkv + asked.first_row * width;
    query.q_stride = width;
    query.pieces = std::span(step.remote_pieces)
                       .subspan(run.first_piece, (run.end_leaf - run.first_leaf) * blocks_per_leaf);
    const auto floats = static_cast<size_t>(asked.rows * config_.kv_heads * asked.row_floats);
    peers_->attend(query, std::span(answer.partials).first(floats),
                   [this, &answer](Status status) { ended(answer, std::move(status)); });
  }
}

void RemoteAttention::ended(Answer& answer, Status status) {
  // Notified under the lock: the destructor may be waiting for this one.
  const std::scoped_lock lock(mutex_);
  answer.status = std::move(status);
  answer.pending = false;
  some_ended_.notify_all();
}

bool RemoteAttention::await(const Answer& answer, Nanos patience) {
  const auto has_ended = [&] { return !answer.pending; };
  std::unique_lock lock(mutex_);
  if (patience >= kLongestWait) {
    some_ended_.wait(lock, has_ended);
    return true;
  }
  return some_ended_.wait_for(lock, std::chrono::nanoseconds(patience), has_ended);
}

bool RemoteAttention::wait(StepTransfers& transfers) {
  bool some_left = false;
  for (const Asked& asked : asked_) {
    if (asked.rows == 0 || transfers.deferred(asked.slice)) continue;
    const bool there =
        asked.answer && transfers.wait_for([&](Nanos patience) { return await(*asked.answer, patience); });
    const bool lost = there && !asked.answer->status.ok();
    if (there && !lost) continue;
    transfers.leave(asked.slice, lost);
    some_left = true;
  }
  return some_left;
}

const float* RemoteAttention::peaks(size_t run, int64_t row, int64_t kv_head) const {
  const Asked& asked = asked_[run];
  KV_CHECK(asked.answer && row >= asked.first_row && row < asked.first_row + asked.rows,
           "run {}: row {} of [{}, +{})", run, row, asked.first_row, asked.rows);
  return asked.answer->partials.data() +
         ((row - asked.first_row) * config_.kv_heads + kv_head) * asked.row_floats;
}

}  // namespace kvasir
