#include "fakes/shadow_executor.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "contract/forced_end.h"

namespace kvasir::test {
namespace {

// Spoiling does not wait for a slot's last transfer, on purpose: with the threads of a real link that is a
// race, in which nothing else has a part.
constexpr bool kRacesAreFound =
#if defined(KVASIR_SANITIZED_THREAD)
    true;
#else
    false;
#endif

uint64_t spoilt_value(uint64_t submitted) {
  return (submitted + 0xBAD) * 0x94D049BB133111EBu;
}

uint64_t load(const std::byte* at) {
  uint64_t value = 0;
  std::memcpy(&value, at, sizeof value);
  return value;
}

void store(std::byte* at, uint64_t value) {
  std::memcpy(at, &value, sizeof value);
}

// A value takes several words where the geometry says so. Each is a function of it and of its own index; the
// first says what is there, and each of the others that says something else changes that.
template <typename Word>
constexpr Word word(Word value, uint64_t index) {
  return value ^ static_cast<Word>(index * 0x9E3779B97F4A7C15u);
}

template <typename Word>
void store_words(std::byte* at, Word value, uint64_t bytes) {
  for (uint64_t i = 0; i < bytes / sizeof(Word); ++i) {
    const Word w = word(value, i);
    std::memcpy(at + i * sizeof w, &w, sizeof w);
  }
}

template <typename Word>
Word load_words(const std::byte* at, uint64_t bytes) {
  Word first = 0, damage = 0;
  std::memcpy(&first, at, sizeof first);
  for (uint64_t i = 1; i < bytes / sizeof(Word); ++i) {
    Word w = 0;
    std::memcpy(&w, at + i * sizeof w, sizeof w);
    damage += (w ^ word(first, i)) * static_cast<Word>(0x94D049BB133111EBu + 2 * i);
  }
  return first + damage;
}

}  // namespace

ShadowExecutor::ShadowExecutor(const CacheGeometry& geometry, std::span<std::byte> device_memory, int depth,
                               VirtualClock& clock, Link* link, const Clock* patience)
    : geometry_(geometry),
      memory_(device_memory),
      depth_(depth),
      spoils_(!kRacesAreFound || !patience),
      clock_(clock),
      transfers_(link, patience ? *patience : clock) {
  KV_CHECK(geometry.kv_plane_bytes_per_token_layer == sizeof(uint64_t), "bytes={}",
           geometry.kv_plane_bytes_per_token_layer);
  KV_CHECK(geometry.x_bytes_per_token_layer % 4 == 0, "x={}", geometry.x_bytes_per_token_layer);
}

std::byte* ShadowExecutor::piece_at(uint64_t offset, uint64_t bytes) {
  // An absent plane, or a layer's place in one, is no multiple of eight.
  KV_CHECK(offset % 8 == 0 && offset <= memory_.size() && bytes <= memory_.size() - offset,
           "{} bytes at {} of {}", bytes, offset, memory_.size());
  return memory_.data() + offset;
}

Interval ShadowExecutor::rows_in(const StepSlice& slice, uint32_t block) const {
  const uint32_t first = block * geometry_.block_tokens;
  const uint32_t begin = std::max(slice.tokens.begin, first);
  return {begin, std::max(begin, std::min(slice.tokens.end, first + geometry_.block_tokens))};
}

uint32_t ShadowExecutor::end_layer(const StepSlice& slice) const {
  return std::min(slice.end_layer, geometry_.layers);
}

bool ShadowExecutor::passes(const Step& step, size_t slice, uint32_t layer) const {
  const StepSlice& s = step.slices[slice];
  return !transfers_.deferred(slice) && layer < end_layer(s);
}

// What step.h promises about the lists.
void ShadowExecutor::check(const Step& step) const {
  for (const StepSlice& s : step.slices) {
    KV_CHECK(end_layer(s) > 0 && (!s.samples || end_layer(s) == geometry_.layers),
             "step {}: a slice passes {} layers", raw(step.id), s.end_layer);
  }
  for (const XWrite& w : step.x_writes) {
    const StepSlice& s = step.slices[w.slice];
    const uint32_t first = w.group * geometry_.layers_per_group;
    const uint32_t end = std::min(first + geometry_.layers_per_group, geometry_.layers);
    KV_CHECK(first < end && end <= end_layer(s) && geometry_.has(Form::kX),
             "step {}: x of group {} is written by rows that pass {} layers", raw(step.id), w.group,
             s.end_layer);
  }
  for (const KvProjection& p : step.projections) {
    KV_CHECK(geometry_.has(Form::kX) && p.tokens > 0 && p.layer < geometry_.layers &&
                 p.first_position % geometry_.block_tokens + p.tokens <= geometry_.block_tokens,
             "step {}: a projection of {} tokens from {} on", raw(step.id), p.tokens, p.first_position);
  }
  KV_CHECK(step.is_indexed(), "step {}: its lists are not indexed by layer", raw(step.id));
}

template <typename Visit>
void ShadowExecutor::visit_slots(const Step& step, const StepSlice& slice, uint32_t layer, Interval tokens,
                                 const Visit& visit, bool wrong_layer) {
  for (uint32_t p = tokens.begin; p < tokens.end;) {
    const uint32_t block = geometry_.block_of(p);
    const bool next = wrong_layer && step.is_staged(slice, block, layer);
    const KvPlanes planes =
        step.planes(geometry_, slice, block, next ? (layer + 1) % geometry_.layers : layer);
    std::byte* k = plane_at(planes.k);
    std::byte* v = plane_at(planes.v);
    const uint32_t first = block * geometry_.block_tokens;
    const uint32_t end = std::min(tokens.end, first + geometry_.block_tokens);
    for (; p < end; ++p) visit(p, k + 8 * (p - first), v + 8 * (p - first));
  }
}

void ShadowExecutor::submit(Step step) {
  KV_CHECK(pending_.size() < static_cast<size_t>(depth_), "{} steps are in flight", pending_.size());
  ++submitted_;
  check(step);
  if (spoils_) {
    for (const StepSlice& slice : step.slices) spoil(step, slice);
    for (const XWrite& write : step.x_writes) spoil(step, write);
  }
  pending_.push_back({std::move(step), std::exchange(fail_next_, false)});
  if (pending_.size() == 1) transfers_.begin(pending_.front().step);
}

void ShadowExecutor::spoil(const Step& step, const StepSlice& slice) {
  const uint64_t spoilt = spoilt_value(submitted_);
  const bool again = slice.kind == RowKind::kRestore || end_layer(slice) < geometry_.layers;
  for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p) {
    const uint32_t block = geometry_.block_of(p);
    for (uint32_t layer = 0; layer < end_layer(slice); ++layer) {
      if (step.is_staged(slice, block, layer)) continue;
      visit_slots(step, slice, layer, {p, p + 1}, [&](uint32_t, std::byte* k, std::byte* v) {
        const bool there =
            ShadowModel::in_place(load(k), p, layer, 0) && ShadowModel::in_place(load(v), p, layer, 1);
        if (again && there) return;
        store(k, spoilt);
        store(v, spoilt);
      });
    }
  }
}

