#include "server/kv_events/kv_event_codec.h"

#include <nlohmann/json.hpp>
#include <utility>

namespace kvasir {
namespace {

// Keeps the order of members: a reader knows by the first one what the others are.
using Json = nlohmann::ordered_json;

const char* medium(Tier tier) {
  constexpr std::array<const char*, kTiers> kMedia = {"GPU", "CPU", "DISK"};
  return kMedia[index_of(tier)];
}

Json stored(const CacheEvent& event, uint32_t block_tokens) {
  return {{"type", "BlockStored"},
          {"block_hashes", Json::array({event.hash})},
          {"parent_block_hash", event.parent ? Json(*event.parent) : Json()},
          {"token_ids", event.tokens},
          {"block_size", block_tokens},
          {"lora_id", nullptr},
          {"medium", medium(event.tier)},
          {"lora_name", nullptr}};
}

Json removed(const CacheEvent& event) {
  return {
      {"type", "BlockRemoved"}, {"block_hashes", Json::array({event.hash})}, {"medium", medium(event.tier)}};
}

// Whether one event can tell both.
bool goes_on(const CacheEvent& before, const CacheEvent& event) {
  using Kind = CacheEvent::Kind;
  if (event.kind != before.kind || event.tier != before.tier || event.kind == Kind::kCleared) return false;
  return event.kind == Kind::kRemoved || event.parent == before.hash;
}

}  // namespace

std::vector<uint8_t> encode_kv_events(double unix_seconds, std::span<const CacheEvent> events,
                                      uint32_t block_tokens) {
  Json list = Json::array();
  const CacheEvent* before = nullptr;
  for (const CacheEvent& event : events) {
    if (before && goes_on(*before, event)) {
      list.back()["block_hashes"].push_back(event.hash);
      for (Token token : event.tokens) list.back()["token_ids"].push_back(token);
    } else {
      switch (event.kind) {
        case CacheEvent::Kind::kStored:
          list.push_back(stored(event, block_tokens));
          break;
        case CacheEvent::Kind::kRemoved:
          list.push_back(removed(event));
          break;
        case CacheEvent::Kind::kCleared:
          list.push_back({{"type", "AllBlocksCleared"}});
          break;
      }
    }
    before = &event;
  }
  return Json::to_msgpack(Json::array({unix_seconds, std::move(list), 0}));
}

std::array<uint8_t, 8> big_endian(uint64_t sequence) {
  std::array<uint8_t, 8> out;
  for (size_t i = 0; i < out.size(); ++i) out[i] = static_cast<uint8_t>(sequence >> (56 - 8 * i));
  return out;
}

}  // namespace kvasir
