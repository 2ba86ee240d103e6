// A plan made concrete: what an executor runs, and what it gives back.
#pragma once

#include <cstdint>
#include <vector>

#include "base/clock.h"
#include "base/status.h"
#include "contract/ids.h"
#include "contract/interval.h"
#include "contract/layer_set.h"
#include "contract/step_plan.h"

namespace kvasir {

// How the next token is chosen. The draw at a position depends on (seed, position) only.
struct SamplingParams {
  float temperature = 1.0f;  // 0: the most likely token; ties go to the smaller id
  float top_p = 1.0f;        // (0, 1]
  int32_t top_k = 0;         // 0: all
  uint64_t seed = 0;
  // -1: no log-probabilities; n >= 0: that of the chosen token, and of the n most likely ones.
  int32_t logprobs = -1;
};

// A frame by its tier and its byte offset in that tier's memory.
struct FrameAddress {
  uint64_t offset = 0;
  Tier tier = Tier::kDevice;
  friend bool operator==(const FrameAddress&, const FrameAddress&) = default;
};

struct KvFrames {
  FrameAddress k;
  FrameAddress v;
};

// The rows of one sequence. Indices point into the Step's flat arrays.
struct StepSlice {
  SeqId seq{};
  Interval tokens;
  RowKind kind = RowKind::kPrefill;
  LayerSet layers;
  bool samples = false;
  // The id of the last row's token is the one that the sequence's latest sampling row chose.
  bool last_token_by_reference = false;
  uint32_t first_token = 0;   // token_ids[first_token .. + tokens.size())
  uint32_t first_frames = 0;  // kv_frames[first_frames + block * groups + group], for `blocks` blocks
  uint32_t blocks = 0;        // cover [0, tokens.end)
  SamplingParams sampling;
};

struct Step {
  StepId id{};
  uint32_t groups = 0;
  std::vector<StepSlice> slices;
  std::vector<Token> token_ids;
  std::vector<KvFrames> kv_frames;

  uint32_t row_count() const { return static_cast<uint32_t>(token_ids.size()); }
  const KvFrames& frames(const StepSlice& slice, uint32_t block, uint32_t group) const {
    return kv_frames[slice.first_frames + block * groups + group];
  }
};

struct TokenLogprob {
  Token token = 0;
  float logprob = 0;  // natural logarithm, of the distribution before temperature and truncation
};

struct SampledToken {
  SeqId seq{};
  Token token = 0;
  float logprob = 0;              // only if asked for
  std::vector<TokenLogprob> top;  // most likely first; only if asked for
};

struct StepResult {
  StepId id{};
  // Not ok: nothing that the step should have written can be used.
  Status status;
  std::vector<SampledToken> sampled;  // in the order of the sampling slices
  Nanos started = 0;
  Nanos ended = 0;
};

}  // namespace kvasir