void ShadowExecutor::spoil(const Step& step, const XWrite& write) {
  const uint64_t bytes = geometry_.x_bytes_per_token_layer;
  const uint64_t size = geometry_.piece_bytes(Form::kX);
  // The last group may have fewer layers, and leaves the rest of its cell alone.
  for (uint32_t i = 0; i < geometry_.layers_in(write.group); ++i) {
    std::byte* piece = piece_at(write.to + i * size, size);
    const Interval rows = rows_in(step.slices[write.slice], write.block);
    for (uint32_t p = rows.begin; p < rows.end; ++p) {
      std::memset(piece + p % geometry_.block_tokens * bytes,
                  static_cast<int>(spoilt_value(submitted_) & 0xFF), bytes);
    }
  }
}

StepResult ShadowExecutor::wait() {
  KV_CHECK(!pending_.empty(), "no step is in flight");
  const Pending& pending = pending_.front();
  StepResult result;
  result.id = pending.step.id;
  result.started = clock_.now();
  clock_.advance(1000 * static_cast<Nanos>(pending.step.row_count()));
  if (pending.fails) {
    result.status = error(ErrorCode::kIo, "the shadow step was told to fail");
  } else {
    run(pending.step);
    sample(pending.step, result);
  }
  transfers_.end(result);
  result.ended = clock_.now();
  pending_.pop_front();
  if (!pending_.empty()) transfers_.begin(pending_.front().step, /*submitted_early=*/true);
  return result;
}

