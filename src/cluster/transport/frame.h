// The header of every message between instances: the sender, the life of the receiver, and proof that both
// belong to one cluster.
//
//   bytes  0..3   magic            40..47  the sender's epoch
//          4..5   wire version     48..55  the receiver's epoch
//          6      kind             56..63  sequence
//          7      length of name   64..71  length of what follows
//          8..39  token digest     72..79  length of the message that it is part of
//                                  80..    the sender's name
//
// Numbers are little-endian.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/status.h"
#include "contract/peer_transport.h"

namespace kvasir {

constexpr uint32_t kFrameMagic = 0x5256'534b;  // "KSVR"
constexpr uint16_t kWireVersion = 2;
constexpr size_t kFrameFixedBytes = 80;
constexpr size_t kMaxInstanceBytes = 255;

enum class FrameKind : uint8_t {
  kHello = 1,    // begins a link; no message follows
  kMessage = 2,  // a message follows, or its next part
  kTaken = 3,    // sent back along a link: the number of its frames that were taken. No message follows
};

struct FrameHeader {
  FrameKind kind = FrameKind::kHello;
  PeerId from;
  uint64_t to_epoch = 0;
  // Of kHello and kMessage: frames that were sent before on this link. Of kTaken: frames taken.
  uint64_t sequence = 0;
  uint64_t payload_bytes = 0;  // in this frame
  uint64_t message_bytes = 0;  // in all frames of the message
};

using TokenDigest = std::array<std::byte, 32>;

// SHA-256.
TokenDigest digest_token(std::string_view token);

// REQUIRES: the sender's name has 1 to kMaxInstanceBytes bytes.
std::vector<std::byte> encode_header(const FrameHeader& header, const TokenDigest& token);

// The sender's name in a header, whatever the token; empty: the header holds no readable name.
std::string_view sender_named(std::span<const std::byte> header);

// kCorrupt: no header of ours, cut short, or announcing more than max_message_bytes; kUnsupported: another
// wire version; kInvalidArgument: another token. Allocates only the sender's name.
Result<FrameHeader> parse_header(std::span<const std::byte> bytes, const TokenDigest& token,
                                 uint64_t max_message_bytes);

}  // namespace kvasir
