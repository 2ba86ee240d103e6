// libFuzzer: any bytes as the folder of a model: its config.json and, after a zero byte, its
// model.safetensors. What is accepted must be safe to read in full.
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "model/files/inspect.h"
#include "model/files/model_file.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const std::string_view input(reinterpret_cast<const char*>(data), size);
  const size_t end = input.find('\0');
  if (end == std::string_view::npos) return 0;
  kvasir::FolderFiles files;
  files.path = "fuzz";
  files.config = input.substr(0, end);
  files.weights.push_back({"model.safetensors", std::as_bytes(std::span(data, size)).subspan(end + 1)});
  auto model = kvasir::ModelFile::from_folder(std::move(files));
  if (!model.ok()) return 0;
  uint64_t sum = kvasir::describe_model(**model).size();
  for (const kvasir::GgufTensor& tensor : (*model)->gguf().tensors()) {
    for (std::byte byte : tensor.data) sum += std::to_integer<uint64_t>(byte);
    if (tensor.rows == nullptr) continue;
    const auto rows = static_cast<int64_t>(tensor.values() / tensor.shape[0]);
    std::vector<std::byte> row(tensor.bytes() / static_cast<uint64_t>(rows));
    for (int64_t i = 0; i < rows; ++i) {
      tensor.rows->read(i, row.data());
      sum += std::to_integer<uint64_t>(row.back());
    }
  }
  volatile uint64_t sink = sum;  // keeps the reads
  (void)sink;
  return 0;
}
