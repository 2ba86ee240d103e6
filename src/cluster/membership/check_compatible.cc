// The handshake: what must be equal before a byte is sent.
#include <string_view>

#include "cluster/membership/membership.h"

namespace kvasir {
namespace {

Status differs(const Member& self, const Member& other, std::string_view what, std::string_view mine,
               std::string_view theirs, std::string_view advice) {
  return error(ErrorCode::kUnsupported,
               "'{}' and '{}' cannot share memory: the {} is '{}' here and '{}' there; {}", self.id.instance,
               other.id.instance, what, mine, theirs, advice);
}

}  // namespace

Status check_compatible(const Member& self, const Member& other) {
  if (self.wire_version != other.wire_version) {
    return differs(self, other, "version of the cluster's messages", std::to_string(self.wire_version),
                   std::to_string(other.wire_version), "install the same Kvasir on both");
  }
  if (self.kvasir_version != other.kvasir_version) {
    return differs(self, other, "Kvasir version", self.kvasir_version, other.kvasir_version,
                   "install the same on both");
  }
  if (self.transport != other.transport) {
    return differs(self, other, "transport", self.transport, other.transport,
                   "start both with the same transport");
  }
  if (self.transport_version != other.transport_version) {
    return differs(self, other, self.transport + " version", self.transport_version, other.transport_version,
                   "install the same library on both hosts, or use another transport");
  }
  const bool both_run_models = !self.numerics_id.empty() && !other.numerics_id.empty();
  if (!both_run_models) return {};
  if (self.numerics_id != other.numerics_id) {
    return differs(self, other, "numerics id", self.numerics_id, other.numerics_id,
                   "serve the same model file with the same cache type on both");
  }
  if (self.geometry != other.geometry) {
    return differs(self, other, "shape of the cache's blocks", self.geometry, other.geometry,
                   "serve the same model with the same block size and layers per group on both");
  }
  return {};
}

}  // namespace kvasir
