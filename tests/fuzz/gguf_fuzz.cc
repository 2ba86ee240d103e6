// libFuzzer: any bytes as a model file. What the reader accepts must be safe to read in full.
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <utility>

#include "model/files/inspect.h"
#include "model/files/model_file.h"
#include "model/tokenizers/tokenizer.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::span<const std::byte> bytes(reinterpret_cast<const std::byte*>(data), size);
  auto file = kvasir::Gguf::parse(bytes, "fuzz");
  if (!file.ok()) return 0;
  uint64_t sum = 0;
  for (std::string_view key : file->keys()) {
    if (auto strings = file->get_strings(key); strings.ok()) sum += strings->size();
    if (auto text = file->get_string(key); text.ok()) sum += text->size();
    if (auto numbers = file->get_i32s(key); numbers.ok()) sum += numbers->size();
    sum += static_cast<uint64_t>(file->get_u32(key).ok()) + static_cast<uint64_t>(file->get_f32(key).ok());
  }
  auto model = kvasir::ModelFile::from_bytes({bytes.begin(), bytes.end()}, "fuzz");
  if (!model.ok()) return 0;
  for (const kvasir::GgufTensor& tensor : (*model)->gguf().tensors()) {
    for (std::byte byte : tensor.data) sum += std::to_integer<uint64_t>(byte);
  }
  sum += kvasir::describe_model(**model).size();
  if (auto read = (*model)->read_tokenizer(); read.ok()) {
    const auto tokenizer = kvasir::Tokenizer::create(std::move(read).value());
    if (tokenizer.ok()) sum += tokenizer->encode(" the memory\n\u00e9<|im_end|>", true).size();
  }
  volatile uint64_t sink = sum;  // keeps the reads
  (void)sink;
  return 0;
}
