// What `serve`, `profile` and `simulate` make of the same flags.
#pragma once

#include <string>

#include "apps/runtime.h"
#include "base/status.h"
#include "cache/disk_file.h"
#include "contract/geometry.h"
#include "exec/cpu/decoder.h"
#include "model/model_file.h"
#include "model/packed_model.h"
#include "ops/numerics.h"

namespace kvasir {

// An error is one line that names the flag.
Result<ops::KvType> kv_type_from(const std::string& text);
Result<ops::ActivationMode> activation_from(const std::string& text);
Result<CacheGeometry> make_geometry(const RuntimeOptions& options, const ModelFile& model,
                                    const Decoder::Options& decoder);
// kv_plane_bytes_per_token_layer, x_bytes_per_token_layer: see CacheGeometry. There are frames for X only
// where the policy keeps it and it is smaller than K and V.
Result<CacheGeometry> make_geometry(const RuntimeOptions& options, uint32_t layers,
                                    uint64_t kv_plane_bytes_per_token_layer,
                                    uint64_t x_bytes_per_token_layer);
// With frames for X of so many bytes, unless K and V are no larger: then X is of no use to anyone.
CacheGeometry with_x(CacheGeometry layout, uint64_t x_bytes_per_token_layer);

// The budget of a step's tokens: as asked for, else 512, or 2,048 where the policy takes whole prompts (vLLM
// 0.5's default for them is the greater of that and the model's length; a longer prompt goes alone here).
uint32_t batched_tokens(const RuntimeOptions& options);
// Whether peers' memory is used: it is in a cluster, and its policy asks for it.
bool borrows(const RuntimeOptions& options);
// All but the geometry, the tiers' sizes, and what follows from them.
EngineOptions engine_options(const RuntimeOptions& options);

Status check_limits(const RuntimeOptions& options);

// The name of the arithmetic.
std::string numerics_of(const PackedModel& model, ops::ActivationMode activation, ops::KvType kv_type);

// What decides how large the pieces are and how they lie: a file that was written with another is not read.
std::string geometry_name(const CacheGeometry& geometry);

}  // namespace kvasir
