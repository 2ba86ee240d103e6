// What `serve` and `profile` make of the same flags.
#pragma once

#include <string>

#include "apps/runtime.h"
#include "base/status.h"
#include "cache/disk_file.h"
#include "contract/geometry.h"
#include "model/model_file.h"
#include "model/packed_model.h"
#include "ops/numerics.h"

namespace kvasir {

// An error is one line that names the flag.
Result<ops::KvType> kv_type_from(const std::string& text);
Result<ops::ActivationMode> activation_from(const std::string& text);
Result<CacheGeometry> make_geometry(const RuntimeOptions& options, const ModelConfig& config,
                                    ops::KvType kv_type);

Status check_limits(const RuntimeOptions& options);

// The name of the arithmetic.
std::string numerics_of(const PackedModel& model, ops::ActivationMode activation, ops::KvType kv_type);

// What decides how large the pieces are and how they lie: a file that was written with another is not read.
std::string geometry_name(const CacheGeometry& geometry);

}  // namespace kvasir
