// Opening a model: map, parse, spec, tensor table, fingerprint, in that order.
#include "model/files/model_file.h"

#include <utility>

#include "model/architectures/architecture.h"

namespace kvasir {

Result<std::unique_ptr<ModelFile>> ModelFile::open(const std::string& path) {
  KV_ASSIGN_OR_RETURN(MappedFile file, MappedFile::open(path));
  return load(std::move(file), path);
}

Result<std::unique_ptr<ModelFile>> ModelFile::from_bytes(std::vector<std::byte> bytes, std::string origin) {
  return load(std::move(bytes), std::move(origin));
}

Result<std::unique_ptr<ModelFile>> ModelFile::load(Storage storage, std::string origin) {
  std::unique_ptr<ModelFile> model(new ModelFile(std::move(storage)));
  KV_ASSIGN_OR_RETURN(Gguf gguf, Gguf::parse(model->bytes(), std::move(origin)));
  model->gguf_ = std::make_unique<const Gguf>(std::move(gguf));
  KV_ASSIGN_OR_RETURN(model->spec_, read_model_spec(*model->gguf_));
  KV_ASSIGN_OR_RETURN(model->weights_, read_tensor_table(*model->gguf_, model->spec_));
  model->fingerprint_ = fingerprint_of(*model->gguf_);
  return model;
}

std::span<const std::byte> ModelFile::bytes() const {
  if (const auto* mapped = std::get_if<MappedFile>(&storage_)) return mapped->bytes();
  return std::get<std::vector<std::byte>>(storage_);
}

void ModelFile::release_pages() const {
  if (const auto* mapped = std::get_if<MappedFile>(&storage_)) mapped->release(gguf_->tensor_data());
}

}  // namespace kvasir
