// libFuzzer: any bytes as the header of a frame. What is accepted must say the
// same when it is written again.
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "cluster/transport/frame.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvasir;
  constexpr uint64_t kMost = 1 << 20;
  static const TokenDigest token = digest_token("fuzz");
  const std::span all(reinterpret_cast<const std::byte*>(data), size);
  std::vector<std::byte> bytes(all.begin(), all.end());
  // A fuzzer does not guess a digest.
  for (size_t i = 0; i < token.size() && 8 + i < bytes.size(); ++i) bytes[8 + i] = token[i];
  const auto header = parse_header(bytes, token, kMost);
  if (!header.ok()) return 0;
  KV_CHECK(encode_header(*header, token) == bytes, "{} bytes", bytes.size());
  return 0;
}
