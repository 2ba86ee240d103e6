// Profiles: what steps and transfers were measured to take, kept for the machine, model and settings that
// they are of.
#pragma once

#include <cstdint>
#include <map>
#include <string>

#include "apps/runtime.h"
#include "base/status.h"
#include "contract/cost_model.h"
#include "model/packed_model.h"
#include "sched/beliefs/cost_fit.h"

namespace kvasir {

// What costs depend on, as text, such as "cpu=... threads=2 ...": two that are equal cost the same.
struct CostFingerprint {
  std::string text;
  std::string name() const;  // 16 hexadecimal digits of it, for a file's name
};
CostFingerprint cost_fingerprint(const RuntimeOptions& options, const PackedModel& model,
                                 const std::string& numerics_id);

struct CostProfile {
  std::string fingerprint;  // CostFingerprint::text
  CostModel costs;
  FitError steps;                         // of the medians of steps
  std::map<std::string, FitError> links;  // by direction, as "device->host"
  int64_t measured_at = 0;                // seconds since 1970
};

// Where the profile of a fingerprint is kept: below $XDG_CACHE_HOME, or ~/.cache. "": there is neither.
std::string default_profile_path(const CostFingerprint& fingerprint);

// Makes the folders that are missing. The file is replaced at once or not at all. kIo.
Status save_profile(const CostProfile& profile, const std::string& path);
// kNotFound: there is no such file. kCorrupt: not what save_profile() writes.
Result<CostProfile> load_profile(const std::string& path);

}  // namespace kvasir
