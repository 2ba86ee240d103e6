// libFuzzer: any bytes as the header of a frame, and as the parts of a message. What is accepted must say the
// same when it is written again, and take no more memory than it may.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <span>

#include "base/check.h"
#include "cluster/transport/frame.h"
#include "cluster/transport/link_state.h"

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
  Assembly assembly;
  for (size_t at = 0; at < bytes.size(); at += 7) {
    if (!assembly.add(header->message_bytes, std::span(bytes).subspan(at, std::min<size_t>(7, size - at))))
      break;
    if (assembly.whole()) KV_CHECK(assembly.take().size() <= kMost, "too long");
  }
  return 0;
}
