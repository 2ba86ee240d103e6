#include "exec/cpu/packed_model.h"

#include <sys/mman.h>

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <cstring>
#include <map>
#include <set>
#include <utility>

#include "base/check.h"
#include "base/mutant.h"
#include "base/units.h"
#include "model/files/pair_order.h"
#include "model/files/rope_tables.h"
#include "model/quantize/quantize_row.h"
#include "model/quantize/quantize_rows.h"
#include "ops/det_math.h"
#include "ops/numerics.h"

namespace kvasir {

Result<Arena> Arena::map(uint64_t bytes, const char* purpose) {
  Arena arena;
  if (bytes == 0) return arena;
  const uint64_t size = round_up(bytes, 2 * kMiB);
  void* data =
      mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (data == MAP_FAILED) {
    return error(ErrorCode::kExhausted, "cannot map {} for {}: {}; ask for less memory", format_bytes(size),
                 purpose, std::strerror(errno));
  }
  madvise(data, size, MADV_HUGEPAGE);  // a hint: small pages work too
  arena.data_ = static_cast<std::byte*>(data);
  arena.size_ = size;
  return arena;
}

Arena::Arena(Arena&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), size_(std::exchange(other.size_, 0)) {}

Arena& Arena::operator=(Arena&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(size_, other.size_);
  return *this;
}

Arena::~Arena() {
  if (data_) munmap(data_, size_);
}

namespace {

// Rows that are quantised at once while they are packed.
constexpr int64_t kRowsAtOnce = 1024;

// Hands out matrices from the arena; with a null base it only adds up the bytes, so that one code path sizes
// and carves. Rows whose type changes are quantised on the way.
class Packer {
 public:
  Packer(std::byte* base, int threads) : base_(base), threads_(threads) {}
  uint64_t used() const { return used_; }
  // The first failure.
  const Status& status() const { return status_; }

  // A source's rows in another order, or some of them: row i of the projection is row order[i]. Empty: as
  // they are.
  struct Source {
    const WeightMatrix* matrix;
    std::vector<int64_t> order{};
    int64_t rows() const { return order.empty() ? matrix->rows : static_cast<int64_t>(order.size()); }
  };

  Projection project(const std::vector<Source>& sources) {
    Projection projection;
    projection.k = sources[0].matrix->columns;
    for (size_t i = 0; i < sources.size();) {
      size_t end = i + 1;
      while (end < sources.size() && sources[end].matrix->used == sources[i].matrix->used) ++end;
      projection.parts.push_back(part(sources, i, end, projection.n));
      for (; i < end; ++i) projection.n += sources[i].rows();
    }
    return projection;
  }

  // The rows in GGUF's layout, to look them up in; those of the file if their type stays.
  WeightMatrix table(const WeightMatrix& m) {
    if (m.used == m.type) return m;
    WeightMatrix out = m;
    out.type = m.used;
    out.bytes = static_cast<uint64_t>(m.rows) * ops::row_bytes(m.used, m.columns);
    std::byte* dst = take(out.bytes);
    out.data = dst;
    if (dst) quantize(m, {}, 0, m.rows, dst);
    return out;
  }

 private:
  Projection::Part part(const std::vector<Source>& sources, size_t begin, size_t end, int64_t column) {
    const ops::WeightType type = sources[begin].matrix->used;
    const int64_t k = sources[begin].matrix->columns;
    int64_t n = 0;
    for (size_t i = begin; i < end; ++i) n += sources[i].rows();
    std::byte* dst = take(ops::packed_bytes(type, n, k));
    if (dst) {
      ops::clear_packed(type, n, k, dst);
      int64_t offset = 0;
      for (size_t i = begin; i < end; ++i) {
        pack(sources[i], offset, n, dst);
        offset += sources[i].rows();
      }
    }
    return {{reinterpret_cast<const uint8_t*>(dst), type, n, k}, column};
  }

