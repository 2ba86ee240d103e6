// libFuzzer: any bytes as a safetensors file. What is accepted must be safe to read in full.
#include <cstddef>
#include <cstdint>
#include <span>

#include "model/folders/safetensors.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const auto file = kvasir::parse_safetensors(std::as_bytes(std::span(data, size)), "fuzz");
  if (!file.ok()) return 0;
  uint64_t sum = file->header.size();
  for (const kvasir::SafetensorsTensor& tensor : file->tensors) {
    sum += tensor.name.size() + tensor.tensor.values();
    for (std::byte byte : tensor.tensor.data) sum += std::to_integer<uint64_t>(byte);
  }
  volatile uint64_t sink = sum;  // keeps the reads
  (void)sink;
  return 0;
}
