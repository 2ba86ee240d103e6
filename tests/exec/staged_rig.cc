#include "exec/staged_rig.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "ops/cpu/isa.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

constexpr int kUnwritten = 0xff;  // what unwritten memory holds: not a number

CacheGeometry geometry_of(const ModelSpec& config, uint32_t layers_per_group) {
  CacheGeometry g;
  g.block_tokens = StagedRig::kBlockTokens;
  g.layers = static_cast<uint32_t>(config.layers);
  g.layers_per_group = layers_per_group;
  g.kv_plane_bytes_per_token_layer = config.kv_plane_bytes_per_token_layer(ops::KvType::kBf16);
  return g;
}

std::vector<Token> random_tokens(uint64_t seed) {
  Random random(seed);
  std::vector<Token> out(StagedRig::kTokens);
  for (Token& t : out) t = static_cast<Token>(3 + random.below(256));
  return out;
}

}  // namespace

StagedRig::StagedRig(const Options& options)
    : file_(take(ModelFile::from_bytes(make_tiny_llama(tiny_gqa(), ops::WeightType::kF32, 11), "tiny.gguf"))),
      model_(take(PackedModel::make(*file_, kTokens))),
      geometry_(geometry_of(file_->spec(), options.layers_per_group)),
      ring_layers_(options.ring_layers),
      frames_bytes_(geometry_.kv_block_bytes() * kBlocks * kSequences),
      device_(frames_bytes_ + ring_layers_ * kSequences * kBlocks * 2 * geometry_.layer_plane_bytes(),
              std::byte{kUnwritten}),
      host_(frames_bytes_, std::byte{kUnwritten}) {
  link_ = std::make_unique<FakeLink>(clock_, FakeLink::Memories{std::span(device_), std::span(host_), {}});
  Decoder::Options decoder;
  decoder.tap_all_rows = options.tap_all_rows;
  executor_ =
      std::make_unique<CpuExecutor>(*model_, ops::kernels_for(ops::detect_isa()), geometry_, decoder,
                                    device_.data(), options.threads, clock_, std::vector<int>{}, link_.get());
  executor_->set_tap([this](SeqId seq, uint32_t position, std::span<const float> logits) {
    logits_[{static_cast<uint32_t>(raw(seq)), position}].assign(logits.begin(), logits.end());
  });
  for (uint32_t s = 0; s < kSequences; ++s) tokens_.push_back(random_tokens(s));
}

// ---------------------------------------------------------------- places

KvPlanes StagedRig::home(uint32_t seq, uint32_t block, uint32_t layer) const {
  const uint64_t at = (seq * kBlocks + block) * geometry_.kv_block_bytes() +
                      geometry_.kv_cell_bytes() * geometry_.group_of(layer) +
                      geometry_.piece_bytes(Form::kKv) * geometry_.layer_in_group(layer);
  return {at, at + geometry_.layer_plane_bytes()};
}

KvPlanes StagedRig::in_ring(uint32_t seq, uint32_t block, uint32_t layer) const {
  const uint64_t plane = geometry_.layer_plane_bytes();
  const uint64_t place = (uint64_t{layer} % ring_layers_ * kSequences + seq) * kBlocks + block;
  const uint64_t at = frames_bytes_ + 2 * plane * place;
  return {at, at + plane};
}

void StagedRig::move_to_host(uint32_t seq, const std::vector<uint32_t>& blocks) {
  for (uint32_t block : blocks) {
    const uint64_t at = home(seq, block, 0).k, bytes = geometry_.kv_block_bytes();
    std::memcpy(host_.data() + at, device_.data() + at, bytes);
    std::memset(device_.data() + at, kUnwritten, bytes);
  }
}

bool StagedRig::untouched(uint32_t seq, uint32_t block, uint32_t layer) const {
  const KvPlanes planes = home(seq, block, layer);
  const auto all_nothing = [&](uint64_t at) {
    return std::all_of(device_.begin() + static_cast<std::ptrdiff_t>(at),
                       device_.begin() + static_cast<std::ptrdiff_t>(at + geometry_.layer_plane_bytes()),
                       [](std::byte b) { return b == std::byte{kUnwritten}; });
  };
  return all_nothing(planes.k) && all_nothing(planes.v);
}

// ---------------------------------------------------------------- steps

Step StagedRig::make_step(const std::vector<StagedPart>& parts) {
  Step step;
  step.id = StepId{++steps_};
  step.groups = geometry_.groups();
  first_transfer_ = TransferId{transfers_ + 1};
  for (const StagedPart& part : parts) add_part(part, step);
  step.index_by_layer();
  return step;
}

