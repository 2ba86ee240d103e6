#include "exec/forms_rig.h"

#include <algorithm>
#include <cstring>

#include "base/check.h"
#include "base/random.h"
#include "ops/cpu/isa.h"
#include "ops/x_layout.h"
#include "support/take.h"

namespace kvasir::test {
namespace {

constexpr int kNothing = 0xff;  // what memory holds that is not written: not a number

CacheGeometry geometry_of(const FormsModel& model, uint32_t layers_per_group) {
  const ModelSpec& c = model.file->spec();
  CacheGeometry g;
  g.block_tokens = FormsRig::kBlockTokens;
  g.layers = static_cast<uint32_t>(c.layers);
  g.layers_per_group = std::min(layers_per_group, g.layers);
  g.kv_plane_bytes_per_token_layer = c.kv_plane_bytes_per_token_layer(model.kv_type);
  g.x_bytes_per_token_layer =
      static_cast<uint64_t>(ops::x_row_bytes(model.packed->x_type(ops::ActivationMode::kAuto), c.dim));
  return g;
}

// Those of the file, which has none.
void give_bias(PackedModel& model) {
  Random random(3);
  for (const PackedLayer& layer : model.layers()) {
    // The model was made mutable, and nothing reads it yet.
    auto& bias = const_cast<std::vector<float>&>(layer.qkv_bias);
    bias.resize(static_cast<size_t>(layer.qkv.n));
    for (float& b : bias) b = static_cast<float>(random.unit() - 0.5);
  }
}

}  // namespace

FormsModel::FormsModel(const TinyLlamaShape& shape, ops::WeightType weights, ops::KvType kv, bool bias)
    : file(take(ModelFile::from_bytes(make_tiny_llama(shape, weights, 11), "tiny.gguf"))),
      packed(take(PackedModel::make(*file, kTokens))),
      kv_type(kv) {
  if (bias) give_bias(*packed);
  for (uint32_t s = 0; s < kSequences; ++s) {
    Random random(s);
    for (Token& t : tokens.emplace_back(kTokens)) t = static_cast<Token>(3 + random.below(256));
  }
  Step step;
  CacheGeometry geometry = geometry_of(*this, 1);
  geometry.x_bytes_per_token_layer = 0;
  const uint64_t plane = geometry.layer_plane_bytes();
  std::vector<std::byte> device(geometry.layers * FormsRig::kBlocks * 2 * plane, std::byte{kNothing});
  StepSlice& slice = step.slices.emplace_back();
  slice.tokens = {0, kTokens};
  slice.samples = true;
  slice.blocks = FormsRig::kBlocks;
  slice.staged_blocks = {0, FormsRig::kBlocks};
  for (uint64_t i = 0; i < geometry.layers * FormsRig::kBlocks; ++i) {
    step.staged.push_back({2 * i * plane, (2 * i + 1) * plane});
  }
  VirtualClock clock;
  Decoder::Options options;
  options.kv_type = kv_type;
  options.tap_all_rows = true;
  CpuExecutor executor(*packed, ops::kernels_for(ops::detect_isa()), geometry, options, device.data(), 1,
                       clock);
  for (uint32_t s = 0; s < kSequences; ++s) {
    executor.set_tap([&](SeqId, uint32_t position, std::span<const float> row) {
      logits[{s, position}].assign(row.begin(), row.end());
    });
    step.token_ids = tokens[s];
    executor.submit(step);
    KV_CHECK(executor.wait().status.ok(), "the plain run failed");
  }
}

FormsRig::FormsRig(const FormsModel& model, const Options& options)
    : model_(model),
      options_(options),
      geometry_(geometry_of(model, options.layers_per_group)),
      kv_bytes_(2 * geometry_.layer_plane_bytes() * geometry_.layers),
      x_bytes_(geometry_.groups() * geometry_.cell_bytes(Form::kX)),
      block_bytes_(round_up<uint64_t>(kv_bytes_ + 2 * x_bytes_, 64)),
      device_(FormsModel::kSequences * kBlocks * (block_bytes_ + 2 * geometry_.layer_plane_bytes()),
              std::byte{kNothing}),
      host_(device_.size(), std::byte{kNothing}) {
  link_ = std::make_unique<FakeLink>(clock_, FakeLink::Memories{std::span(device_), std::span(host_), {}});
  Decoder::Options decoder;
  decoder.kv_type = model.kv_type;
  decoder.tap_all_rows = options.tap_all_rows;
  executor_ =
      std::make_unique<CpuExecutor>(*model.packed, ops::kernels_for(ops::detect_isa()), geometry_, decoder,
                                    device_.data(), options.threads, clock_, std::vector<int>{}, link_.get());
  executor_->set_tap([this](SeqId seq, uint32_t position, std::span<const float> logits) {
    const std::vector<float>& right = model_.logits.at({static_cast<uint32_t>(raw(seq)), position});
    ++seen_;
    const bool same = std::memcmp(right.data(), logits.data(), logits.size_bytes()) == 0;
    wrong_ += same ? 0 : 1;
  });
  cells_.assign(FormsModel::kSequences, [](uint32_t, uint32_t) { return HeldCell{true}; });
}

// ---------------------------------------------------------------- places

KvPlanes FormsRig::home(uint32_t seq, uint32_t block, uint32_t layer) const {
  const uint64_t plane = geometry_.layer_plane_bytes();
  const uint64_t at = block_at(seq, block) + 2 * plane * layer;
  return {at, at + plane};
}

KvPlanes FormsRig::in_ring(uint32_t seq, uint32_t block) const {
  const uint64_t plane = geometry_.layer_plane_bytes();
  const uint64_t at = FormsModel::kSequences * kBlocks * block_bytes_ + 2 * plane * (seq * kBlocks + block);
  return {at, at + plane};
}

KvPlanes FormsRig::planes(uint32_t seq, uint32_t block, uint32_t layer) const {
  return cell(seq, block, layer).kv ? home(seq, block, layer) : in_ring(seq, block);
}

uint64_t FormsRig::x_at(uint32_t seq, uint32_t block, uint32_t group) const {
  return block_at(seq, block) + kv_bytes_ + group * geometry_.cell_bytes(Form::kX);
}

void FormsRig::forget(uint64_t at, uint64_t bytes) {
  std::fill_n(device_.begin() + static_cast<std::ptrdiff_t>(at), bytes, std::byte{kNothing});
}

void FormsRig::hold(uint32_t seq, HeldCells cells) {
  cells_[seq] = std::move(cells);
  for (uint32_t b = 0; b < kBlocks; ++b) {
    for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
      if (!cell(seq, b, layer).kv) forget(home(seq, b, layer).k, 2 * geometry_.layer_plane_bytes());
    }
    for (uint32_t g = 0; g < geometry_.groups(); ++g) {
      if (!cells_[seq](b, g).x) forget(x_at(seq, b, g), geometry_.cell_bytes(Form::kX));
    }
  }
}

