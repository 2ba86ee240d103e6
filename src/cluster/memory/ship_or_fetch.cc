#include "cluster/memory/ship_or_fetch.h"

#include <algorithm>

#include "base/check.h"

namespace kvasir {

RemoteRun remote_run(const MemoryShape& shape, LeafRun run, uint32_t rows) {
  return remote_run(shape, run.leaves(), subtrees_of(run), rows);
}

RemoteRun remote_run(const MemoryShape& shape, uint32_t leaves, uint32_t peaks, uint32_t rows) {
  return {leaves, rows, shape.query_bytes(rows), shape.partial_bytes(rows, peaks),
          uint64_t{leaves} * shape.leaf_bytes()};
}

ShipOrFetch ship_or_fetch(const RemoteRun& run, const PeerCost& peer, double own_attend_s,
                          double meanwhile_s) {
  KV_CHECK(peer.bytes_per_s > 0, "bytes_per_s={}", peer.bytes_per_s);
  const double leaf_rows = static_cast<double>(run.leaves) * static_cast<double>(run.rows);
  const auto shipped = static_cast<double>(run.query_bytes + run.partial_bytes);
  const auto fetched = static_cast<double>(run.kv_bytes);
  const double answered =
      peer.latency_s + shipped / peer.bytes_per_s + peer.wait_s + peer.attend_s * leaf_rows;
  const double come = peer.latency_s + fetched / peer.bytes_per_s;
  return {std::max(meanwhile_s, answered), std::max(meanwhile_s, come) + own_attend_s * leaf_rows};
}

PrefixAnswer::Attending attending_cost(const MemoryShape& shape, uint32_t leaves, const PeerCost& peer) {
  KV_CHECK(peer.bytes_per_s > 0, "bytes_per_s={}", peer.bytes_per_s);
  const RemoteRun row = remote_run(shape, LeafRun{0, leaves}, 1);
  const auto bytes = static_cast<double>(row.query_bytes + row.partial_bytes);
  const double layers = shape.geometry.layers;
  return {layers * (peer.latency_s + peer.wait_s),
          layers * (bytes / peer.bytes_per_s + peer.attend_s * leaves)};
}

void RunningMean::add(double value, double of) {
  // What went before loses of / last of its weight, once the mean is that full.
  const double keep = weight_ + of <= last_ ? 1 : std::max(0.0, (last_ - of) / weight_);
  sum_ = sum_ * keep + value;
  weight_ = weight_ * keep + of;
}

void PeerCostEstimate::moved(uint64_t bytes, double seconds) {
  const auto x = static_cast<double>(bytes);
  const double y = std::max(seconds, 0.0);
  bytes_.add(x);
  seconds_.add(y);
  bytes_squared_.add(x * x);
  bytes_seconds_.add(x * y);
}

void PeerCostEstimate::attended(double leaf_rows, double worked_s, double waited_s) {
  if (leaf_rows <= 0) return;
  attend_.add(worked_s / leaf_rows);
  wait_.add(waited_s);
}

std::optional<PeerCost> PeerCostEstimate::cost() const {
  return attend_.empty() ? std::nullopt : believed();
}

std::optional<PeerCost> PeerCostEstimate::believed() const {
  const double x = bytes_.get(), y = seconds_.get();
  if (x <= 0 || y <= 0) return std::nullopt;
  PeerCost cost{0, x / y, wait_.get(), attend_.get()};
  const double variance = bytes_squared_.get() - x * x;
  const double covariance = bytes_seconds_.get() - x * y;
  // A line wants sizes that differ by more than a hundredth of their mean.
  if (variance > 1e-4 * x * x && covariance > 0) {
    const double slope = covariance / variance;  // seconds per byte
    const double latency = y - slope * x;
    if (latency >= 0) {
      cost.latency_s = latency;
      cost.bytes_per_s = 1 / slope;
    }
  }
  return cost;
}

}  // namespace kvasir
