#include "exec/remote_rig.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "ops/cpu/isa.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

constexpr int kNothingThere = 0xff;  // not a number

CacheGeometry remote_geometry(const ModelSpec& config, const RemoteRig::Options& options) {
  CacheGeometry g;
  g.block_tokens = options.block_tokens;
  g.layers = static_cast<uint32_t>(config.layers);
  g.layers_per_group = std::min(options.layers_per_group, g.layers);
  g.kv_plane_bytes_per_token_layer = config.kv_plane_bytes_per_token_layer(options.kv_type);
  return g;
}

bool same_floats(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

}  // namespace

RemoteRig::RemoteRig(const Options& options)
    : options_(options),
      file_(take(ModelFile::from_bytes(make_tiny_llama(options.shape, options.weights, 11), "tiny.gguf"))),
      model_(take(PackedModel::make(*file_, kTokens))),
      geometry_(remote_geometry(file_->spec(), options)),
      blocks_(geometry_.blocks_for(kTokens)),
      frames_bytes_(geometry_.kv_block_bytes() * blocks_ * kSequences),
      device_(2 * frames_bytes_, std::byte{kNothingThere}) {
  const uint64_t piece = geometry_.piece_bytes(Form::kKv);
  Random random(5);
  for (uint64_t i = 0; i < uint64_t{kSequences} * blocks_ * geometry_.layers; ++i) {
    places_.push_back(i * piece);
    std::swap(places_.back(), places_[random.below(i + 1)]);
  }
  const ModelSpec& c = file_->spec();
  ops::KvShape shape{1, c.kv_heads, c.head_dim, geometry_.block_tokens, options.kv_type};
  peer_ = std::make_unique<FakePeerMemory>(ops::kernels_for(ops::detect_isa()), shape, c.queries_per_kv(),
                                           places_.size() * piece);
  set_threads(2);
  for (uint32_t s = 0; s < kSequences; ++s) {
    Random draws(100 + s);
    std::vector<Token>& tokens = tokens_.emplace_back(kTokens);
    for (Token& t : tokens) t = static_cast<Token>(3 + draws.below(256));
  }
  whole_ = device_;
  for (uint32_t s = 0; s < kSequences; ++s) {
    Step step;
    step.groups = geometry_.groups();
    step.slices.push_back(slice_of({s, {0, kTokens}}, step));
    executor_->set_tap({});
    executor_->submit(std::move(step));
    KV_CHECK(executor_->wait().status.ok(), "seq={}", s);
  }
  whole_ = device_;
  set_threads(2);
}

void RemoteRig::set_threads(int threads) {
  Decoder::Options decoder;
  decoder.kv_type = options_.kv_type;
  decoder.tap_all_rows = options_.tap_all_rows;
  decoder.peers = options_.has_peers ? peer_.get() : nullptr;
  executor_ = std::make_unique<CpuExecutor>(*model_, ops::kernels_for(ops::detect_isa()), geometry_, decoder,
                                            device_.data(), threads, clock_);
  executor_->set_tap([this](SeqId seq, uint32_t position, std::span<const float> logits) {
    outcome_->logits[{static_cast<uint32_t>(raw(seq)), position}].assign(logits.begin(), logits.end());
  });
}

uint64_t RemoteRig::frame_of(uint32_t seq, uint32_t block, uint32_t layer) const {
  return (uint64_t{seq} * blocks_ + block) * geometry_.kv_block_bytes() +
         geometry_.kv_cell_bytes() * geometry_.group_of(layer) +
         geometry_.piece_bytes(Form::kKv) * geometry_.layer_in_group(layer);
}

uint64_t RemoteRig::at_peer(uint32_t seq, uint32_t block, uint32_t layer) const {
  return places_[(uint64_t{seq} * blocks_ + block) * geometry_.layers + layer];
}

std::vector<PeerRun> RemoteRig::in_all_layers(const std::vector<PeerRun>& runs) const {
  std::vector<PeerRun> out;
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    for (PeerRun run : runs) {
      run.layer = layer;
      out.push_back(run);
    }
  }
  return out;
}

// ---------------------------------------------------------------- steps

StepSlice RemoteRig::slice_of(const RemotePart& part, Step& step) const {
  StepSlice slice;
  slice.seq = SeqId{part.seq};
  slice.tokens = part.tokens;
  slice.samples = true;
  slice.hidden_from = part.tokens.end - 1;
  slice.sampling.temperature = 0.8f;
  slice.sampling.seed = part.seq;
  slice.first_token = step.row_count();
  slice.blocks = geometry_.blocks_for(part.tokens.end);
  for (uint32_t p = part.tokens.begin; p < part.tokens.end; ++p) {
    step.token_ids.push_back(tokens_[part.seq][p]);
  }
  BlockTable table;
  for (uint32_t b = 0; b < slice.blocks; ++b) {
    for (uint32_t g = 0; g < geometry_.groups(); ++g) {
      const uint64_t at = frame_of(part.seq, b, g * geometry_.layers_per_group);
      table.push_back({at, at + geometry_.layer_plane_bytes()});
    }
  }
  slice.table = std::make_shared<BlockTable>(std::move(table));
  return slice;
}

