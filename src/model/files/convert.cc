#include "model/files/convert.h"

#include <algorithm>
#include <filesystem>
#include <map>
#include <system_error>

#include "base/check.h"
#include "model/architectures/architecture.h"
#include "model/files/gguf_assembler.h"
#include "model/files/gguf_writer.h"
#include "model/files/layer_name.h"
#include "model/files/pair_order.h"
#include "model/quantize/quantize_rows.h"
#include "model/tokenizers/tokenizer_gguf.h"

namespace kvasir {
namespace {

constexpr uint32_t kQuantizationVersion = 2;  // of GGUF's blocks
constexpr int64_t kPartValues = 1 << 20;      // of a tensor, at once

bool is_replaced(std::string_view key) {
  return key == "general.file_type" || key == "general.quantization_version" || key.starts_with("kvasir.");
}

class Converter {
 public:
  Converter(const ModelFile& model, const QuantizationRecipe& recipe, int threads,
            const std::function<bool()>& stopped)
      : model_(model), recipe_(recipe), threads_(threads), stopped_(stopped) {}

  Status run(const std::string& path);

 private:
  Result<Gguf> metadata() const;
  Status plan_order(const Gguf& metadata);
  Status plan_tensors();
  Status write(size_t index, const GgufSink& sink) const;
  Status write_rows(const GgufTensor& from, const GgufTensorInfo& to, const GgufSink& sink) const;
  Result<const GgufTensorType*> type_for(const GgufTensor& tensor) const;
  // Puts one expert's matrix in the tensor that has all of them.
  Status stack(const ExpertName& name, const GgufTensor& tensor);
  Status go_on() const;
  const std::vector<int64_t>& order_of(std::string_view name) const;

