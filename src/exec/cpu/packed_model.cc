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
#include "base/units.h"

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

// Hands out matrices from the arena; with a null base it only adds up the bytes, so that one code path sizes
// and carves.
class Packer {
 public:
  explicit Packer(std::byte* base) : base_(base) {}
  uint64_t used() const { return used_; }

  Projection project(const std::vector<const WeightMatrix*>& sources) {
    Projection projection;
    projection.k = sources[0]->columns;
    for (size_t i = 0; i < sources.size();) {
      size_t end = i + 1;
      while (end < sources.size() && sources[end]->type == sources[i]->type) ++end;
      projection.parts.push_back(part(sources, i, end, projection.n));
      for (; i < end; ++i) projection.n += sources[i]->rows;
    }
    return projection;
  }

 private:
  Projection::Part part(const std::vector<const WeightMatrix*>& sources, size_t begin, size_t end,
                        int64_t column) {
    const ops::WeightType type = sources[begin]->type;
    const int64_t k = sources[begin]->columns;
    int64_t n = 0;
    for (size_t i = begin; i < end; ++i) n += sources[i]->rows;
    std::byte* dst = base_ ? base_ + used_ : nullptr;
    used_ += round_up<uint64_t>(ops::packed_bytes(type, n, k), 64);
    if (dst) {
      ops::clear_packed(type, n, k, dst);
      int64_t offset = 0;
      for (size_t i = begin; i < end; ++i) {
        ops::pack_columns(type, sources[i]->data, sources[i]->rows, k, offset, n, dst);
        offset += sources[i]->rows;
      }
    }
    return {{reinterpret_cast<const uint8_t*>(dst), type, n, k}, column};
  }

  std::byte* const base_;
  uint64_t used_ = 0;
};

std::string joined(const std::set<std::string>& names) {
  std::string out;
  for (const std::string& n : names) out += (out.empty() ? "" : "+") + n;
  return out;
}

// Side by side as the projection's columns; a part without one is zero.
std::vector<float> qkv_bias_of(const LayerWeights& layer, const ModelConfig& config) {
  if (layer.q_bias.empty() && layer.k_bias.empty() && layer.v_bias.empty()) return {};
  const int64_t q_dim = config.q_dim(), kv_dim = config.kv_dim();
  std::vector<float> out(static_cast<size_t>(q_dim + 2 * kv_dim));
  std::copy(layer.q_bias.begin(), layer.q_bias.end(), out.begin());
  std::copy(layer.k_bias.begin(), layer.k_bias.end(), out.begin() + q_dim);
  std::copy(layer.v_bias.begin(), layer.v_bias.end(), out.begin() + q_dim + kv_dim);
  return out;
}

std::vector<const WeightMatrix*> all_matrices(const TensorTable& weights) {
  std::vector<const WeightMatrix*> out = {&weights.token_embedding, &weights.output_matrix()};
  for (const LayerWeights& l : weights.layers) {
    for (const WeightMatrix* m :
         {&l.attn_q, &l.attn_k, &l.attn_v, &l.attn_output, &l.ffn_gate, &l.ffn_up, &l.ffn_down}) {
      out.push_back(m);
    }
  }
  return out;
}

}  // namespace

Result<std::unique_ptr<PackedModel>> PackedModel::make(const ModelFile& file, uint32_t max_positions) {
  const ModelConfig& config = file.config();
  const TensorTable& weights = file.weights();
  std::unique_ptr<PackedModel> model(new PackedModel);
  model->file_ = &file;
  auto pack = [&](Packer& packer) {
    model->layers_.clear();
    for (const LayerWeights& l : weights.layers) {
      PackedLayer layer;
      layer.attn_norm = l.attn_norm;
      layer.qkv = packer.project({&l.attn_q, &l.attn_k, &l.attn_v});
      layer.qkv_bias = qkv_bias_of(l, config);
      layer.attn_output = packer.project({&l.attn_output});
      layer.ffn_norm = l.ffn_norm;
      layer.gate_up = packer.project({&l.ffn_gate, &l.ffn_up});
      layer.ffn_down = packer.project({&l.ffn_down});
      model->layers_.push_back(std::move(layer));
    }
    model->output_ = packer.project({&weights.output_matrix()});
  };
  Packer sizes(nullptr);
  pack(sizes);
  KV_ASSIGN_OR_RETURN(model->arena_, Arena::map(sizes.used(), "the model's weights"));
  Packer packer(model->arena_.data());
  pack(packer);
  model->output_norm_ = weights.output_norm;

  ops::RopeSpec rope;
  rope.max_positions = max_positions;
  rope.head_dim = config.head_dim;
  rope.freq_base = config.rope_base;
  rope.linear_factor = config.rope_linear_factor;
  rope.freq_factors = weights.rope_factors;
  model->rope_ = ops::make_rope_table(rope);
  return model;
}

std::string PackedModel::weight_types() const {
  std::set<std::string> names;
  for (const WeightMatrix* m : all_matrices(file_->weights())) {
    std::string type = ops::weight_type_name(m->type);
    for (char& c : type) c = static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
    names.insert(type);
  }
  return joined(names);
}

std::string PackedModel::activation_types(ops::ActivationMode mode) const {
  std::set<std::string> used;
  const auto note = [&](const Projection& p) {
    for (const Projection::Part& part : p.parts) {
      used.insert(ops::activation_type_name(ops::activation_for(part.matrix.type, mode)));
    }
  };
  for (const PackedLayer& layer : layers_) {
    for (const Projection* p : {&layer.qkv, &layer.attn_output, &layer.gate_up, &layer.ffn_down}) note(*p);
  }
  note(output_);
  return joined(used);
}

ops::ActivationType PackedModel::x_type(ops::ActivationMode mode) const {
  const int64_t q_dim = config().q_dim();
  std::set<ops::ActivationType> taken;
  for (const PackedLayer& layer : layers_) {
    for (const Projection::Part& part : layer.qkv.parts) {
      if (part.column + part.matrix.n > q_dim) taken.insert(ops::activation_for(part.matrix.type, mode));
    }
  }
  return taken.size() == 1 ? *taken.begin() : ops::ActivationType::kF32;
}

void PackedModel::embed(int32_t token, float* out) const {
  const WeightMatrix& table = file_->weights().token_embedding;
  KV_CHECK(token >= 0 && token < table.rows, "token={} vocabulary={}", token, table.rows);
  ops::dequantize_row(table.type, table.data + static_cast<uint64_t>(token) * table.row_bytes(),
                      table.columns, out);
}

}  // namespace kvasir