// ---------------------------------------------------------------- steps

Step FormsRig::make_step(const std::vector<Part>& parts) const {
  Step step;
  step.id = StepId{++steps_};
  step.groups = geometry_.groups();
  for (const Part& part : parts) add_part(part, step);
  step.index_by_layer();
  return step;
}

void FormsRig::add_part(const Part& part, Step& step) const {
  add_recompute(part, step);
  const uint32_t slice = add_slice(part.seq, part.tokens, step);
  step.slices[slice].samples = true;
  add_x_writes(part.seq, slice, /*second=*/false, step);
  add_projections(part, slice, step);
}

uint32_t FormsRig::add_slice(uint32_t seq, Interval tokens, Step& step) const {
  StepSlice slice;
  slice.seq = SeqId{seq};
  slice.tokens = tokens;
  slice.first_token = step.row_count();
  slice.blocks = geometry_.blocks_for(tokens.end);
  step.add_staged(slice, {0, slice.blocks}, geometry_.layers);
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    for (uint32_t b = 0; b < slice.blocks; ++b) step.staged_planes(slice, b, layer) = planes(seq, b, layer);
  }
  const std::vector<Token>& ids = model_.tokens[seq];
  step.token_ids.insert(step.token_ids.end(), ids.begin() + tokens.begin, ids.begin() + tokens.end);
  step.slices.push_back(slice);
  return static_cast<uint32_t>(step.slices.size() - 1);
}