  void pack(const Source& source, int64_t offset, int64_t n, std::byte* dst) {
    const WeightMatrix& m = *source.matrix;
    if (m.used == m.type && source.order.empty() && m.made == nullptr) {
      ops::pack_columns(m.type, m.data, m.rows, m.columns, offset, n, dst);
      return;
    }
    const int64_t all = source.rows();
    std::vector<std::byte> rows(static_cast<size_t>(std::min(kRowsAtOnce, all)) *
                                ops::row_bytes(m.used, m.columns));
    for (int64_t r = 0; r < all && status_.ok(); r += kRowsAtOnce) {
      const int64_t count = std::min(kRowsAtOnce, all - r);
      quantize(m, source.order, r, count, rows.data());
      ops::pack_columns(m.used, rows.data(), count, m.columns, offset + r, n, dst);
    }
  }

  void quantize(const WeightMatrix& m, const std::vector<int64_t>& order, int64_t first, int64_t count,
                std::byte* out) {
    if (!status_.ok()) return;
    const Status status = quantize_rows({m.type, m.data, m.columns, m.made, m.first_made}, order, first,
                                        count, m.used, threads_, out);
    if (!status.ok()) {
      status_ = error(status.code(), "the tensor {}: {}", gguf_quoted(m.name), status.message());
    }
  }

  std::byte* take(uint64_t bytes) {
    std::byte* out = base_ ? base_ + used_ : nullptr;
    used_ += round_up<uint64_t>(bytes, 64);
    return out;
  }

