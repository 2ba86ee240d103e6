// Two memories of a MiB, and the links between them.
#pragma once

#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <thread>
#include <utility>
#include <vector>

#include "base/clock.h"
#include "base/random.h"
#include "base/units.h"
#include "cache/tiers/memory_link.h"

namespace kvasir::test {

class MemoryLinkTest : public testing::Test {
 protected:
  using Bytes = std::vector<std::byte>;

  static constexpr Nanos kLong = 100 * kNanosPerSecond;  // longer than any test
  static constexpr auto kNow = TransferPriority::kNeededNow;
  static constexpr auto kPrefetch = TransferPriority::kPrefetch;
  static constexpr auto kOffload = TransferPriority::kOffload;

  static TransferId id(uint64_t n) { return TransferId{n}; }
  static MemoryAddress device(uint64_t offset) { return {offset, Tier::kDevice}; }
  static MemoryAddress host(uint64_t offset) { return {offset, Tier::kHost}; }
  static Bytes random_bytes(size_t n, uint64_t seed) {
    Bytes bytes(n);
    Random random(seed);
    for (std::byte& b : bytes) b = static_cast<std::byte>(random.bits());
    return bytes;
  }
  static std::vector<uint64_t> ids(const std::vector<TransferDone>& done) {
    std::vector<uint64_t> result;
    for (const TransferDone& d : done) result.push_back(raw(d.id));
    return result;
  }

  MemoryLinkOptions options() {
    MemoryLinkOptions o;
    o.memory = {std::span(device_), std::span(host_), {}};
    return o;
  }
  // Moves 16 KiB in about 1.6 ms and a MiB in a tenth of a second: what begins stays under way for long.
  MemoryLinkOptions slow() {
    MemoryLinkOptions o = options();
    o.unit_bytes = 16 * kKiB;
    o.emulated_bytes_per_s = 1e7;
    return o;
  }
  // The whole memory, out.
  Transfer whole(uint64_t n, TransferPriority priority = kOffload) {
    return {id(n), priority, {}, {{device(0), host(0), device_.size()}}};
  }
  Transfer small(uint64_t n, TransferPriority priority, std::vector<TransferId> after = {}) {
    return {id(n), priority, std::move(after), {{host(64 * n), device(64 * n), 64}}};
  }
  static void wait_until_it_moves(const Link& link) {
    while (link.stats().busy_s == 0) std::this_thread::yield();
  }

  MonotonicClock clock_;
  Bytes device_ = random_bytes(kMiB, 1);
  Bytes host_ = random_bytes(kMiB, 2);
};

}  // namespace kvasir::test
