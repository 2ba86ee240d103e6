#include "model/folders/model_folder.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <unordered_map>
#include <unordered_set>
#include <utility>

#include "base/units.h"
#include "model/files/gguf_assembler.h"
#include "model/files/model_file.h"
#include "model/files/pooling_type.h"
#include "model/folders/config_fields.h"
#include "model/folders/folder_config.h"
#include "model/folders/folder_tensors.h"
#include "model/folders/quantization_config.h"
#include "model/folders/quantized_matrices.h"
#include "model/folders/safetensors.h"

namespace kvasir {
namespace {

using nlohmann::json;

// Wrappers of text and images: their own type, and that of their text where text_config does not say it.
constexpr std::pair<std::string_view, std::string_view> kWrappers[] = {
    {"gemma3", "gemma3_text"}, {"gemma4", "gemma4_text"},   {"llama4", "llama4_text"},
    {"mistral3", "mistral"},   {"qwen3_5", "qwen3_5_text"}, {"qwen3_5_moe", "qwen3_5_moe_text"}};

std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text.data(), text.size()));
}

// The part of the configuration that describes the decoder, and its type.
struct TextConfig {
  const json* object = nullptr;
  std::string model_type;
};
Result<TextConfig> find_text_config(const json& top, ConfigFields& fields) {
  TextConfig out{&top, fields.text("model_type").value_or("")};
  for (const auto& [wrapper, text_type] : kWrappers) {
    if (out.model_type != wrapper) continue;
    const json* text = fields.find("text_config");
    if (text == nullptr || !text->is_object()) {
      fields.unsupported("text_config", "where an object is needed; fetch the file again");
      break;
    }
    out.object = text;
    out.model_type = text_type;
    ConfigFields inner(*text, fields.origin());
    if (const auto type = inner.text("model_type")) out.model_type = *type;
    fields.fail(inner.status());
  }
  KV_RETURN_IF_ERROR(fields.status());
  return out;
}

// Of a model that generates text.
void check_kind(ConfigFields& fields) {
  const auto classes = fields.texts("architectures");
  const auto generates = [](std::string_view name) {
    return name.ends_with("ForCausalLM") || name.ends_with("LMHeadModel") ||
           name.ends_with("ForConditionalGeneration");
  };
  if (classes && !classes->empty() && !generates(classes->front())) {
    fields.unsupported("architectures", "which is not a model that generates text");
  }
  fields.refuse("is_encoder_decoder");
  if (!fields.flag("is_causal", true)) fields.unsupported("is_causal", "which is not supported");
}

// MXFP4 is for experts in one tensor, and they know no other.
Result<QuantizationConfig> quantization_for(const FolderArchitecture& architecture, ConfigFields& top,
                                            ConfigFields& text) {
  ConfigFields& fields = top.has("quantization_config") ? top : text;
  KV_ASSIGN_OR_RETURN(const QuantizationConfig out, read_quantization_config(fields));
  const bool is_mxfp4 = out.kind == FolderQuantization::kMxfp4;
  if (out.kind != FolderQuantization::kNone && is_mxfp4 != architecture.stacked_experts) {
    fields.unsupported("quantization_config",
                       fmt::format("which is not supported for a {}; use the model in BF16, F16 or F32",
                                   architecture.model_type));
  }
  KV_RETURN_IF_ERROR(fields.status());
  return out;
}

// Fields that say nothing about what a decoder computes.
void ignore_harmless(ConfigFields& fields) {
  fields.ignore({"model_type", "architectures", "torch_dtype", "dtype", "transformers_version",
                 "_name_or_path", "_model_name_or_path", "use_cache", "initializer_range", "init_std",
                 "attention_dropout", "resid_pdrop", "embd_pdrop", "dropout", "layerdrop", "hidden_dropout",
                 "classifier_dropout", "bos_token_id", "eos_token_id", "pad_token_id", "unk_token_id",
                 "decoder_start_token_id", "pretraining_tp", "auto_map", "_attn_implementation",
                 "attn_implementation", "_attn_implementation_autoset", "cache_implementation",
                 "tokenizer_class", "prefix", "return_dict", "id2label", "label2id", "problem_type",
                 "finetuning_task", "task_specific_params", "is_decoder", "use_bfloat16", "torchscript",
                 "output_attentions", "output_hidden_states", "chunk_size_feed_forward",
                 "_flash_attn_2_enabled", "rope_interleaved", "tie_word_embeddings", "vision_config",
                 "quantization_config", "keys_to_ignore_at_inference",
                 // Settings of generate(), in old files.
                 "temperature", "top_p", "top_k", "typical_p", "do_sample", "num_beams", "num_beam_groups",
                 "num_return_sequences", "max_length", "min_length", "length_penalty", "repetition_penalty",
                 "no_repeat_ngram_size", "diversity_penalty", "early_stopping", "remove_invalid_values"});
}

