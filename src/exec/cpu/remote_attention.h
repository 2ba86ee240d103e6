// Attention to leaves that lie at peers: asks for their partial results when a layer's queries are ready,
// waits for the answers, and holds them until they are merged.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/status.h"
#include "contract/geometry.h"
#include "contract/peer_memory.h"
#include "contract/step.h"
#include "exec/cpu/row_sets.h"
#include "exec/step_transfers.h"
#include "model/architectures/model_spec.h"

namespace kvasir {

// One thread makes the calls. Others may read answers while it makes none, such as in a job that it gives to
// them.
class RemoteAttention {
 public:
  // peers: null where there are none. The arguments outlive this object.
  RemoteAttention(PeerMemory* peers, const ModelSpec& config, const CacheGeometry& geometry);
  // Waits for the end of queries whose answers wait() gave up.
  ~RemoteAttention();
  RemoteAttention(const RemoteAttention&) = delete;
  RemoteAttention& operator=(const RemoteAttention&) = delete;

  // Makes room for the step's answers. kUnsupported: it has leaves at peers, but there are no peers.
  // kExhausted: there is no memory.
  Status prepare(const Step& step);

  // Asks for the layer's leaves, for all rows at hand whose slices have not left the step.
  // qkv: [rows][q, k, v], queries rotated and scaled. own_leaf_rows: RemoteQuery::own_leaf_rows.
  void ask(const Step& step, uint32_t layer, std::span<const StepRow> rows, const float* qkv,
           double own_leaf_rows, const StepTransfers& transfers);
  // Waits for the answers. Slices whose answer does not come in time, or says that the peer has failed, leave
  // the step, and with them all other slices of their sequences. True: some did.
  bool wait(StepTransfers& transfers);

  // The answer for a run (its index among those of the layer): the subtrees of its leaves, left to right, for
  // a row (its index among those at hand) with a KV head. REQUIRES: it has come
  const float* peaks(size_t run, int64_t row, int64_t kv_head) const;

  // Bytes of the answers' buffers now; they never shrink.
  uint64_t scratch_bytes() const;

 private:
  // A buffer for one answer. A query that was given up keeps its buffer until it has ended.
  struct Answer {
    std::vector<float> partials;
    bool pending = false;  // guarded by mutex_, as is `status`
    Status status;
  };
  // One run of the layer at hand.
  struct Asked {
    uint32_t slice = 0;
    int64_t first_row = 0;
    int64_t rows = 0;          // 0: nothing was asked
    Answer* answer = nullptr;  // null: there was no memory for it
    int64_t row_floats = 0;    // of a row with one KV head
  };

  void check(const Step& step) const;
  int64_t row_floats(const RemoteLeaves& run) const;
  // The next buffer from `next` on that is free, with room for so many floats. Null: no memory.
  Answer* take(size_t& next, int64_t floats);
  void ended(Answer& answer, Status status);
  // Returns false if it has not ended in that time.
  bool await(const Answer& answer, Nanos patience);

  PeerMemory* const peers_;
  const ModelSpec& config_;
  const CacheGeometry geometry_;
  std::vector<std::unique_ptr<Answer>> answers_;
  std::vector<Asked> asked_;  // by run of the layer at hand
  std::mutex mutex_;
  std::condition_variable some_ended_;
};

}  // namespace kvasir