  const ModelFile& model_;
  const QuantizationRecipe& recipe_;
  const int threads_;
  const std::function<bool()>& stopped_;
  std::vector<int64_t> q_order_, k_order_;  // empty: rows stay where they are
  const std::vector<int64_t> as_it_is_;
  std::vector<GgufTensorInfo> tensors_;
  std::vector<std::vector<const GgufTensor*>> sources_;  // of each; several: of the experts, by number
  std::map<std::string, size_t, std::less<>> stacks_;    // which of them has the experts, by name
};

Result<Gguf> Converter::metadata() const {
  const Gguf& from = model_.gguf();
  GgufAssembler out(from.origin());
  for (const std::string_view key : from.keys()) {
    if (!is_replaced(key)) out.set(key, *from.find(key));
  }
  // Of the keys of folders this one has a counterpart.
  if (from.has("kvasir.expert_weights_norm")) {
    out.set_bool(fmt::format("{}.expert_weights_norm", model_.spec().architecture),
                 model_.spec().experts.renormalise);
  }
  out.set_u32("general.file_type", recipe_.file_type);
  out.set_u32("general.quantization_version", kQuantizationVersion);
  // What read_model_spec() asks about them.
  for (const GgufTensor& tensor : from.tensors()) out.add_tensor(tensor.name, tensor);
  if (!model_.is_folder()) return out.finish();
  KV_ASSIGN_OR_RETURN(const TokenizerData tokenizer, model_.read_tokenizer());
  const Status written = write_tokenizer_data(tokenizer, &out);
  if (!written.ok()) {
    return error(written.code(), "{}: {}; serve the folder as it is, with --quantization", from.origin(),
                 written.message());
  }
  return out.finish();
}

// What the file's keys say must be what the model is. Where the order of Q's and K's rows differs, they are
// put into that of the file.
Status Converter::plan_order(const Gguf& metadata) {
  KV_ASSIGN_OR_RETURN(const ModelSpec then, read_model_spec(metadata));
  const ModelSpec& now = model_.spec();
  ModelSpec wanted = now;
  wanted.split_pairs = now.split_pairs && then.split_pairs;
  if (then != wanted) {
    return error(
        ErrorCode::kUnsupported,
        "{}: its windows, ropes, scale of attention or layers with experts are not those of all {} models, "
        "which GGUF cannot say; serve the folder as it is, with --quantization",
        model_.path(), now.architecture);
  }
  if (now.split_pairs && !then.split_pairs) {
    KV_CHECK(!now.has_other_heads(), "layers have heads of two sizes");
    q_order_ = pair_order(now, 0, now.q_dim());
    k_order_ = pair_order(now, 0, now.kv_dim());
  }
  return {};
}

const std::vector<int64_t>& Converter::order_of(std::string_view name) const {
  if (name.find(".attn_q.") != std::string_view::npos) return q_order_;
  if (name.find(".attn_k.") != std::string_view::npos) return k_order_;
  return as_it_is_;
}

Status Converter::plan_tensors() {
  const Gguf& from = model_.gguf();
  for (const GgufTensor& t : from.tensors()) {
    if (!q_order_.empty() && t.name.ends_with(".attn_qkv.weight")) {
      return error(ErrorCode::kUnsupported,
                   "{}: the tensor {} holds Q, K and V, whose order cannot be changed", from.origin(),
                   gguf_quoted(t.name));
    }
    if (const auto expert = parse_expert_name(t.name)) {
      KV_RETURN_IF_ERROR(stack(*expert, t));
      continue;
    }
    KV_ASSIGN_OR_RETURN(const GgufTensorType* type, type_for(t));
    tensors_.push_back({t.name, type, t.dimensions, t.shape});
    sources_.push_back({&t});
  }
  return {};
}

Result<const GgufTensorType*> Converter::type_for(const GgufTensor& t) const {
  const std::string_view wanted =
      type_in_recipe(recipe_, model_.spec(), t.name, t.dimensions, t.shape[0], t.type->name);
  const bool has_none = t.type->id == kNoGgufType;
  if (wanted == t.type->name && !has_none) return t.type;
  KV_ASSIGN_OR_RETURN(const ops::WeightType stored, weight_type_of(model_.gguf(), t));
  if (has_none) {
    const auto type = ops::weight_type_of_name(wanted);
    if (!type || ops::is_quantized(*type)) {
      return error(
          ErrorCode::kUnsupported,
          "{}: the tensor {} is quantised already, as {}, which GGUF files do not have; convert it to "
          "f32, f16 or bf16, or serve the folder as it is",
          model_.gguf().origin(), gguf_quoted(t.name), t.type->name);
    }
  } else if (ops::is_quantized(stored) && stored != ops::WeightType::kQ8_0) {
    return error(ErrorCode::kUnsupported,
                 "{}: the tensor {} is quantised already, as {}; convert the model from F32, F16, BF16 or "
                 "Q8_0",
                 model_.gguf().origin(), gguf_quoted(t.name), t.type->name);
  }
  uint32_t id = 0;
  while (gguf_tensor_type(id) == nullptr || gguf_tensor_type(id)->name != wanted) ++id;
  return gguf_tensor_type(id);
}

// The model has been opened, so the tensor is one of as many as there are experts, all of a shape and type.
Status Converter::stack(const ExpertName& name, const GgufTensor& tensor) {
  const auto count = static_cast<size_t>(model_.spec().experts.count);
  KV_CHECK(name.expert < count, "{} of {} experts", tensor.name, count);
  const auto [place, is_new] =
      stacks_.emplace(fmt::format("blk.{}.{}_exps.weight", name.layer, name.role), tensors_.size());
  if (is_new) {
    KV_ASSIGN_OR_RETURN(const GgufTensorType* type, type_for(tensor));
    tensors_.push_back({place->first, type, 3, {tensor.shape[0], tensor.shape[1], count, 1}});
    sources_.emplace_back(count);
  }
  sources_[place->second][name.expert] = &tensor;
  return {};
}

Status Converter::write(size_t index, const GgufSink& sink) const {
  for (const GgufTensor* from : sources_[index]) {
    KV_CHECK(from != nullptr, "{} has a gap", tensors_[index].name);
    KV_RETURN_IF_ERROR(go_on());
    KV_RETURN_IF_ERROR(write_rows(*from, tensors_[index], sink));
  }
  return {};
}

Status Converter::write_rows(const GgufTensor& from, const GgufTensorInfo& to, const GgufSink& sink) const {
  std::vector<int64_t> order = order_of(from.name);
  if (to.type == from.type && order.empty() && from.rows == nullptr) return sink(from.data);
  KV_ASSIGN_OR_RETURN(const ops::WeightType stored, weight_type_of(model_.gguf(), from));
  const auto type = ops::weight_type_of_name(to.type->name);
  KV_CHECK(type.has_value(), "type={}", to.type->name);
  // The values of a vector that changes its order are rows of one.
  const bool by_value = from.dimensions == 1 && !order.empty();
  const StoredRows rows = {stored, from.data.data(), by_value ? 1 : static_cast<int64_t>(from.shape[0]),
                           from.rows};
  const auto count = static_cast<int64_t>(from.values()) / rows.columns;
  if (by_value) order.resize(static_cast<size_t>(count));
  const size_t row_bytes = ops::row_bytes(*type, rows.columns);
  const auto at_once = std::max<int64_t>(1, kPartValues / rows.columns);
  std::vector<std::byte> part;
  for (int64_t row = 0; row < count; row += at_once) {
    KV_RETURN_IF_ERROR(go_on());
    const int64_t some = std::min(at_once, count - row);
    part.resize(static_cast<size_t>(some) * row_bytes);
    const Status status = quantize_rows(rows, order, row, some, *type, threads_, part.data());
    if (!status.ok()) {
      return error(status.code(), "{}: the tensor {}: {}", model_.path(), gguf_quoted(from.name),
                   status.message());
    }
    KV_RETURN_IF_ERROR(sink(part));
  }
  return {};
}

Status Converter::go_on() const {
  if (!stopped_ || !stopped_()) return {};
  return error(ErrorCode::kUnavailable, "stopped before the file was complete; nothing is written");
}

Status Converter::run(const std::string& path) {
  for (const MappedFile& file : model_.files()) {
    std::error_code ignored;
    if (!std::filesystem::equivalent(file.path(), path, ignored)) continue;
    return error(ErrorCode::kInvalidArgument,
                 "{}: this is a file of the model itself; name another file for the result", path);
  }
  KV_ASSIGN_OR_RETURN(const Gguf keys, metadata());
  KV_RETURN_IF_ERROR(plan_order(keys));
  KV_RETURN_IF_ERROR(plan_tensors());
  return write_gguf(path, keys, tensors_,
                    [this](size_t index, const GgufSink& sink) { return write(index, sink); });
}

}  // namespace

Status convert_model(const ModelFile& model, const QuantizationRecipe& recipe, const std::string& path,
                     int threads, const std::function<bool()>& stopped) {
  return Converter(model, recipe, threads, stopped).run(path);
}

}  // namespace kvasir
