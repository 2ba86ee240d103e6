#include "golden/teacher_forcing.h"

#include <algorithm>
#include <cstring>
#include <ostream>
#include <utility>

#include "base/check.h"
#include "model/architectures/cache_layers.h"
#include "ops/cpu/isa.h"

namespace kvasir::test {
namespace {

template <typename T>
T take(Result<T> result) {
  KV_CHECK(result.ok(), "{}", result.status().message());
  return std::move(result).value();
}

CacheGeometry geometry_of(const ModelSpec& config, ops::KvType type) {
  CacheGeometry g;
  g.kv_plane_bytes_per_token_layer = config.kv_plane_bytes_per_token_layer(type);
  g.kv_planes = static_cast<uint32_t>(config.kv_planes());
  const CacheLayers layers(config, g.piece_bytes(Form::kKv));
  g.layers = layers.count();
  g.layers_per_group = config.is_recurrent() ? 1 : g.layers;
  if (config.is_recurrent()) g.set_states(layers.windows(config, g.block_tokens));
  return g;
}

}  // namespace

std::string describe(const ForcedPrecision& precision) {
  return fmt::format("{} activations, {} KV", ops::activation_mode_name(precision.activation),
                     ops::kv_type_name(precision.kv_type));
}

void PrintTo(const ForcedPrecision& precision, std::ostream* out) {
  *out << describe(precision);
}

TeacherForcing::TeacherForcing(const ModelFile& file, const ForcedPrecision& precision, uint32_t max_tokens,
                               int threads)
    : model_(take(PackedModel::make(file, max_tokens))),
      geometry_(geometry_of(file.spec(), precision.kv_type)),
      blocks_(geometry_.blocks_for(max_tokens)),
      memory_(take(Arena::map(blocks_ * geometry_.kv_block_bytes(), "the test"))) {
  Decoder::Options options;
  options.activation = precision.activation;
  options.kv_type = precision.kv_type;
  options.tap_all_rows = true;
  executor_ = std::make_unique<CpuExecutor>(*model_, ops::kernels_for(ops::detect_isa()), geometry_, options,
                                            memory_.data(), threads, clock_);
}

void TeacherForcing::run(std::span<const Token> tokens, uint32_t chunk, const RowSink& sink) {
  const auto count = static_cast<uint32_t>(tokens.size());
  KV_CHECK(geometry_.blocks_for(count) <= blocks_, "{} tokens, {} blocks", count, blocks_);
  // What a frame held before must not matter: not a number.
  std::memset(memory_.data(), 0xff, memory_.size());
  executor_->set_tap(
      [&](SeqId, uint32_t position, std::span<const float> logits) { sink(position, logits); });
  for (uint32_t begin = 0; begin < count; begin += chunk) {
    Step step;
    step.id = StepId{++steps_};
    step.groups = geometry_.groups();
    StepSlice slice;
    slice.seq = SeqId{1};
    slice.tokens = {begin, std::min(count, begin + chunk)};
    slice.blocks = geometry_.blocks_for(slice.tokens.end);
    step.token_ids.assign(tokens.begin() + slice.tokens.begin, tokens.begin() + slice.tokens.end);
    const uint64_t cell = geometry_.kv_cell_bytes();
    BlockTable table;
    for (uint64_t c = 0; c < uint64_t{slice.blocks} * step.groups; ++c) {
      table.push_back({c * cell, c * cell + geometry_.v_offset()});
    }
    slice.table = std::make_shared<BlockTable>(std::move(table));
    step.slices.push_back(slice);
    executor_->submit(std::move(step));
    const StepResult result = executor_->wait();
    KV_CHECK(result.status.ok(), "{}", result.status.message());
  }
}

}  // namespace kvasir::test
