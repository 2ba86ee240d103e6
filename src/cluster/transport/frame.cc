#include "cluster/transport/frame.h"

#include <openssl/crypto.h>
#include <openssl/sha.h>

#include <algorithm>
#include <cstring>

#include "base/check.h"

namespace kvasir {
namespace {

constexpr size_t kVersionAt = 4;
constexpr size_t kKindAt = 6;
constexpr size_t kNameLengthAt = 7;
constexpr size_t kDigestAt = 8;
constexpr size_t kFromEpochAt = 40;
constexpr size_t kToEpochAt = 48;
constexpr size_t kSequenceAt = 56;
constexpr size_t kPayloadAt = 64;
constexpr size_t kMessageAt = 72;

template <typename T>
void put_number(std::span<std::byte> out, size_t at, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out[at + i] = static_cast<std::byte>((static_cast<uint64_t>(value) >> (8 * i)) & 0xff);
  }
}

template <typename T>
T get_number(std::span<const std::byte> in, size_t at) {
  uint64_t value = 0;
  for (size_t i = 0; i < sizeof(T); ++i) value |= std::to_integer<uint64_t>(in[at + i]) << (8 * i);
  return static_cast<T>(value);
}

}  // namespace

TokenDigest digest_token(std::string_view token) {
  TokenDigest digest{};
  static_assert(sizeof(digest) == SHA256_DIGEST_LENGTH);
  SHA256(reinterpret_cast<const unsigned char*>(token.data()), token.size(),
         reinterpret_cast<unsigned char*>(digest.data()));
  return digest;
}

std::vector<std::byte> encode_header(const FrameHeader& header, const TokenDigest& token) {
  const std::string& name = header.from.instance;
  KV_CHECK(!name.empty() && name.size() <= kMaxInstanceBytes, "name of {} bytes", name.size());
  std::vector<std::byte> out(kFrameFixedBytes + name.size());
  put_number(out, 0, kFrameMagic);
  put_number(out, kVersionAt, kWireVersion);
  put_number(out, kKindAt, static_cast<uint8_t>(header.kind));
  put_number(out, kNameLengthAt, static_cast<uint8_t>(name.size()));
  std::copy(token.begin(), token.end(), out.begin() + kDigestAt);
  put_number(out, kFromEpochAt, header.from.epoch);
  put_number(out, kToEpochAt, header.to_epoch);
  put_number(out, kSequenceAt, header.sequence);
  put_number(out, kPayloadAt, header.payload_bytes);
  put_number(out, kMessageAt, header.message_bytes);
  std::memcpy(out.data() + kFrameFixedBytes, name.data(), name.size());
  return out;
}

std::string_view sender_named(std::span<const std::byte> header) {
  if (header.size() <= kFrameFixedBytes) return {};
  return {reinterpret_cast<const char*>(header.data()) + kFrameFixedBytes, header.size() - kFrameFixedBytes};
}

Result<FrameHeader> parse_header(std::span<const std::byte> bytes, const TokenDigest& token,
                                 uint64_t max_message_bytes) {
  if (bytes.size() < kFrameFixedBytes || get_number<uint32_t>(bytes, 0) != kFrameMagic) {
    return error(ErrorCode::kCorrupt, "a frame of {} bytes is none of ours", bytes.size());
  }
  if (const auto version = get_number<uint16_t>(bytes, kVersionAt); version != kWireVersion) {
    return error(ErrorCode::kUnsupported,
                 "a frame of wire version {}: run the same release on every instance", version);
  }
  // In constant time: how long it takes must not tell how much of a guess is right.
  if (CRYPTO_memcmp(bytes.data() + kDigestAt, token.data(), token.size()) != 0) {
    return error(ErrorCode::kInvalidArgument, "a frame with another token: give every instance the same one");
  }
  const size_t name_bytes = get_number<uint8_t>(bytes, kNameLengthAt);
  if (name_bytes == 0 || bytes.size() != kFrameFixedBytes + name_bytes) {
    return error(ErrorCode::kCorrupt, "a frame of {} bytes names its sender in {}", bytes.size(), name_bytes);
  }
  FrameHeader header;
  header.kind = static_cast<FrameKind>(get_number<uint8_t>(bytes, kKindAt));
  if (header.kind != FrameKind::kHello && header.kind != FrameKind::kMessage &&
      header.kind != FrameKind::kTaken) {
    return error(ErrorCode::kCorrupt, "a frame of kind {}", get_number<uint8_t>(bytes, kKindAt));
  }
  header.payload_bytes = get_number<uint64_t>(bytes, kPayloadAt);
  header.message_bytes = get_number<uint64_t>(bytes, kMessageAt);
  const uint64_t most = header.kind == FrameKind::kMessage ? max_message_bytes : 0;
  if (header.message_bytes > most || header.payload_bytes > header.message_bytes) {
    return error(ErrorCode::kCorrupt, "a frame announces {} bytes of {}", header.payload_bytes,
                 header.message_bytes);
  }
  header.from.epoch = get_number<uint64_t>(bytes, kFromEpochAt);
  header.to_epoch = get_number<uint64_t>(bytes, kToEpochAt);
  header.sequence = get_number<uint64_t>(bytes, kSequenceAt);
  header.from.instance = sender_named(bytes);
  return header;
}

}  // namespace kvasir