void warn_of_unread(const ConfigFields& fields, std::vector<std::string>& warnings) {
  std::vector<std::string> names = fields.unread();
  if (names.empty()) return;
  constexpr size_t kShown = 8;
  const size_t all = names.size();
  names.resize(std::min(all, kShown));
  for (std::string& name : names) name = gguf_quoted(name);
  warnings.push_back(fmt::format("{}: fields that this program does not know are not used: {}{}",
                                 fields.origin(), fmt::join(names, ", "), all > kShown ? " and more" : ""));
}

// ---------------------------------------------------------------- generation_config.json

Status write_sampling(const FolderFiles& files, GgufAssembler& out) {
  if (files.generation_config.empty()) return {};
  const std::string origin = files.path + "/generation_config.json";
  KV_ASSIGN_OR_RETURN(const json object, parse_config(files.generation_config, origin));
  ConfigFields fields(object, origin);
  const auto write = [&](std::string_view field, std::string_view key) {
    if (const auto value = fields.number(field)) out.set_f32(key, static_cast<float>(*value));
  };
  if (fields.flag("do_sample", true)) {
    write("temperature", "general.sampling.temp");
  } else {
    out.set_f32("general.sampling.temp", 0);
  }
  write("top_p", "general.sampling.top_p");
  write("min_p", "general.sampling.min_p");
  write("repetition_penalty", "general.sampling.penalty_repeat");
  if (const auto k = fields.integer("top_k", INT32_MIN, INT32_MAX)) {
    out.set_i32("general.sampling.top_k", static_cast<int32_t>(*k));
  }
  return fields.status();
}

// ---------------------------------------------------------------- 1_Pooling/config.json

// sentence-transformers' file: a flag for each way, or since version 5.2 the name of one. What is combined,
// or is no type of GGUF's, counts as a type that is not offered.
Status write_pooling(const FolderFiles& files, std::string_view architecture, GgufAssembler& out) {
  if (files.pooling.empty()) return {};
  const std::string origin = files.path + "/1_Pooling/config.json";
  KV_ASSIGN_OR_RETURN(const json object, parse_config(files.pooling, origin));
  ConfigFields fields(object, origin);
  constexpr std::pair<std::string_view, PoolingType> kModes[] = {
      {"mean_tokens", PoolingType::kMean},          {"lasttoken", PoolingType::kLast},
      {"cls_token", PoolingType::kFirst},           {"max_tokens", PoolingType::kRank},
      {"mean_sqrt_len_tokens", PoolingType::kRank}, {"weightedmean_tokens", PoolingType::kRank},
  };
  std::vector<PoolingType> found;
  for (const auto& [mode, type] : kModes) {
    if (fields.flag(fmt::format("pooling_mode_{}", mode), false)) found.push_back(type);
  }
  if (const auto mode = fields.text("pooling_mode")) {
    found.push_back(*mode == "mean"        ? PoolingType::kMean
                    : *mode == "lasttoken" ? PoolingType::kLast
                                           : PoolingType::kRank);
  }
  KV_RETURN_IF_ERROR(fields.status());
  const PoolingType type = found.size() == 1 ? found[0] : PoolingType::kRank;
  out.set_u32(fmt::format("{}.pooling_type", architecture), static_cast<uint32_t>(type));
  return {};
}

// ---------------------------------------------------------------- weights

Result<std::vector<WeightsFile>> read_weights(const FolderFiles& files) {
  if (files.weights.empty()) {
    return error(ErrorCode::kNotFound,
                 "{}: there is no .safetensors file in this folder; fetch the model again, in "
                 "this format",
                 files.path);
  }
  std::vector<WeightsFile> out;
  for (const FolderFiles::Weights& weights : files.weights) {
    std::string path = files.path + "/" + weights.name;
    KV_ASSIGN_OR_RETURN(SafetensorsFile content, parse_safetensors(weights.bytes, path));
    out.push_back({std::move(path), std::move(content)});
  }
  return out;
}

// The weight_map of an index: the name of each tensor and its file.
Result<json> weight_map_of(std::string_view index, const std::string& origin) {
  constexpr size_t kMostBytes = 64 * kMiB;  // hundreds of thousands of tensors
  KV_ASSIGN_OR_RETURN(json object, parse_config(index, origin, kMostBytes));
  auto map = object.find("weight_map");
  if (map == object.end() || !map->is_object() || map->empty()) {
    return error(ErrorCode::kCorrupt, "{}: it has no weight_map; fetch the file again", origin);
  }
  for (const auto& [name, file] : map->items()) {
    const std::string text = file.is_string() ? file.get<std::string>() : "";
    if (text.ends_with(".safetensors") && text.find('/') == std::string::npos &&
        text.find('\0') == std::string::npos)
      continue;
    return error(ErrorCode::kCorrupt,
                 "{}: the file of {} is {}, not a .safetensors file of this folder; fetch the file again",
                 origin, gguf_quoted(name), gguf_quoted(text));
  }
  return std::move(*map);
}

