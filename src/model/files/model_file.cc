// Opening a model: map, parse, spec, tensor table, fingerprint, in that order.
#include "model/files/model_file.h"

#include <filesystem>
#include <utility>

#include "model/architectures/architecture.h"
#include "model/files/gguf_split.h"
#include "model/tokenizers/tokenizer_gguf.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

std::string_view text_of(const MappedFile& file) {
  return {reinterpret_cast<const char*>(file.bytes().data()), file.bytes().size()};
}

bool is_there(const fs::path& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// The files with weights in a folder: those that the index names, or the one that is there.
Result<std::vector<std::string>> weight_files_in(const std::string& folder, std::string_view index) {
  if (!index.empty()) return weight_files_of_index(index, folder + "/model.safetensors.index.json");
  const std::string usual = "model.safetensors";
  if (is_there(fs::path(folder) / usual)) return std::vector<std::string>{usual};
  std::vector<std::string> found;
  std::error_code failed;
  for (fs::directory_iterator it(folder, failed), end; !failed && it != end; it.increment(failed)) {
    if (it->path().extension() == ".safetensors") found.push_back(it->path().filename().string());
  }
  if (failed) return error(ErrorCode::kIo, "{}: cannot list the folder: {}", folder, failed.message());
  if (found.size() > 1) {
    return error(
        ErrorCode::kInvalidArgument,
        "{}: there are several .safetensors files and no model.safetensors.index.json, which says what is "
        "where; fetch it, too",
        folder);
  }
  return found;
}

}  // namespace

Result<std::unique_ptr<ModelFile>> ModelFile::open(const std::string& path) {
  std::error_code ignored;
  return fs::is_directory(path, ignored) ? open_folder(path) : open_gguf(path);
}

Result<std::unique_ptr<ModelFile>> ModelFile::open_gguf(const std::string& path) {
  std::unique_ptr<ModelFile> model(new ModelFile);
  KV_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  model->mapped_.push_back(std::move(file));
  KV_ASSIGN_OR_RETURN(Gguf container, Gguf::parse(model->mapped_[0].bytes(), path));
  KV_ASSIGN_OR_RETURN(const uint32_t count, split_count(container));
  if (count > 1) {
    model->mapped_.clear();
    std::vector<Gguf> parts;
    KV_ASSIGN_OR_RETURN(const std::string stem, split_stem(path, count));
    for (uint32_t number = 0; number < count; ++number) {
      const std::string part_path = split_path(stem, number, count);
      if (!is_there(part_path)) {
        return error(ErrorCode::kNotFound, "{}: this part of the model is missing; fetch it, too", part_path);
      }
      KV_ASSIGN_OR_RETURN(MappedFile part, MappedFile::open(part_path));
      model->mapped_.push_back(std::move(part));
      KV_ASSIGN_OR_RETURN(Gguf parsed, Gguf::parse(model->mapped_.back().bytes(), part_path));
      parts.push_back(std::move(parsed));
    }
    KV_ASSIGN_OR_RETURN(container, join_split(parts));
  }
  KV_RETURN_IF_ERROR(model->load(std::move(container)));
  return model;
}

Result<std::unique_ptr<ModelFile>> ModelFile::open_folder(const std::string& path) {
  if (!is_there(fs::path(path) / "config.json")) {
    return error(ErrorCode::kInvalidArgument,
                 "{}: this is a directory without a config.json; name the folder of a model, or a .gguf file",
                 path);
  }
  std::unique_ptr<ModelFile> model(new ModelFile);
  FolderFiles& files = model->folder_;
  files.path = path;
  const std::pair<const char*, std::string_view*> parts[] = {
      {"config.json", &files.config},
      {"generation_config.json", &files.generation_config},
      {"tokenizer.json", &files.tokenizer},
      {"tokenizer_config.json", &files.tokenizer_config},
      {"chat_template.jinja", &files.chat_template},
      {"vocab.json", &files.vocab},
      {"merges.txt", &files.merges},
      {"1_Pooling/config.json", &files.pooling},
      {"model.safetensors.index.json", &files.index}};
  for (const auto& [name, text] : parts) {
    if (!is_there(fs::path(path) / name)) continue;
    KV_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open((fs::path(path) / name).string()));
    *text = text_of(file);
    model->mapped_.push_back(std::move(file));
  }
  KV_ASSIGN_OR_RETURN(const std::vector<std::string> names, weight_files_in(path, files.index));
  for (const std::string& name : names) {
    KV_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open((fs::path(path) / name).string()));
    files.weights.push_back({name, file.bytes()});
    model->mapped_.push_back(std::move(file));
  }
  KV_ASSIGN_OR_RETURN(FolderContainer read, read_model_folder(files));
  model->warnings_ = std::move(read.warnings);
  KV_RETURN_IF_ERROR(model->load(std::move(read.container)));
  return model;
}

