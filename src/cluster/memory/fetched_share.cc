#include "cluster/memory/fetched_share.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "ops/cpu/isa.h"

namespace kvasir {
namespace {

std::vector<std::vector<LeafRun>> cut_windows(std::span<const LeafRun> runs, uint32_t window_leaves) {
  std::vector<std::vector<LeafRun>> windows;
  uint32_t room = 0;
  for (LeafRun run : runs) {
    while (run.first < run.end) {
      if (room == 0) {
        windows.emplace_back();
        room = window_leaves;
      }
      const uint32_t leaves = std::min(room, run.leaves());
      windows.back().push_back({run.first, run.first + leaves});
      run.first += leaves;
      room -= leaves;
    }
  }
  return windows;
}

}  // namespace

FetchedShare::FetchedShare(const MemoryShape& shape, const ops::Kernels& kernels,
                           std::span<const LeafRun> runs, uint32_t window_leaves, uint32_t rows,
                           const float* q, float* out)
    : shape_(shape),
      kernels_(kernels),
      rows_(rows),
      q_(q),
      out_(out),
      runs_(runs.begin(), runs.end()),
      windows_(cut_windows(runs, window_leaves)) {
  KV_CHECK(window_leaves > 0 && rows > 0 && !windows_.empty(), "window_leaves={} rows={} runs={}",
           window_leaves, rows, runs.size());
}

bool FetchedShare::attend(size_t window, std::span<const std::byte> kv, const std::function<bool()>& go_on) {
  const ops::FlushToZero mode;
  const std::span<const LeafRun> runs = windows_[window];
  const uint32_t peaks = subtrees_of(runs);
  std::vector<const std::byte*> pieces(kv.size() / shape_.piece_bytes());
  for (size_t b = 0; b < pieces.size(); ++b) pieces[b] = kv.data() + b * shape_.piece_bytes();
  records_.resize(shape_.partial_bytes(rows_, peaks) / sizeof(float));
  const ops::LeafQuery query = shape_.leaf_query(/*layer=*/0, rows_, runs, pieces, q_);
  if (!ops::attend_leaves(kernels_, query, std::as_writable_bytes(std::span(records_)), go_on)) return false;
  uint32_t first_peak = 0;
  for (const LeafRun& run : runs) {
    push({run, first_peak, peaks});
    first_peak += subtrees_of(run);
  }
  return true;
}

void FetchedShare::push(const Part& part) {
  const LeafRun& whole = runs_[run_];
  if (part.run.first == whole.first) plant(whole);
  const int64_t record = shape_.record_floats();
  for (size_t i = 0; i < trees_.size(); ++i) {
    const float* from = records_.data() + static_cast<int64_t>(i * part.peaks + part.first_peak) * record;
    for_each_subtree(part.run, [&](int level, uint32_t) {
      trees_[i].push(from, level);
      from += record;
    });
  }
  if (part.run.end == whole.end) take_peaks();
}

void FetchedShare::plant(LeafRun run) {
  const auto floats = static_cast<size_t>(
      ops::AttentionTree::storage_floats(run.leaves(), shape_.queries_per_kv, shape_.kv.head_dim));
  const size_t count = rows_ * static_cast<size_t>(shape_.kv.kv_heads);
  storage_.resize(count * floats);
  trees_.clear();
  trees_.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    trees_.emplace_back(kernels_, shape_.queries_per_kv, shape_.kv.head_dim, storage_.data() + i * floats,
                        run.leaves(), run.first);
  }
}

void FetchedShare::take_peaks() {
  const auto record = static_cast<size_t>(shape_.record_floats());
  const uint32_t all = subtrees_of(runs_);
  for (size_t i = 0; i < trees_.size(); ++i) {
    float* to = out_ + (i * all + peaks_done_) * record;
    for (int p = 0; p < trees_[i].peak_count(); ++p, to += record) {
      std::memcpy(to, trees_[i].peak(p).partial, record * sizeof(float));
    }
  }
  peaks_done_ += subtrees_of(runs_[run_]);
  ++run_;
}

}  // namespace kvasir