uint32_t FormsRig::layers_again(uint32_t seq, uint32_t block) const {
  uint32_t end = 0;
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    const HeldCell held = cell(seq, block, layer);
    if (!held.kv && !held.x) end = layer + 1;
  }
  return end;
}

void FormsRig::add_recompute(const Part& part, Step& step) const {
  const uint32_t blocks = geometry_.blocks_for(part.tokens.begin);
  for (uint32_t b = 0; b < blocks;) {
    const uint32_t end_layer = layers_again(part.seq, b);
    uint32_t end = b + 1;
    while (end < blocks && layers_again(part.seq, end) == end_layer) ++end;
    if (end_layer > 0) {
      const uint32_t s =
          add_slice(part.seq, {b * kBlockTokens, std::min(end * kBlockTokens, part.tokens.begin)}, step);
      step.slices[s].kind = RowKind::kRestore;
      step.slices[s].end_layer = end_layer;
      if (options_.rewrite) add_x_writes(part.seq, s, /*second=*/true, step);
    }
    b = end;
  }
}

void FormsRig::add_x_writes(uint32_t seq, uint32_t slice, bool second, Step& step) const {
  const StepSlice& of = step.slices[slice];
  const uint32_t end_group = geometry_.group_of(std::min(of.end_layer, geometry_.layers) - 1) + 1;
  for (uint32_t b = geometry_.block_of(of.tokens.begin); b < of.blocks; ++b) {
    for (uint32_t g = 0; g < end_group; ++g) {
      if (!cells_[seq](b, g).x) continue;
      step.x_writes.push_back({g, slice, b, x_at(seq, b, g) + (second ? x_bytes_ : 0)});
    }
  }
}

void FormsRig::add_projections(const Part& part, uint32_t slice, Step& step) const {
  for (uint32_t b = 0; b * kBlockTokens < part.tokens.begin; ++b) {
    for (uint32_t layer = layers_again(part.seq, b); layer < geometry_.layers; ++layer) {
      const HeldCell held = cell(part.seq, b, layer);
      if (held.kv || !held.x) continue;
      KvProjection p;
      p.layer = layer;
      p.slice = slice;
      p.first_position = b * kBlockTokens;
      p.tokens = std::min(kBlockTokens, part.tokens.begin - p.first_position);
      p.x = x_at(part.seq, b, geometry_.group_of(layer)) +
            geometry_.layer_in_group(layer) * geometry_.piece_bytes(Form::kX);
      p.to = planes(part.seq, b, layer);
      step.projections.push_back(p);
    }
  }
}

StepResult FormsRig::run(Step step) {
  const std::vector<XWrite> writes = step.x_writes;
  const std::vector<StepSlice> slices = step.slices;
  executor_->submit(std::move(step));
  StepResult result = executor_->wait();
  for (const XWrite& w : writes) {
    const auto seq = static_cast<uint32_t>(raw(slices[w.slice].seq));
    // Blocks of which all rows were written before.
    if (slices[w.slice].kind != RowKind::kRestore ||
        (w.block + 1) * kBlockTokens > slices[w.slice].tokens.end) {
      continue;
    }
    const uint64_t bytes = geometry_.cell_bytes(Form::kX);
    const bool same = std::memcmp(&device_[x_at(seq, w.block, w.group)], &device_[w.to], bytes) == 0;
    ++rewritten_;
    rewritten_otherwise_ += same ? 0 : 1;
    forget(w.to, bytes);
  }
  const uint64_t ring = in_ring(0, 0).k;
  forget(ring, device_.size() - ring);
  return result;
}

}  // namespace kvasir::test
