// Events of the prefix cache as vLLM writes them (vllm/distributed/kv_events.py): MessagePack.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "contract/cache_events.h"

namespace kvasir {

// [unix_seconds, [event, ...], 0], the last being the data-parallel rank. Events are maps with their name in
// "type", as since vLLM 0.24 (its pull request 42892). Consecutive stored blocks of one prompt and tier make
// one event, as do consecutive removed ones of one tier. Tiers are the media GPU, CPU and DISK.
std::vector<uint8_t> encode_kv_events(double unix_seconds, std::span<const CacheEvent> events,
                                      uint32_t block_tokens);

// The second frame of a message.
std::array<uint8_t, 8> big_endian(uint64_t sequence);

}  // namespace kvasir
