// libFuzzer: any bytes as the parts of a split GGUF file, each after its length (32 bits).
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <vector>

#include "model/files/gguf_split.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  std::span<const std::byte> rest = std::as_bytes(std::span(data, size));
  std::vector<kvasir::Gguf> parts;
  while (rest.size() >= sizeof(uint32_t)) {
    uint32_t length = 0;
    std::memcpy(&length, rest.data(), sizeof(length));
    rest = rest.subspan(sizeof(length));
    const size_t bytes = length < rest.size() ? length : rest.size();
    auto part = kvasir::Gguf::parse(rest.first(bytes), "fuzz");
    if (!part.ok() || !kvasir::split_count(*part).ok()) return 0;
    parts.push_back(std::move(part).value());
    rest = rest.subspan(bytes);
  }
  if (parts.empty()) return 0;
  const auto joined = kvasir::join_split(parts);
  if (!joined.ok()) return 0;
  uint64_t sum = joined->keys().size();
  for (const kvasir::GgufTensor& tensor : joined->tensors()) {
    for (std::byte byte : tensor.data) sum += std::to_integer<uint64_t>(byte);
  }
  volatile uint64_t sink = sum;  // keeps the reads
  (void)sink;
  return 0;
}
