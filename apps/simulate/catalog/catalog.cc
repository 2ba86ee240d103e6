#include "apps/simulate/catalog/catalog.h"

#include <algorithm>
#include <cctype>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string_view>

#include "apps/simulate/catalog/catalog_files.h"
#include "base/file.h"
#include "model/files/layer_name.h"
#include "model/files/model_file.h"

namespace kvasir {
namespace {

using Json = nlohmann::json;

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(), [](unsigned char c) { return std::tolower(c); });
  return text;
}

// The names of a folder of the catalogue.
std::vector<std::string> names_in(std::string_view folder) {
  std::vector<std::string> out;
  for (const CatalogFile& file : catalog_files()) {
    if (file.path.starts_with(folder)) {
      out.push_back(std::filesystem::path(file.path.substr(folder.size())).stem().string());
    }
  }
  std::sort(out.begin(), out.end());
  return out;
}

const CatalogFile* file_of(const std::string& path) {
  for (const CatalogFile& file : catalog_files()) {
    if (file.path == path) return &file;
  }
  return nullptr;
}

std::string joined(const std::vector<std::string>& names) {
  return fmt::format("{}", fmt::join(names, ", "));
}

bool is_file(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::is_regular_file(path, ignored);
}

Result<ModelShape> shape_of_weights(const std::string& path) {
  KV_ASSIGN_OR_RETURN(const std::unique_ptr<ModelFile> file, ModelFile::open(path));
  const ModelSpec& c = file->spec();
  if (c.is_recurrent()) {
    return error(ErrorCode::kUnsupported, "{}: {}", path, kRecurrentLayers);
  }
  if (c.has_other_heads()) {
    return error(ErrorCode::kUnsupported, "{}: {}", path, kHeadsOfTwoSizes);
  }
  ModelShape out;
  out.name = c.name.empty() ? model_name_of(path) : c.name;
  out.layers = static_cast<uint32_t>(c.layers);
  out.hidden = static_cast<uint32_t>(c.dim);
  out.heads = static_cast<uint32_t>(c.heads);
  out.kv_heads = static_cast<uint32_t>(c.kv_heads);
  out.head_dim = static_cast<uint32_t>(c.head_dim);
  if (c.is_latent()) {
    const auto size = [](int32_t value) { return static_cast<uint32_t>(value); };
    out.latent = {size(c.latent.rank), size(c.latent.q_rank), size(c.latent.nope_dim),
                  size(c.latent.rope_dim), size(c.latent.value_dim)};
  }
  out.ffn = static_cast<uint32_t>(c.ffn_dim);
  if (c.has_experts()) {
    const auto first =
        std::find_if(c.layer_specs.begin(), c.layer_specs.end(), [](const auto& l) { return l.experts; });
    out.dense_layers = static_cast<uint32_t>(first - c.layer_specs.begin());
    if (!std::all_of(first, c.layer_specs.end(), [](const auto& l) { return l.experts; })) {
      return error(ErrorCode::kUnsupported, "{}: {}", path, kSomeLayers);
    }
    out.experts = static_cast<uint32_t>(c.experts.count);
    out.experts_used = static_cast<uint32_t>(c.experts.used);
    out.expert_ffn = static_cast<uint32_t>(c.experts.ffn_dim);
    out.shared_ffn = static_cast<uint32_t>(c.experts.shared_ffn_dim);
  }
  out.vocab = static_cast<uint32_t>(c.vocab_size);
  out.max_positions = static_cast<uint32_t>(c.context_length);
  if (c.has_windows()) out.windows = c.windows();
  out.tied_embeddings = c.tied_embeddings;
  double in_experts = 0, in_tensors = 0;
  for (const GgufTensor& tensor : file->gguf().tensors()) {
    const auto bytes = static_cast<double>(tensor.bytes());
    in_tensors += bytes;
    if (tensor.name.find("_exps.") != std::string_view::npos || parse_expert_name(tensor.name))
      in_experts += bytes;
  }
  // What a folder has in FP8 takes more memory than its file.
  const double in_all = file->is_folder() ? in_tensors : static_cast<double>(file->file_bytes());
  const auto experts = static_cast<double>(out.expert_parameters());
  if (experts > 0) out.expert_element_bytes = in_experts / experts;
  out.weight_element_bytes = (in_all - in_experts) / (static_cast<double>(out.parameters()) - experts);
  return out;
}