  std::byte* const base_;
  const int threads_;
  uint64_t used_ = 0;
  Status status_;
};

std::string joined(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += (out.empty() ? "" : "+") + n;
  return out;
}

std::vector<float> reordered(const std::vector<float>& values, const std::vector<int64_t>& order) {
  if (order.empty() || values.empty()) return values;
  std::vector<float> out(values.size());
  for (size_t i = 0; i < out.size(); ++i) out[i] = values[static_cast<size_t>(order[i])];
  return out;
}

// Side by side as the projection's columns; a part without one is zero.
std::vector<float> qkv_bias_of(const LayerWeights& layer, const ModelSpec& spec, int32_t index) {
  if (layer.q_bias.empty() && layer.k_bias.empty() && layer.v_bias.empty()) return {};
  const int64_t q_dim = spec.heads_of(index).q_dim(), kv_dim = spec.heads_of(index).kv_dim();
  std::vector<float> out(static_cast<size_t>(q_dim + 2 * kv_dim));
  const std::vector<float> q = reordered(layer.q_bias, pair_order(spec, index, q_dim));
  const std::vector<float> k = reordered(layer.k_bias, pair_order(spec, index, kv_dim));
  std::copy(q.begin(), q.end(), out.begin());
  std::copy(k.begin(), k.end(), out.begin() + q_dim);
  std::copy(layer.v_bias.begin(), layer.v_bias.end(), out.begin() + q_dim + kv_dim);
  return out;
}

// One value where queries do not depend on the position.
std::vector<float> query_scales(const ModelSpec& spec, uint32_t max_positions) {
  std::vector<float> out;
  const uint32_t end = max_positions + static_cast<uint32_t>(spec.temperature_offset);
  for (uint32_t p = 0; p < end; p += static_cast<uint32_t>(spec.temperature_interval)) {
    const double temperature =
        1 + spec.temperature_scale * ops::det_log(1.0 + static_cast<double>(out.size()));
    out.push_back(static_cast<float>(spec.query_scale * temperature));
  }
  return out;
}

std::vector<const WeightMatrix*> all_matrices(const TensorTable& weights) {
  std::vector<const WeightMatrix*> out = {&weights.token_embedding, &weights.output_matrix()};
  if (weights.position_embedding.present()) out.push_back(&weights.position_embedding);
  for (const LayerWeights& l : weights.layers) {
    LayerWeights::for_each_matrix(l, [&](const WeightMatrix& m) { out.push_back(&m); });
  }
  return out;
}

// Of each expert the values of both.
std::vector<float> side_by_side(const std::vector<float>& gate, const std::vector<float>& up,
                                size_t experts) {
  std::vector<float> out;
  const auto width = static_cast<std::ptrdiff_t>(gate.size() / experts);
  for (auto g = gate.begin(), u = up.begin(); g != gate.end(); g += width, u += width) {
    out.insert(out.end(), g, g + width);
    out.insert(out.end(), u, u + width);
  }
  return out;
}

void pack_latent(Packer& packer, const LayerWeights& l, PackedLayer& out) {
  out.qkv = packer.project({{&l.attn_q}, {&l.latent.kv_a}});
  if (l.latent.q_b.present()) out.q_b = packer.project({{&l.latent.q_b}});
  out.q_a_norm = l.latent.q_a_norm;
  out.kv_a_norm = l.latent.kv_a_norm;
  for (const WeightMatrix& m : l.latent.k_b) out.absorb.push_back(packer.project({{&m}}));
  for (const WeightMatrix& m : l.latent.v_b) out.value_up.push_back(packer.project({{&m}}));
}

// In the order of RecurrentSpec::inputs().
Projection pack_recurrent_inputs(Packer& packer, const RecurrentSpec& r, const RecurrentWeights& w) {
  if (r.by_turns) return packer.project({{&w.qkv}, {&w.z}, {&w.b}, {&w.a}});
  const int64_t shared = r.value_heads / r.key_heads;  // value heads of a key head
  std::vector<int64_t> ba;
  for (int64_t of_a = 0; of_a < 2; ++of_a) {
    for (int64_t h = 0; h < r.value_heads; ++h) ba.push_back((h / shared * 2 + of_a) * shared + h % shared);
  }
  if (!w.qkvz.present()) return packer.project({{&w.qkv}, {&w.z}, {&w.ba, ba}});
  std::vector<int64_t> qkvz;
  const int64_t values = shared * r.value_dim, group = 2 * r.key_dim + 2 * values;
  const auto take = [&](int64_t first, int64_t count) {
    for (int64_t h = 0; h < r.key_heads; ++h) {
      for (int64_t i = 0; i < count; ++i) qkvz.push_back(h * group + first + i);
    }
  };
  take(0, r.key_dim);
  take(r.key_dim, r.key_dim);
  take(2 * r.key_dim, values);
  take(2 * r.key_dim + values, values);
  return packer.project({{&w.qkvz, qkvz}, {&w.ba, ba}});
}

PackedRecurrence pack_recurrence(const RecurrentSpec& r, const RecurrentWeights& w) {
  PackedRecurrence out = {.convolution = w.convolution, .rate = w.rate, .dt_bias = w.dt_bias, .norm = w.norm};
  const auto taps = static_cast<size_t>(r.taps), channels = static_cast<size_t>(r.channels());
  for (size_t i = 0; i < w.convolution.size(); ++i)
    out.convolution[i % taps * channels + i / taps] = w.convolution[i];
  return out;
}

// Of each head its queries' rows, or the rows of its gate, which follow them.
std::vector<int64_t> rows_of_heads(const ModelSpec& spec, bool of_gate) {
  std::vector<int64_t> order = pair_order(spec, 0, spec.q_dim());
  for (int64_t i = static_cast<int64_t>(order.size()); i < spec.q_dim(); ++i) order.push_back(i);
  for (int64_t i = 0; i < spec.q_dim(); ++i) {
    const int64_t row = of_gate ? i : order[static_cast<size_t>(i)];
    const int64_t head = row / spec.head_dim;
    order[static_cast<size_t>(i)] = row + (head + (of_gate ? 1 : 0)) * spec.head_dim;
  }
  return order;
}

PackedExperts pack_experts(Packer& packer, const ExpertWeights& e) {
  PackedExperts out;
  std::vector<Packer::Source> router = {{&e.router}};
  out.shared_has_weight = e.shared_router.present();
  if (out.shared_has_weight) router.push_back({&e.shared_router});
  out.router = packer.project(router);
  out.router_bias = e.router_bias;
  out.selection_bias = e.selection_bias;
  for (size_t i = 0; i < e.up.size(); ++i) {
    out.in.push_back(packer.project({{&e.gate[i]}, {&e.up[i]}}));
    out.down.push_back(packer.project({{&e.down[i]}}));
  }
  out.in_bias = side_by_side(e.gate_bias, e.up_bias, e.up.size());
  out.down_bias = e.down_bias;
  if (!e.shared_up.present()) return out;
  out.shared_in = packer.project({{&e.shared_gate}, {&e.shared_up}});
  out.shared_down = packer.project({{&e.shared_down}});
  return out;
}

}  // namespace

Result<std::unique_ptr<PackedModel>> PackedModel::make(const ModelFile& file, uint32_t max_positions,
                                                       int threads) {
  const ModelSpec& spec = file.spec();
  const TensorTable& weights = file.weights();
  for (int32_t l = 0; l < spec.layers; ++l) {
    const int32_t length = spec.is_latent() || spec.layer(l).recurrent ? 0 : spec.heads_of(l).head_dim;
    if (length % ops::kLanes != 0) {
      return error(ErrorCode::kUnsupported,
                   "{}: heads of {} values are not supported (multiples of {}); use another model",
                   file.path(), length, ops::kLanes);
    }
  }
  std::unique_ptr<PackedModel> model(new PackedModel);
  model->file_ = &file;
  auto pack = [&](Packer& packer) {
    model->layers_.clear();
    for (const LayerWeights& l : weights.layers) {
      const auto index = static_cast<int32_t>(model->layers_.size());
      const HeadShape heads = spec.heads_of(index);
      const std::vector<int64_t> q_order = pair_order(spec, index, heads.q_dim()),
                                 k_order = pair_order(spec, index, heads.kv_dim());
      PackedLayer layer;
      layer.attn_norm = l.attn_norm;
      if (spec.is_latent()) {
        pack_latent(packer, l, layer);
      } else if (l.recurrent.present()) {
        layer.qkv = pack_recurrent_inputs(packer, spec.recurrent, l.recurrent);
        layer.recurrence = pack_recurrence(spec.recurrent, l.recurrent);
      } else if (spec.output_gate) {
        layer.qkv = packer.project({{&l.attn_q, rows_of_heads(spec, false)},
                                    {&l.attn_k, k_order},
                                    {&l.attn_v},
                                    {&l.attn_q, rows_of_heads(spec, true)}});
      } else {
        layer.qkv = packer.project({{&l.attn_q, q_order}, {&l.attn_k, k_order}, {&l.attn_v}});
      }
      layer.qkv_bias = qkv_bias_of(l, spec, index);
      layer.q_norm = reordered(l.q_norm, q_order);
      layer.k_norm = reordered(l.k_norm, k_order);
      layer.v_norm = l.v_norm;
      layer.sinks = l.sinks;
      layer.attn_output = packer.project({{&l.attn_output}});
      layer.attn_branch = {l.attn_output_bias, l.attn_post_norm};
      layer.ffn_norm = l.ffn_norm;
      if (l.experts.present()) {
        layer.experts = pack_experts(packer, l.experts);
      } else {
        layer.ffn_in =
            spec.gated ? packer.project({{&l.ffn_gate}, {&l.ffn_up}}) : packer.project({{&l.ffn_up}});
        layer.ffn_in_bias = l.ffn_up_bias;
        layer.ffn_down = packer.project({{&l.ffn_down}});
      }
      layer.ffn_branch = {l.ffn_down_bias, l.ffn_post_norm,
                          l.output_scale.empty() ? 1.0F : l.output_scale[0]};
      model->layers_.push_back(std::move(layer));
    }
    model->embedding_ = packer.table(weights.token_embedding);
    model->output_ = packer.project({{weights.output.present() ? &weights.output : &model->embedding_}});
  };
  Packer sizes(nullptr, threads);
  pack(sizes);
  KV_ASSIGN_OR_RETURN(model->arena_, Arena::map(sizes.used(), "the model's weights"));
  Packer packer(model->arena_.data(), threads);
  pack(packer);
  if (!packer.status().ok()) {
    return error(packer.status().code(), "{}: {}", file.path(), packer.status().message());
  }
  model->output_norm_ = weights.output_norm;
  model->adds_at_once_ = spec.residual_scale == 1;
  for (const PackedLayer& layer : model->layers_) {
    for (const Branch* branch : {&layer.attn_branch, &layer.ffn_branch}) {
      if (!branch->bias.empty() || branch->post_norm.present() || branch->output_scale != 1)
        model->adds_at_once_ = false;
    }
  }
  for (const Rope& rope : spec.ropes) model->ropes_.push_back(rope_table(rope, max_positions));
  model->query_scales_ = query_scales(spec, max_positions);
  return model;
}

const ops::RopeTable* PackedModel::rope(uint32_t layer) const {
  const int32_t index = spec().layer(static_cast<int32_t>(layer)).rope;
  if (index < 0) return nullptr;
  return &ropes_[mutant(Mutant::kRopeOfOtherLayers) ? 0 : static_cast<size_t>(index)];
}

std::string PackedModel::weight_types() const {
  std::set<std::string> names;
  for (const WeightMatrix* m : all_matrices(file_->weights())) {
    std::string type = ops::weight_type_name(m->used);
    for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    names.insert(type);
  }
  return joined(names) + (file_->quantization() ? fmt::format("~quantizer-{}", kQuantizerVersion) : "");
}

std::string PackedModel::activation_types(ops::ActivationMode mode) const {
  std::set<std::string> used;
  const auto note = [&](const Projection& p) {
    for (const Projection::Part& part : p.parts) {
      used.insert(ops::activation_type_name(ops::activation_for(part.matrix.type, mode)));
    }
  };
  for (const PackedLayer& layer : layers_) layer.for_each_projection(note);
  note(output_);
  return joined(used);
}

ops::ActivationType PackedModel::x_type(ops::ActivationMode mode) const {
  std::set<ops::ActivationType> taken;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const PackedLayer& layer = layers_[l];
    if (layer.recurrence.present()) continue;
    const int64_t q_dim = spec().heads_of(static_cast<uint32_t>(l)).q_dim();
    for (const Projection::Part& part : layer.qkv.parts) {
      if (part.column + part.matrix.n > q_dim) taken.insert(ops::activation_for(part.matrix.type, mode));
    }
  }
  return taken.size() == 1 ? *taken.begin() : ops::ActivationType::kF32;
}

void PackedModel::embed(int32_t token, uint32_t position, float* out) const {
  const auto look_up = [](const WeightMatrix& table, int64_t row, float* to) {
    KV_CHECK(row >= 0 && row < table.rows, "row={} of {}", row, table.rows);
    ops::dequantize_row(table.type, table.data + static_cast<uint64_t>(row) * table.row_bytes(),
                        table.columns, to);
  };
  const TensorTable& weights = file_->weights();
  const auto dim = static_cast<size_t>(spec().dim);
  look_up(embedding_, token, out);
  if (spec().embedding_scale != 1) {
    for (size_t i = 0; i < dim; ++i) out[i] *= spec().embedding_scale;
  }
  if (!weights.position_embedding.present()) return;
  std::vector<float> learned(dim);
  const int64_t offset = mutant(Mutant::kPositionOffset) ? 0 : spec().position_offset;
  look_up(weights.position_embedding, offset + static_cast<int64_t>(position), learned.data());
  for (size_t i = 0; i < dim; ++i) out[i] += learned[i];
}

}  // namespace kvasir
