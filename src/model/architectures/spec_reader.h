// Reads an architecture's metadata: typed, with bounds, defaults and one clear error for each thing that is
// wrong.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/status.h"
#include "model/architectures/model_spec.h"
#include "model/files/gguf.h"

namespace kvasir {

// Where YaRN's mixture of kept and interpolated pairs begins and ends: at a whole pair, or where the formula
// says.
enum class YarnBorders : uint8_t { kWhole, kExact };

// Keys are GGUF's, without the architecture's name in front. A function of an architecture (registry.cc)
// gets a reader whose spec() has what all of them share, and fills in what is its own.
class SpecReader {
 public:
  // REQUIRES: `file` outlives the reader.
  SpecReader(const Gguf& file, std::string architecture);

  // Name, sizes, heads, epsilon of such a norm, one rope over whole heads with the file's scaling,
  // vocabulary.
  Status read_common(NormKind norm);
  // What GGUF files leave to the architecture's name and others say (model_folder.h); after the
  // architecture's function, whose choice it replaces.
  Status read_exact();
  // Reads the one rope again, for an architecture with such borders; kvasir.yarn_truncate goes before them.
  Status read_rope(YarnBorders borders);

  ModelSpec& spec() { return spec_; }
  bool has(std::string_view key) const { return file_.has(full(key)); }
  bool has_tensor(std::string_view name) const { return file_.find_tensor(name) != nullptr; }

  // Reads a count from 1 to `most` into `out`; a missing key takes `otherwise`, if that is not 0. A list of
  // counts is read where all of them are equal.
  Status read_count(std::string_view key, uint32_t most, int32_t& out, int32_t otherwise = 0) const;
  // Reads a finite number above 0 and at most `most`; a missing key leaves `out` as it is.
  Status read_positive(std::string_view key, float most, float& out) const;
  // The same, but 0 means "as if the key were missing".
  Status read_optional(std::string_view key, float most, float& out) const;
  // A window of attention for the layers that `windowed` says (by index); 0 or no key: none.
  template <typename Windowed>
  Status read_window(std::string_view key, Windowed windowed) {
    int32_t window = 0;
    KV_RETURN_IF_ERROR(read_window_size(key, window));
    for (int32_t l = 0; l < spec_.layers; ++l) {
      spec_.layer_specs[static_cast<size_t>(l)].window = windowed(l) ? window : 0;
    }
    return {};
  }
  // The same for the layers that "attention.sliding_window_pattern" names: by a list, or by a period n, where
  // each nth layer has no window; without the key the period is `period`. Returns which layers these are,
  // also where the window is 0.
  Result<std::vector<bool>> read_windows(int32_t period);
  // Mixtures of experts as most architectures say them; `like` has what the file leaves to the architecture's
  // name. Layers from "leading_dense_block_count" on have them. A file without a count of experts has none,
  // unless they are required.
  Status read_experts(const ExpertSpec& like, bool required = true);
  // Recurrent layers: sizes, and which layers are recurrent.
  Status read_recurrence();
  // Leaves out the layers behind the last one that "nextn_predict_layers" counts.
  Status read_further_layers();
  // Refuses metadata that this program would compute wrongly: counts other than 0, factors other than 0
  // and 1.
  Status refuse_counts(std::initializer_list<std::string_view> keys) const;
  Status refuse_factors(std::initializer_list<std::string_view> keys) const;

  template <typename... Args>
  Status unsupported(fmt::format_string<Args...> format, Args&&... args) const {
    return error(ErrorCode::kUnsupported, "{}: {}; use another model", file_.origin(),
                 fmt::format(format, std::forward<Args>(args)...));
  }

 private:
  std::string full(std::string_view key) const { return fmt::format("{}.{}", spec_.architecture, key); }
  Status read_window_size(std::string_view key, int32_t& out) const;
  Status read_gating(ExpertSpec& experts) const;
  Status read_heads();
  // Those of Gemma 4, which differ from layer to layer; the model's are the last layer's.
  Status read_kv_heads_by_layer(const std::string& key);
  Status read_latent_heads();
  Status read_rope_scaling(Rope& rope, YarnBorders borders) const;
  Status read_yarn(Rope& rope, float factor, YarnBorders borders) const;
  Status read_divisors(std::string_view tensor, const Rope& rope, std::vector<float>& out) const;
  Status read_vocabulary();
  // Of kvasir.`key`: above 0; no such key leaves `out` as it is.
  Status read_exact_number(std::string_view key, float& out) const;
  // [layers], each from `least` to `most`; empty: no such key.
  Status read_by_layer(std::string_view key, int32_t least, int32_t most, std::vector<int32_t>& out) const;

  const Gguf& file_;
  ModelSpec spec_;
};

}  // namespace kvasir