Result<std::unique_ptr<ModelFile>> ModelFile::from_bytes(std::vector<std::byte> bytes, std::string origin) {
  std::unique_ptr<ModelFile> model(new ModelFile);
  model->bytes_ = std::move(bytes);
  KV_ASSIGN_OR_RETURN(Gguf container, Gguf::parse(model->bytes_, std::move(origin)));
  KV_ASSIGN_OR_RETURN(const uint32_t count, split_count(container));
  if (count > 1) {
    return error(ErrorCode::kInvalidArgument, "{}: this is one of {} parts; give all of them",
                 container.origin(), count);
  }
  KV_RETURN_IF_ERROR(model->load(std::move(container)));
  return model;
}

Result<std::unique_ptr<ModelFile>> ModelFile::from_folder(FolderFiles files) {
  std::unique_ptr<ModelFile> model(new ModelFile);
  model->folder_ = std::move(files);
  KV_ASSIGN_OR_RETURN(FolderContainer read, read_model_folder(model->folder_));
  model->warnings_ = std::move(read.warnings);
  KV_RETURN_IF_ERROR(model->load(std::move(read.container)));
  return model;
}

Status ModelFile::load(Gguf container) {
  gguf_ = std::make_unique<const Gguf>(std::move(container));
  KV_ASSIGN_OR_RETURN(spec_, read_model_spec(*gguf_));
  KV_ASSIGN_OR_RETURN(weights_, read_tensor_table(*gguf_, spec_));
  warnings_.insert(warnings_.end(), weights_.warnings.begin(), weights_.warnings.end());
  KV_ASSIGN_OR_RETURN(sampling_defaults_, read_sampling_defaults(*gguf_));
  KV_ASSIGN_OR_RETURN(pooling_, read_pooling(*gguf_, spec_.architecture, warnings_));
  fingerprint_ = fingerprint_of(*gguf_);
  return {};
}

Status ModelFile::quantize_as(const QuantizationRecipe& recipe) {
  KV_CHECK(quantization_ == nullptr, "recipe={}", quantization_->name);
  std::vector<WeightMatrix*> matrices = {&weights_.token_embedding, &weights_.output};
  for (LayerWeights& l : weights_.layers) {
    LayerWeights::for_each_matrix(l, [&](WeightMatrix& m) { matrices.push_back(&m); });
  }
  for (WeightMatrix* m : matrices) {
    if (!m->present()) continue;
    const std::string_view type = type_in_recipe(recipe, spec_, m->name, 2, static_cast<uint64_t>(m->columns),
                                                 ops::weight_type_name(m->type));
    m->used = *ops::weight_type_of_name(type);
    if (ops::is_quantized(m->type) && m->used != m->type) {
      return error(
          ErrorCode::kUnsupported,
          "{}: the model is quantised already (the tensor {} as {}); serve it without --quantization, or "
          "give a model of F32, F16 or BF16",
          path(), gguf_quoted(m->name), ops::weight_type_name(m->type));
    }
  }
  quantization_ = &recipe;
  fingerprint_ = fingerprint_of(fingerprint_, recipe);
  return {};
}

uint64_t ModelFile::file_bytes() const {
  uint64_t bytes = bytes_.size();
  for (const FolderFiles::Weights& file : folder_.weights) bytes += file.bytes.size();
  if (is_folder()) return bytes;
  for (const MappedFile& file : mapped_) bytes += file.bytes().size();
  return bytes;
}

Result<TokenizerData> ModelFile::read_tokenizer() const {
  if (is_folder()) return read_folder_tokenizer(folder_, static_cast<size_t>(spec_.vocab_size));
  return read_tokenizer_data(*gguf_);
}

void ModelFile::release_pages() const {
  for (const MappedFile& file : mapped_) file.release(file.bytes());
}

std::string model_name_of(const std::string& path) {
  std::string_view text = path;
  while (text.size() > 1 && text.ends_with('/')) text.remove_suffix(1);
  std::error_code ignored;
  if (fs::is_directory(text, ignored)) {
    const fs::path absolute = fs::absolute(text, ignored).lexically_normal();
    return (absolute.has_filename() ? absolute : absolute.parent_path()).filename().string();
  }
  std::string name = fs::path(text).stem().string();
  // NAME-00001-of-00003
  constexpr std::string_view kNumber = "-00000-of-00000";
  if (name.size() <= kNumber.size()) return name;
  const std::string_view end = std::string_view(name).substr(name.size() - kNumber.size());
  for (size_t i = 0; i < end.size(); ++i) {
    const bool is_digit = end[i] >= '0' && end[i] <= '9';
    if (kNumber[i] == '0' ? !is_digit : end[i] != kNumber[i]) return name;
  }
  return name.substr(0, name.size() - kNumber.size());
}

}  // namespace kvasir