Step RemoteRig::make_step(const std::vector<RemotePart>& parts, const std::vector<PeerRun>& runs,
                          const std::set<std::pair<uint32_t, uint32_t>>& in_ring) {
  Step step;
  step.id = StepId{++steps_};
  step.groups = geometry_.groups();
  device_ = whole_;
  std::fill(peer_->memory().begin(), peer_->memory().end(), std::byte{kNothingThere});
  for (const RemotePart& part : parts) {
    step.slices.push_back(slice_of(part, step));
    // The rows write what was there already: it is to come from them.
    const uint32_t first_new = geometry_.blocks_for(part.tokens.begin);
    for (uint32_t b = first_new; b < step.slices.back().blocks; ++b) {
      std::memset(device(frame_of(part.seq, b, 0)), kNothingThere, geometry_.kv_block_bytes());
    }
  }
  for (const PeerRun& run : runs) move_to_peer(parts[run.part], run, step);
  move_to_ring(step, in_ring);
  step.index_by_layer();
  return step;
}

void RemoteRig::move_to_peer(const RemotePart& part, const PeerRun& run, Step& step) {
  step.remote.push_back(
      {run.layer, run.part, run.first_leaf, run.end_leaf, static_cast<uint32_t>(step.remote_pieces.size())});
  const uint32_t blocks_per_leaf = ops::kLeafTokens / geometry_.block_tokens;
  auto table = std::make_shared<BlockTable>(*step.slices[run.part].table);
  for (uint32_t b = run.first_leaf * blocks_per_leaf; b < run.end_leaf * blocks_per_leaf; ++b) {
    const uint64_t to = at_peer(part.seq, b, run.layer), from = frame_of(part.seq, b, run.layer);
    const uint64_t bytes = geometry_.piece_bytes(Form::kKv);
    step.remote_pieces.push_back(to);
    std::memcpy(peer_->memory().data() + to, whole_.data() + from, bytes);
    std::memset(device(from), kNothingThere, bytes);
    if (geometry_.layers_per_group == 1) (*table)[b * step.groups + run.layer] = {};
  }
  step.slices[run.part].table = std::move(table);
}

void RemoteRig::move_to_ring(Step& step, const std::set<std::pair<uint32_t, uint32_t>>& in_ring) {
  for (StepSlice& slice : step.slices) {
    const auto seq = static_cast<uint32_t>(raw(slice.seq));
    const auto staged = [&](uint32_t block) {
      return block < geometry_.block_of(slice.tokens.begin) && in_ring.contains({seq, block});
    };
    step.add_staged(slice, {0, slice.blocks}, geometry_.layers);
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      for (uint32_t b = 0; b < slice.blocks; ++b) {
        if (!staged(b)) continue;
        const uint64_t from = frame_of(seq, b, layer), to = frames_bytes_ + from;
        const uint64_t bytes = geometry_.piece_bytes(Form::kKv);
        // What lies at the peer is nothing here, and stays so.
        std::memcpy(device(to), device(from), bytes);
        std::memset(device(from), kNothingThere, bytes);
        step.staged_planes(slice, b, layer) = {to, to + geometry_.layer_plane_bytes()};
      }
    }
  }
}

StepOutcome RemoteRig::run(Step step) {
  StepOutcome outcome;
  outcome_ = &outcome;
  const std::vector<StepSlice> slices = step.slices;
  executor_->submit(std::move(step));
  outcome.result = executor_->wait();
  for (const StepSlice& slice : slices) {
    const auto& gone = outcome.result.deferred;
    if (std::find(gone.begin(), gone.end(), slice.seq) != gone.end()) continue;
    const auto seq = static_cast<uint32_t>(raw(slice.seq));
    for (uint32_t b = geometry_.block_of(slice.tokens.begin); b < slice.blocks; ++b) {
      const std::byte* from = device(frame_of(seq, b, 0));
      outcome.written[{seq, b}].assign(from, from + geometry_.kv_block_bytes());
    }
  }
  return outcome;
}

int differences(const StepOutcome& expected, const StepOutcome& got) {
  int count = 0;
  for (const auto& [place, logits] : got.logits) {
    const auto right = expected.logits.find(place);
    count += right != expected.logits.end() && same_floats(right->second, logits) ? 0 : 1;
  }
  for (const auto& [place, bytes] : got.written) {
    const auto right = expected.written.find(place);
    count += right != expected.written.end() && right->second == bytes ? 0 : 1;
  }
  for (const SampledToken& token : got.result.sampled) {
    const auto& all = expected.result.sampled;
    const auto right = std::find_if(all.begin(), all.end(), [&](const SampledToken& t) {
      return t.seq == token.seq && t.token == token.token;
    });
    count += right != all.end() ? 0 : 1;
  }
  for (const HiddenRow& row : got.result.hidden) {
    const auto& all = expected.result.hidden;
    const auto right = std::find_if(all.begin(), all.end(), [&](const HiddenRow& h) {
      return h.seq == row.seq && h.position == row.position && same_floats(h.row, row.row);
    });
    count += right != all.end() ? 0 : 1;
  }
  return count;
}

}  // namespace kvasir::test