void StagedRig::add_part(const StagedPart& part, Step& step) {
  StepSlice slice;
  slice.seq = SeqId{part.seq};
  slice.tokens = part.tokens;
  slice.samples = true;
  slice.first_token = step.row_count();
  slice.blocks = geometry_.blocks_for(part.tokens.end);
  for (uint32_t p = part.tokens.begin; p < part.tokens.end; ++p) {
    step.token_ids.push_back(token(part.seq, p));
  }
  std::vector<uint32_t> in = part.on_host;
  const uint32_t first_written = geometry_.block_of(part.tokens.begin);
  if (part.write_through && part.tokens.begin % kBlockTokens != 0) in.push_back(first_written);
  std::vector<bool> staged(slice.blocks);
  for (uint32_t b : in) staged[b] = true;
  for (uint32_t b = first_written; part.write_through && b < slice.blocks; ++b) staged[b] = true;

  BlockTable table;
  for (uint32_t b = 0; b < slice.blocks; ++b) {
    for (uint32_t g = 0; g < step.groups; ++g) {
      table.push_back(staged[b] ? KvPlanes() : home(part.seq, b, g * geometry_.layers_per_group));
    }
  }
  slice.table = std::make_shared<BlockTable>(std::move(table));
  if (std::find(staged.begin(), staged.end(), true) != staged.end()) {
    step.add_staged(slice, {0, slice.blocks}, geometry_.layers);
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      for (uint32_t b = 0; b < slice.blocks; ++b) {
        if (staged[b]) step.staged_planes(slice, b, layer) = in_ring(part.seq, b, layer);
      }
    }
  }
  step.slices.push_back(slice);
  add_transfers(part, in, step);
}

void StagedRig::add_transfers(const StagedPart& part, const std::vector<uint32_t>& in, Step& step) {
  const auto slice = static_cast<uint32_t>(step.slices.size() - 1);
  std::vector<uint32_t> written;
  for (uint32_t b = geometry_.block_of(part.tokens.begin); b < step.slices[slice].blocks; ++b) {
    written.push_back(b);
  }
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    // Of this step or an earlier one: from the same planes of the ring, and to the same place on the host.
    TransferId& from_ring = last_from_ring_[{part.seq, layer % ring_layers_}];
    TransferId& to_host = last_to_host_[{part.seq, layer}];
    if (!in.empty()) {
      Transfer t = carry(part.seq, in, layer, Tier::kDevice);
      t.after = {from_ring, to_host};
      step.waits.push_back({layer, slice, t.id});
      const bool reuses = layer >= ring_layers_;
      step.transfers.push_back({reuses ? layer_attended(layer - ring_layers_) : kStepBegins, std::move(t)});
    }
    if (part.write_through) {
      step.waits.push_back({layer, slice, from_ring});
      Transfer t = carry(part.seq, written, layer, Tier::kHost);
      from_ring = to_host = t.id;
      step.transfers.push_back({layer_written(layer), std::move(t)});
    }
  }
}

// Between the ring and the host.
Transfer StagedRig::carry(uint32_t seq, const std::vector<uint32_t>& blocks, uint32_t layer, Tier to) {
  Transfer t;
  t.id = TransferId{++transfers_};
  t.priority = to == Tier::kDevice ? TransferPriority::kNeededNow : TransferPriority::kOffload;
  for (uint32_t b : blocks) {
    const KvPlanes ring = in_ring(seq, b, layer), there = home(seq, b, layer);
    for (const auto& [device, host] : {std::pair{ring.k, there.k}, std::pair{ring.v, there.v}}) {
      Segment s{{device, Tier::kDevice}, {host, Tier::kHost}, geometry_.layer_plane_bytes()};
      if (to == Tier::kDevice) std::swap(s.from, s.to);
      t.segments.push_back(s);
    }
  }
  return t;
}

StepResult StagedRig::run(Step step) {
  executor_->submit(std::move(step));
  return executor_->wait();
}

void StagedRig::run_history(uint32_t seq, uint32_t end) {
  run({{seq, {0, end}}});
  logits_.clear();
}

// ---------------------------------------------------------------- what is right

const StagedLogits& plain_logits() {
  static const StagedLogits logits = [] {
    StagedRig rig({});
    for (uint32_t seq = 0; seq < StagedRig::kSequences; ++seq) rig.run({{seq, {0, StagedRig::kTokens}}});
    return rig.logits();
  }();
  return logits;
}

int differences(const StagedLogits& got) {
  int count = 0;
  for (const auto& [place, logits] : got) {
    const auto right = plain_logits().find(place);
    const bool same = right != plain_logits().end() && right->second.size() == logits.size() &&
                      std::memcmp(right->second.data(), logits.data(), logits.size() * sizeof(float)) == 0;
    count += same ? 0 : 1;
  }
  return count;
}

}  // namespace kvasir::test
