// From RuntimeOptions to the engine's options, the same for `serve`, `profile` and `simulate`.
#pragma once

#include <memory>
#include <span>
#include <string>

#include "base/status.h"
#include "cache/tiers/disk_file.h"
#include "contract/geometry.h"
#include "exec/cpu/decoder.h"
#include "exec/cpu/packed_model.h"
#include "model/files/form_bytes.h"
#include "model/files/model_file.h"
#include "ops/numerics.h"
#include "runtime/runtime.h"

namespace kvasir {

// The model, with --quantization. An error names the file or the flag.
Result<std::unique_ptr<ModelFile>> open_model(const RuntimeOptions& options);

// An error is one line that names the flag.
Result<ops::KvType> kv_type_from(const std::string& text);
Result<ops::ActivationMode> activation_from(const std::string& text);
// Of X on the device at hand.
FormBytes x_forms(const RuntimeOptions& options, const ModelFile& model, const Decoder::Options& decoder);
Result<CacheGeometry> make_geometry(const RuntimeOptions& options, const ModelFile& model,
                                    const Decoder::Options& decoder);
// kv_plane_bytes_per_token_layer, x_bytes_per_token_layer: see CacheGeometry. There are frames for X only if
// the policy keeps X and it is smaller than K and V.
Result<CacheGeometry> make_geometry(const RuntimeOptions& options, uint32_t layers,
                                    uint64_t kv_plane_bytes_per_token_layer, uint64_t x_bytes_per_token_layer,
                                    uint32_t kv_planes = 2);
// The window of attention of each layer, 0: none. Layer groups become smaller, unless --kv-layer-group says
// how large they are, so that none has layers of both kinds.
void add_windows(const RuntimeOptions& options, std::span<const uint32_t> by_layer, CacheGeometry& layout);
// Adds frames for X of so many bytes, unless K and V are no larger, or one plane (latent attention, whose
// rows in bf16 are smaller than X in every published model): then X saves nothing.
CacheGeometry with_x(CacheGeometry layout, uint64_t x_bytes_per_token_layer);

// The token budget of a step: the option's, else 512, or 2,048 if the policy takes whole prompts (vLLM 0.5
// takes the greater of that and the model's length; here a longer prompt has a step to itself).
uint32_t batched_tokens(const RuntimeOptions& options);
// Whether peers' memory is used: the instance is in a cluster, and its policy borrows.
bool borrows(const RuntimeOptions& options);
// Whether prefixes are copied from peers, and shown to them; and whether they may also be attended there.
bool shares_prefixes(const RuntimeOptions& options);
bool attends_prefixes(const RuntimeOptions& options);
// Whether it computes rows of prompts for peers, and has peers compute some of its own.
bool shares_prompts(const RuntimeOptions& options);
// Everything except the geometry, the sizes of the tiers, and what follows from these.
EngineOptions engine_options(const RuntimeOptions& options);

// Refuses options that contradict each other, and those that --device cannot serve. An error is one line that
// names the flags.
Status check_limits(const RuntimeOptions& options);

// The numerics id: outputs are equal bit for bit between runs with equal ids.
std::string numerics_of(const PackedModel& model, ops::ActivationMode activation, ops::KvType kv_type);

// Describes the sizes and the layout of pieces. A disk tier's file is taken over only by a server with an
// equal description.
std::string geometry_name(const CacheGeometry& geometry);

}  // namespace kvasir