// That each tensor is where the index says.
Status check_index(const FolderFiles& files, const std::vector<WeightsFile>& weights) {
  if (files.index.empty()) return {};
  const std::string origin = files.path + "/model.safetensors.index.json";
  KV_ASSIGN_OR_RETURN(const json map, weight_map_of(files.index, origin));
  std::unordered_map<std::string_view, std::string_view> places;
  for (size_t i = 0; i < weights.size(); ++i) {
    for (const SafetensorsTensor& tensor : weights[i].content.tensors)
      places.emplace(tensor.name, files.weights[i].name);
  }
  for (const auto& [name, file] : map.items()) {
    const auto place = places.find(name);
    if (place != places.end() && place->second == file.get_ref<const std::string&>()) continue;
    return error(ErrorCode::kCorrupt, "{}: {} is not in {}, where the index has it; fetch the files again",
                 origin, gguf_quoted(name), gguf_quoted(file.get_ref<const std::string&>()));
  }
  return {};
}

std::optional<bool> tied_of(ConfigFields& text, ConfigFields& top) {
  for (ConfigFields* fields : {&text, &top}) {
    if (fields->has("tie_word_embeddings")) return fields->flag("tie_word_embeddings", false);
  }
  return std::nullopt;
}

}  // namespace

Result<std::vector<std::string>> weight_files_of_index(std::string_view index, const std::string& origin) {
  KV_ASSIGN_OR_RETURN(const json map, weight_map_of(index, origin));
  std::set<std::string> names;
  for (const auto& [name, file] : map.items()) names.insert(file.get<std::string>());
  return std::vector<std::string>(names.begin(), names.end());
}

Result<FolderContainer> read_model_folder(const FolderFiles& files) {
  const std::string origin = files.path + "/config.json";
  KV_ASSIGN_OR_RETURN(const json top, parse_config(files.config, origin));
  ConfigFields top_fields(top, origin);
  check_kind(top_fields);
  KV_ASSIGN_OR_RETURN(const TextConfig text, find_text_config(top, top_fields));
  const FolderArchitecture* architecture = find_folder_architecture(text.model_type);
  if (architecture == nullptr) {
    return error(ErrorCode::kUnsupported, "{}: the model_type {} is not supported; use one of {}", origin,
                 gguf_quoted(text.model_type), fmt::join(known_model_types(), ", "));
  }
  std::vector<std::string> warnings;
  GgufAssembler out(files.path);
  out.set_string("general.architecture", architecture->name);
  out.set_string("general.name", model_name_of(files.path));
  ConfigFields fields(*text.object, origin);
  KV_ASSIGN_OR_RETURN(const QuantizationConfig quantization,
                      quantization_for(*architecture, top_fields, fields));
  FolderConfig config{*architecture, fields, out};
  config.quantized =
      quantization.kind != FolderQuantization::kNone && quantization.kind != FolderQuantization::kMxfp4;
  architecture->describe(config);
  const std::optional<bool> tied = tied_of(fields, top_fields);
  ignore_harmless(fields);
  KV_RETURN_IF_ERROR(fields.status());
  KV_RETURN_IF_ERROR(top_fields.status());
  warn_of_unread(fields, warnings);
  KV_RETURN_IF_ERROR(write_sampling(files, out));
  KV_RETURN_IF_ERROR(write_pooling(files, architecture->name, out));

  KV_ASSIGN_OR_RETURN(std::vector<WeightsFile> weights, read_weights(files));
  KV_RETURN_IF_ERROR(check_index(files, weights));
  KV_RETURN_IF_ERROR(join_quantized_matrices(quantization, weights, out, warnings));
  KV_RETURN_IF_ERROR(add_folder_tensors(weights, tied, config, warnings));
  for (std::string_view file : {files.config, files.generation_config, files.tokenizer,
                                files.tokenizer_config, files.chat_template, files.vocab, files.merges}) {
    if (!file.empty()) out.add_header(bytes_of(file));
  }
  for (const WeightsFile& file : weights) out.add_header(file.content.header);
  return FolderContainer{out.finish(), std::move(warnings)};
}

Result<TokenizerData> read_folder_tokenizer(const FolderFiles& files, size_t rows) {
  KV_ASSIGN_OR_RETURN(TokenizerData data, read_tokenizer_json(files, files.path));
  if (const Status fits = fit_vocabulary(&data, rows); !fits.ok()) {
    return error(fits.code(), "{}: {}", files.path, fits.message());
  }
  return data;
}

}  // namespace kvasir
