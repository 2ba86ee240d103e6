#include "engine/stall_budget.h"

#include <algorithm>
#include <unordered_set>
#include <vector>

namespace kvasir {
namespace {

// A link stands still if it takes so much longer than a few times what it should.
constexpr Nanos kLinkPatience = 2 * kNanosPerSecond;
constexpr double kPatienceFactor = 4;
constexpr double kMostSeconds = 3600;
// The deadline of peers' operations: what they have not answered of a layer by then they will not.
constexpr Nanos kPeersPatience = 2 * kNanosPerSecond;
// A slow disk's speed, for a disk that has moved nothing yet.
constexpr double kUnknownDiskBytesPerS = 50e6;

// What the link should take for its queue and these transfers.
double expected_seconds(const LinkStats& link, const std::vector<StepTransfer>& transfers) {
  uint64_t bytes = link.queued_bytes;
  for (const StepTransfer& t : transfers) bytes += t.transfer.bytes();
  const auto seconds = [&](double speed) { return speed > 0 ? static_cast<double>(bytes) / speed : 0; };
  if (!link.has_disk) return seconds(link.bytes_per_s);
  // Any part of the bytes may be the disk's.
  return std::max(seconds(link.bytes_per_s),
                  seconds(link.disk_bytes_per_s > 0 ? link.disk_bytes_per_s : kUnknownDiskBytesPerS));
}

}  // namespace

bool all_wait(const Step& step) {
  std::unordered_set<SeqId> waiting;
  for (const TransferWait& w : step.waits) waiting.insert(step.slices[w.slice].seq);
  for (const RemoteLeaves& r : step.remote) waiting.insert(step.slices[r.slice].seq);
  return std::all_of(step.slices.begin(), step.slices.end(),
                     [&](const StepSlice& s) { return waiting.contains(s.seq); });
}

Nanos max_stall_of(const Step& step, const Link* link, Nanos max_decode_stall) {
  if (step.waits.empty() && step.remote.empty()) return step.max_stall;
  const double expected = link ? expected_seconds(link->stats(), step.transfers) : 0;
  Nanos most = kLinkPatience + from_seconds(std::min(kPatienceFactor * expected, kMostSeconds));
  for (size_t i = 0; i < step.remote.size(); ++i) {
    if (i == 0 || step.remote[i].layer != step.remote[i - 1].layer) most += kPeersPatience;
  }
  return max_decode_stall > 0 && !all_wait(step) ? std::min(most, max_decode_stall) : most;
}

}  // namespace kvasir