void ShadowExecutor::run(const Step& step) {
  embed(step);
  for (uint32_t layer = 0; layer < geometry_.layers; ++layer) {
    if (transfers_.waits_before(layer)) transfers_.wait_before(layer);
    if (transfers_.all_deferred()) return;
    write_x(step, layer);
    for (size_t s = 0; s < step.slices.size(); ++s) {
      if (passes(step, s, layer)) write(step, step.slices[s], layer);
    }
    project(step, layer);
    transfers_.pass(layer_written(layer));
    ask_peers(step, layer);
    for (size_t s = 0; s < step.slices.size(); ++s) {
      const bool done = layer + 1 == end_layer(step.slices[s]) && layer + 1 < geometry_.layers;
      if (passes(step, s, layer) && !done) attend(step, step.slices[s], layer);
    }
    transfers_.pass(layer_attended(layer));
  }
}

void ShadowExecutor::embed(const Step& step) {
  h_.resize(step.token_ids.size());
  for (size_t r = 0; r < h_.size(); ++r) h_[r] = ShadowModel::embed(step.token_ids[r]);
  for (const StepSlice& slice : step.slices) {
    if (!slice.last_token_by_reference) continue;
    const auto it = last_sample_.find(slice.seq);
    const Token token = it == last_sample_.end() ? -1 : it->second;
    h_[slice.first_token + slice.tokens.size() - 1] = ShadowModel::embed(token);
  }
}

void ShadowExecutor::write_x(const Step& step, uint32_t layer) {
  const uint32_t in_group = geometry_.layer_in_group(layer);
  const uint64_t size = geometry_.piece_bytes(Form::kX), bytes = geometry_.x_bytes_per_token_layer;
  for (const XWrite& w : step.x_writes_in(geometry_.group_of(layer))) {
    if (transfers_.deferred(w.slice)) continue;
    const StepSlice& slice = step.slices[w.slice];
    std::byte* piece = piece_at(w.to + in_group * size, size);
    const Interval rows = rows_in(slice, w.block);
    for (uint32_t p = rows.begin; p < rows.end; ++p) {
      const uint64_t h = h_[slice.first_token + p - slice.tokens.begin];
      store_words(piece + p % geometry_.block_tokens * bytes, ShadowModel::operand(h, layer), bytes);
    }
  }
}

void ShadowExecutor::write(const Step& step, const StepSlice& slice, uint32_t layer) {
  const uint64_t* h = h_.data() + slice.first_token;
  visit_slots(step, slice, layer, slice.tokens, [&](uint32_t p, std::byte* k, std::byte* v) {
    const uint32_t x = ShadowModel::operand(*h, layer);
    store(k, ShadowModel::slot(x, p, layer, 0));
    store(v, ShadowModel::slot(x, p, layer, 1));
    ++h;
  });
}

void ShadowExecutor::project(const Step& step, uint32_t layer) {
  const uint64_t bytes = geometry_.x_bytes_per_token_layer;
  for (const KvProjection& projection : step.projections_in(layer)) {
    if (transfers_.deferred(projection.slice)) continue;
    const std::byte* piece = piece_at(projection.x, geometry_.piece_bytes(Form::kX));
    std::byte* k = plane_at(projection.to.k);
    std::byte* v = plane_at(projection.to.v);
    for (uint32_t i = 0; i < projection.tokens; ++i) {
      const uint32_t p = projection.first_position + i;
      const uint32_t in_block = p % geometry_.block_tokens;
      const auto x = load_words<uint32_t>(piece + in_block * bytes, bytes);
      store(k + 8 * in_block, ShadowModel::slot(x, p, layer, 0));
      store(v + 8 * in_block, ShadowModel::slot(x, p, layer, 1));
    }
  }
}

void ShadowExecutor::set_peers(std::span<const std::byte> memory, double lost_share, uint64_t seed,
                               std::function<bool(uint64_t at)> gone) {
  gone_ = std::move(gone);
  peers_ = memory;
  lost_share_ = lost_share;
  lost_ = Random(seed);
}

// Of every run of leaves at peers an answer is expected; slices for which one does not come leave the step.
void ShadowExecutor::ask_peers(const Step& step, uint32_t layer) {
  for (const RemoteLeaves& r : step.remote_in(layer)) {
    if (!passes(step, r.slice, layer)) continue;
    KV_CHECK(r.first_leaf < r.end_leaf && r.end_leaf * kLeafTokens <= step.slices[r.slice].tokens.begin,
             "step {}: leaves [{}, {}) are not in the past of all rows", raw(step.id), r.first_leaf,
             r.end_leaf);
    const uint32_t blocks = (r.end_leaf - r.first_leaf) * (kLeafTokens / geometry_.block_tokens);
    const auto pieces = std::span(step.remote_pieces).subspan(r.first_piece, blocks);
    const bool gone = gone_ && std::any_of(pieces.begin(), pieces.end(), gone_);
    if (gone || (lost_share_ > 0 && lost_.unit() < lost_share_)) transfers_.leave(r.slice, /*lost=*/true);
  }
}

