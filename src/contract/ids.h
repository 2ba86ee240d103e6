// Ids and names that the interfaces between layers share.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace kvasir {

using Token = int32_t;

// A sequence is one stream of tokens; a request has one.
enum class SeqId : uint64_t {};
// Steps are numbered from 1, in the order in which they are submitted.
enum class StepId : uint64_t {};
enum class BlockId : uint32_t {};

constexpr uint64_t raw(SeqId id) {
  return static_cast<uint64_t>(id);
}
constexpr uint64_t raw(StepId id) {
  return static_cast<uint64_t>(id);
}
constexpr uint32_t raw(BlockId id) {
  return static_cast<uint32_t>(id);
}
constexpr BlockId kNoBlock = static_cast<BlockId>(UINT32_MAX);

// Where a copy lives. kDevice is the tier that kernels read.
enum class Tier : uint8_t { kDevice, kHost, kDisk };
constexpr int kTiers = 3;
inline constexpr std::array kAllTiers = {Tier::kDevice, Tier::kHost, Tier::kDisk};

// What a copy holds: K and V; or X, the exact operand of the QKV projection.
enum class Form : uint8_t { kKv, kX };
constexpr int kForms = 2;
inline constexpr std::array kAllForms = {Form::kKv, Form::kX};

constexpr size_t index_of(Tier tier) {
  return static_cast<size_t>(tier);
}
constexpr size_t index_of(Form form) {
  return static_cast<size_t>(form);
}

const char* name(Tier tier);
const char* name(Form form);

}  // namespace kvasir