// kCorrupt cannot happen to a file that the build put in, but for a mistake in it.
Result<Json> overheads() {
  const CatalogFile* file = file_of("overheads.json");
  KV_CHECK(file != nullptr, "the catalogue has no overheads.json");
  Json json = Json::parse(file->text, nullptr, false);
  if (!json.is_object()) return error(ErrorCode::kCorrupt, "overheads.json: not an object");
  return json;
}

}  // namespace

std::vector<std::string> device_names() {
  return names_in("devices/");
}
std::vector<std::string> model_names() {
  return names_in("models/");
}
std::vector<std::string> network_names() {
  return names_in("networks/");
}
std::vector<std::string> overhead_names() {
  std::vector<std::string> out;
  if (const Result<Json> json = overheads(); json.ok()) {
    for (const auto& [name, value] : json.value().items()) out.push_back(name);
  }
  return out;
}

Result<DeviceSpec> find_device(const std::string& name_or_path) {
  if (const CatalogFile* file = file_of("devices/" + lower(name_or_path) + ".json")) {
    return parse_device(file->text, std::string(file->path));
  }
  if (!is_file(name_or_path)) {
    return error(ErrorCode::kNotFound, "device '{}': unknown, and no such file; take one of: {}",
                 name_or_path, joined(device_names()));
  }
  KV_ASSIGN_OR_RETURN(const std::string text, read_file(name_or_path));
  return parse_device(text, name_or_path);
}

Result<NetworkSpec> find_network(const std::string& name_or_path) {
  if (const CatalogFile* file = file_of("networks/" + lower(name_or_path) + ".json")) {
    return parse_network(file->text, std::string(file->path));
  }
  if (!is_file(name_or_path)) {
    return error(ErrorCode::kNotFound, "network '{}': unknown, and no such file; take one of: {}",
                 name_or_path, joined(network_names()));
  }
  KV_ASSIGN_OR_RETURN(const std::string text, read_file(name_or_path));
  return parse_network(text, name_or_path);
}

Result<ModelShape> find_model(const std::string& name_or_path) {
  if (const CatalogFile* file = file_of("models/" + lower(name_or_path) + ".json")) {
    return parse_model(file->text, std::string(file->path));
  }
  std::string path = name_or_path;
  std::error_code ignored;
  if (std::filesystem::is_directory(path, ignored)) {
    // One that this program can serve gives its own weights. Of any other the configuration is enough.
    Result<ModelShape> shape = shape_of_weights(path);
    if (shape.ok()) return shape;
    path += "/config.json";
  }
  if (!is_file(path)) {
    return error(ErrorCode::kNotFound,
                 "model '{}': unknown, and no such file; take a config.json, a folder with one, a GGUF file, "
                 "or one of: {}",
                 name_or_path, joined(model_names()));
  }
  if (lower(path).ends_with(".gguf")) return shape_of_weights(path);
  KV_ASSIGN_OR_RETURN(const std::string text, read_file(path));
  return parse_model(text, path);
}

Result<EngineOverhead> find_overhead(const std::string& name, uint32_t tensor) {
  KV_ASSIGN_OR_RETURN(const Json json, overheads());
  const auto it = json.find(lower(name));
  if (it == json.end()) {
    return error(ErrorCode::kNotFound, "engine overhead '{}': unknown; take one of: {}", name,
                 joined(overhead_names()));
  }
  // That of as many cards; else of the next smaller number that is known.
  uint32_t best = 0;
  EngineOverhead out;
  out.source = it->value("source", "");
  out.eager = it->value("eager", false);
  for (const auto& [cards, cost] : it->at("by_tensor").items()) {
    const auto n = static_cast<uint32_t>(std::stoul(cards));
    if (n > tensor || n < best) continue;
    best = n;
    out.step_s = cost.at("step_s").get<double>();
    out.sequence_s = cost.at("sequence_s").get<double>();
  }
  return out;
}

}  // namespace kvasir
