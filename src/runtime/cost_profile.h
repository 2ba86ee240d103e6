// Profiles: the measured times of steps and transfers, each kept for the machine, model and settings on which
// it was measured.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "base/status.h"
#include "contract/cost_model.h"
#include "model/architectures/model_spec.h"
#include "runtime/runtime.h"
#include "sched/beliefs/cost_fit.h"

namespace kvasir {

// All that costs depend on, as text, such as "cpu=... threads=2 ...": equal fingerprints have equal costs.
struct CostFingerprint {
  std::string text;
  std::string name() const;  // 16 hexadecimal digits of it, for a file's name
};
// place: what computes, as cpu_cost_place() says of a CPU.
CostFingerprint cost_fingerprint(const RuntimeOptions& options, const ModelSpec& spec,
                                 const std::string& numerics_id, const std::string& place);
std::string cpu_cost_place(const RuntimeOptions& options);

struct CostProfile {
  std::string fingerprint;  // CostFingerprint::text
  CostModel costs;
  FitError steps;                         // of the medians of steps
  std::map<std::string, FitError> links;  // by direction, as "device->host"
  int64_t measured_at = 0;                // seconds since 1970
};

// The path of a fingerprint's profile: below $XDG_CACHE_HOME, or ~/.cache. "" if neither is set.
std::string default_profile_path(const CostFingerprint& fingerprint);

// Makes missing folders, and replaces the file atomically. kIo.
Status save_profile(const CostProfile& profile, const std::string& path);
// kNotFound, kIo: the file cannot be read. kCorrupt: save_profile() did not write it.
Result<CostProfile> load_profile(const std::string& path);

}  // namespace kvasir
