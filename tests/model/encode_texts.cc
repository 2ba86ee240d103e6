// Encodes texts with a model's tokenizer, for scripts that compare the ids with those of another program.
//
//   encode_texts VOCABULARY.gguf|FOLDER [text]
//
// Standard input: for each text its length in bytes as a little-endian uint32, and the bytes. Standard
// output: for each the number of its tokens as a uint32, the ids as int32, the length of what they decode to
// as a uint32, and that. With `text` special tokens in texts are text, too.
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <iostream>
#include <map>
#include <string>

#include "base/file.h"
#include "model/files/gguf.h"
#include "model/files/mapped_file.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/tokenizer_gguf.h"
#include "model/tokenizers/tokenizer_json.h"

namespace {

using kvasir::Result;
using kvasir::Tokenizer;
using kvasir::TokenizerData;

// Of a folder that need not be a whole model's.
Result<Tokenizer> load_folder(const std::string& path) {
  std::map<std::string, std::string> texts;
  for (const char* name : {"tokenizer.json", "tokenizer_config.json", "generation_config.json",
                           "chat_template.jinja", "vocab.json", "merges.txt"}) {
    const auto file = std::filesystem::path(path) / name;
    if (!std::filesystem::exists(file)) continue;
    KV_ASSIGN_OR_RETURN(texts[name], kvasir::read_file(file.string()));
  }
  kvasir::TokenizerFiles files;
  files.tokenizer = texts["tokenizer.json"];
  files.tokenizer_config = texts["tokenizer_config.json"];
  files.generation_config = texts["generation_config.json"];
  files.chat_template = texts["chat_template.jinja"];
  files.vocab = texts["vocab.json"];
  files.merges = texts["merges.txt"];
  KV_ASSIGN_OR_RETURN(TokenizerData data, kvasir::read_tokenizer_json(files, path));
  return Tokenizer::create(std::move(data));
}

Result<Tokenizer> load(const std::string& path) {
  if (std::filesystem::is_directory(path)) return load_folder(path);
  KV_ASSIGN_OR_RETURN(const kvasir::MappedFile file, kvasir::MappedFile::open(path));
  KV_ASSIGN_OR_RETURN(const kvasir::Gguf gguf, kvasir::Gguf::parse(file.bytes(), path));
  KV_ASSIGN_OR_RETURN(TokenizerData data, kvasir::read_tokenizer_data(gguf));
  return Tokenizer::create(std::move(data));
}

void put(const void* bytes, size_t size) {
  std::fwrite(bytes, 1, size, stdout);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2) return 2;
  const auto tokenizer = load(argv[1]);
  if (!tokenizer.ok()) {
    std::fprintf(stderr, "encode_texts: %s\n", tokenizer.status().message().c_str());
    return 1;
  }
  uint32_t size = 0;
  std::string text;
  while (std::fread(&size, sizeof(size), 1, stdin) == 1) {
    text.resize(size);
    if (std::fread(text.data(), 1, size, stdin) != size) return 1;
    const auto ids = tokenizer->encode(text, argc < 3);
    const std::string decoded = tokenizer->decode(ids, false).value();
    const auto count = static_cast<uint32_t>(ids.size());
    const auto length = static_cast<uint32_t>(decoded.size());
    put(&count, sizeof(count));
    put(ids.data(), ids.size() * sizeof(ids[0]));
    put(&length, sizeof(length));
    put(decoded.data(), decoded.size());
  }
  return 0;
}