// The sum over what lies at peers, of whose blocks `there` says so.
uint64_t ShadowExecutor::attend_at_peers(const Step& step, const StepSlice& slice, uint32_t layer,
                                         std::vector<bool>& there) {
  const uint64_t plane = geometry_.layer_plane_bytes();
  const uint32_t per_leaf = kLeafTokens / geometry_.block_tokens;
  uint64_t a = 0;
  for (const RemoteLeaves& r : step.remote_in(layer)) {
    if (&step.slices[r.slice] != &slice) continue;
    for (uint32_t i = 0; i < (r.end_leaf - r.first_leaf) * per_leaf; ++i) {
      const uint32_t block = r.first_leaf * per_leaf + i;
      const uint64_t at = step.remote_pieces[r.first_piece + i];
      KV_CHECK(at % 8 == 0 && at <= peers_.size() && 2 * plane <= peers_.size() - at, "{} of {}", at,
               peers_.size());
      for (uint32_t t = 0; t < geometry_.block_tokens; ++t) {
        const uint32_t position = block * geometry_.block_tokens + t;
        for (uint32_t p = 0; p < 2; ++p) {
          a += ShadowModel::term(load(peers_.data() + at + p * plane + 8 * t), position, layer, p);
        }
      }
      there[block] = true;
    }
    remote_leaves_ += r.end_leaf - r.first_leaf;
  }
  return a;
}

void ShadowExecutor::attend(const Step& step, const StepSlice& slice, uint32_t layer) {
  const bool wrong = mutant(Mutant::kStagedWrongLayer);
  uint64_t a = 0;
  const auto read = [&](uint32_t position, const std::byte* k, const std::byte* v) {
    a += ShadowModel::term(load(k), position, layer, 0);
    a += ShadowModel::term(load(v), position, layer, 1);
  };
  uint64_t* h = h_.data() + slice.first_token;
  if (geometry_.windowed.contains(geometry_.group_of(layer))) {
    for (uint32_t p = slice.tokens.begin; p < slice.tokens.end; ++p, ++h) {
      a = 0;
      visit_slots(step, slice, layer, {p + 1 - std::min(p + 1, geometry_.window), p + 1}, read, wrong);
      *h = ShadowModel::next(*h, a);
    }
    return;
  }
  // What all rows see is summed once.
  std::vector<bool> at_peers(geometry_.blocks_for(slice.tokens.end));
  if (!step.remote.empty()) a += attend_at_peers(step, slice, layer, at_peers);
  for (uint32_t b = 0; b < geometry_.blocks_for(slice.tokens.begin); ++b) {
    if (at_peers[b]) continue;
    const uint32_t first = b * geometry_.block_tokens;
    const uint32_t end = std::min(first + geometry_.block_tokens, slice.tokens.begin);
    visit_slots(step, slice, layer, {first, end}, read, wrong);
  }
  const auto read_own = [&](uint32_t position, const std::byte* k, const std::byte* v) {
    read(position, k, v);
    *h = ShadowModel::next(*h, a);
    ++h;
  };
  visit_slots(step, slice, layer, slice.tokens, read_own, wrong);
}

void ShadowExecutor::sample(const Step& step, StepResult& result) {
  for (size_t s = 0; s < step.slices.size(); ++s) {
    const StepSlice& slice = step.slices[s];
    for (uint32_t p = slice.tokens.begin; p < slice.tokens.end && !transfers_.deferred(s); ++p) {
      if (!slice.gives_hidden(p)) continue;
      const uint64_t h = h_[slice.first_token + (p - slice.tokens.begin)];
      result.hidden.push_back({slice.seq, p, {static_cast<float>(h % 1021), static_cast<float>(h % 1019)}});
    }
    if (!slice.samples || (transfers_.deferred(s) && !mutant(Mutant::kDeferredSampled))) continue;
    const uint64_t h = h_[slice.first_token + slice.tokens.size() - 1];
    SampledToken sampled;
    sampled.seq = slice.seq;
    sampled.token =
        with_forced_end(slice.sampling, slice.tokens.end,
                        ShadowModel::sample(h, slice.sampling.seed, slice.tokens.end), kShadowVocab);
    last_sample_[slice.seq] = sampled.token;
    result.sampled.push_back(std::move(sampled));
  }
}

}  // namespace kvasir::test
