// Rotary embeddings of config.json: "rope_theta" and "rope_scaling", or since transformers 5
// "rope_parameters", which has both.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <numbers>

#include "model/folders/folder_config.h"

namespace kvasir {
namespace {

using nlohmann::json;

constexpr int64_t kMostContext = 1 << 24;

// Llama 3.1's scaling: pairs that turn slowly are divided by the factor, those between two wavelengths by
// something between. In f32, as the converters of GGUF compute them.
std::vector<float> llama3_divisors(int64_t dim, double theta, float factor, float low, float high,
                                   float original) {
  const float low_wavelength = original / low, high_wavelength = original / high;
  std::vector<float> out;
  for (int64_t i = 0; i < dim; i += 2) {
    const float power = static_cast<float>(i) / static_cast<float>(dim);
    const float frequency = 1.0F / std::pow(static_cast<float>(theta), power);
    const float wavelength = 2 * std::numbers::pi_v<float> / frequency;
    if (wavelength < high_wavelength) {
      out.push_back(1);
    } else if (wavelength > low_wavelength) {
      out.push_back(factor);
    } else {
      const float smooth = (original / wavelength - low) / (high - low);
      out.push_back(1 / ((1 - smooth) / factor + smooth));
    }
  }
  return out;
}

class RopeReader {
 public:
  RopeReader(FolderConfig& config, const json& object, std::string_view name)
      : config_(config), fields_(object, fmt::format("{}: {}", config.fields.origin(), name)) {}

  // `theta` where the object does not say it. Whatever is wrong is in config.fields afterwards.
  void run(double theta) {
    theta_ = fields_.number("rope_theta").value_or(theta);
    read_part();
    read_scaling(fields_.text("rope_type").value_or(fields_.text("type").value_or("default")));
    for (const std::string& field : fields_.unread()) fields_.refuse(field);
    config_.fields.fail(fields_.status());
  }

  double theta() const { return theta_; }

 private:
  // They differ in the positions of images, and text has none; but llama.cpp wants them.
  void write_sections() {
    std::vector<int32_t> sections;
    for (const int64_t pairs : fields_.integers("mrope_section").value_or(std::vector<int64_t>{11, 11, 10})) {
      sections.push_back(static_cast<int32_t>(std::clamp<int64_t>(pairs, 0, INT32_MAX)));
    }
    sections.resize(4);
    config_.out.set_i32s(config_.key("rope.dimension_sections"), sections);
    fields_.ignore({"mrope_interleaved"});
  }
  void read_scaling(const std::string& type) {
    fields_.ignore({"type", "max_position_embeddings", "finetuned"});
    if (is_qwen35()) write_sections();
    // Files of Phi-3 have had three names for it.
    const bool is_phi3 = config_.architecture.name == "phi3";
    if (type == "default") return;
    if (type == "longrope" || (is_phi3 && (type == "su" || type == "yarn"))) return read_long();
    if (type == "linear") {
      config_.out.set_string(config_.key("rope.scaling.type"), "linear");
      return config_.out.set_f32(config_.key("rope.scaling.factor"), positive("factor"));
    }
    if (type == "llama3") return read_llama3();
    if (type == "yarn") return read_yarn();
    fields_.fail(error(ErrorCode::kUnsupported,
                       "{}: scaling of type {} is not supported, only linear, llama3, yarn and longrope; use "
                       "another model",
                       fields_.origin(), gguf_quoted(type)));
  }

  bool is_qwen35() const { return config_.architecture.name.starts_with("qwen35"); }

  float positive(std::string_view field) {
    const std::optional<double> value = fields_.number(field);
    if (value && *value > 0 && *value <= 1e6) return static_cast<float>(*value);
    fields_.unsupported(field, "where a number above 0 is needed");
    return 1;
  }

  // A part of a head only, of which only some attentions know.
  void read_part() {
    dim_ = config_.head_dim;
    auto part = fields_.number("partial_rotary_factor");
    if (const auto outer = config_.fields.number("partial_rotary_factor"); !part) part = outer;
    if (!part) part = config_.architecture.defaults.partial_rotary_factor;
    if (*part == 1) return;
    const std::string_view name = config_.architecture.name;
    const bool knows = name == "phi3" || name == "glm4" || name == "qwen3next" || is_qwen35();
    if (!knows || !(*part > 0 && *part < 1)) {
      config_.fields.fail(
          error(ErrorCode::kUnsupported,
                "{}: 'partial_rotary_factor' is {}, which is not supported; use another model",
                config_.fields.origin(), *part));
      return;
    }
    dim_ = static_cast<int64_t>(static_cast<double>(config_.head_dim) * *part);
    config_.out.set_u32(config_.key("rope.dimension_count"), static_cast<uint32_t>(dim_));
  }

  // How long the contexts were before scaling.
  int64_t original() {
    auto out = config_.fields.integer("original_max_position_embeddings", 1, kMostContext);
    if (const auto inner = fields_.integer("original_max_position_embeddings", 1, kMostContext); !out)
      out = inner;
    return out.value_or(config_.context);
  }
  double factor(int64_t original) {
    if (!fields_.has("factor")) return static_cast<double>(config_.context) / static_cast<double>(original);
    return positive("factor");
  }

  void read_llama3() {
    const auto context = static_cast<float>(original());
    const float factor = positive("factor"), low = positive("low_freq_factor"),
                high = positive("high_freq_factor");
    if (low == high) fields_.unsupported("high_freq_factor", "which must not be low_freq_factor");
    if (!fields_.status().ok()) return;
    config_.out.add_vector("rope_freqs.weight", llama3_divisors(dim_, theta_, factor, low, high, context));
    // The divisors say all.
    config_.out.set_string(config_.key("rope.scaling.type"), "none");
  }

  void read_yarn() {
    const int64_t context = original();
    const double scale = factor(context);
    GgufAssembler& out = config_.out;
    out.set_string(config_.key("rope.scaling.type"), "yarn");
    out.set_f32(config_.key("rope.scaling.factor"), static_cast<float>(scale));
    out.set_u32(config_.key("rope.scaling.original_context_length"), static_cast<uint32_t>(context));
    if (fields_.has("beta_fast"))
      out.set_f32(config_.key("rope.scaling.yarn_beta_fast"), positive("beta_fast"));
    if (fields_.has("beta_slow"))
      out.set_f32(config_.key("rope.scaling.yarn_beta_slow"), positive("beta_slow"));
    // GGUF files leave it to the architecture's name.
    out.set_bool("kvasir.yarn_truncate", fields_.flag("truncate", true));
    if (config_.architecture.name == "mistral3") {
      out.set_f32(config_.key("attention.temperature_scale"),
                  static_cast<float>(fields_.number("llama_4_scaling_beta").value_or(0)));
    }
    write_yarn_factor(scale);
  }

  // The factor of cosines and sines. GGUF's attn_factor multiplies YaRN's own factor (section 3.4); files of
  // Ministral 3 have another key, which says that YaRN's own factor is divided by itself.
  void write_yarn_factor(double scale) {
    const auto magnitude = [scale](double times) {
      return scale <= 1 ? 1 : 0.1 * times * std::log(scale) + 1;
    };
    const double scaled = fields_.number("mscale").value_or(0),
                 all = fields_.number("mscale_all_dim").value_or(0);
    // Queries and keys are longer instead, by the second one each.
    if (config_.kv_rank > 0 && all != 0) {
      if (scaled != all || fields_.has("attention_factor")) {
        fields_.unsupported("mscale",
                            "which is supported only where it is mscale_all_dim, without attention_factor");
      }
      return config_.out.set_f32(config_.key("rope.scaling.yarn_log_multiplier"),
                                 static_cast<float>(0.1 * all));
    }
    double whole = magnitude(1);
    if (fields_.has("attention_factor")) {
      whole = positive("attention_factor");
    } else if (scaled != 0 && all != 0) {
      if (scaled == 1 && all == 1 && config_.architecture.name == "mistral3") {
        return config_.out.set_f32(config_.key("rope.scaling.yarn_log_multiplier"), 1);
      }
      whole = magnitude(scaled) / magnitude(all);
    }
    const double on_top = whole / magnitude(1);
    if (!(on_top > 0 && on_top <= 1e3)) {
      fields_.unsupported("attention_factor", fmt::format("which makes a factor of {}", whole));
    }
    if (on_top != 1) config_.out.set_f32(config_.key("rope.scaling.attn_factor"), static_cast<float>(on_top));
  }

  void read_long() {
    const int64_t context = original();
    const double scale = factor(context);
    for (const auto& [field, tensor] : {std::pair{"short_factor", "rope_factors_short.weight"},
                                        {"long_factor", "rope_factors_long.weight"}}) {
      const auto divisors = fields_.numbers(field);
      if (!divisors || static_cast<int64_t>(divisors->size()) != dim_ / 2) {
        fields_.fail(error(ErrorCode::kCorrupt, "{}: '{}' is no list of {} numbers; fetch the file again",
                           fields_.origin(), field, dim_ / 2));
        return;
      }
      config_.out.add_vector(tensor, *divisors);
    }
    const double computed =
        scale <= 1 ? 1 : std::sqrt(1 + std::log(scale) / std::log(static_cast<double>(context)));
    const double attention = fields_.number("attention_factor").value_or(computed);
    config_.out.set_f32(config_.key("rope.scaling.attn_factor"), static_cast<float>(attention));
    config_.out.set_u32(config_.key("rope.scaling.original_context_length"), static_cast<uint32_t>(context));
  }

  FolderConfig& config_;
  ConfigFields fields_;
  double theta_ = 0;
  int64_t dim_ = 0;
};

}  // namespace

void FolderConfig::read_rope() {
  const bool is_new = fields.has("rope_parameters");
  const std::string_view field = is_new ? "rope_parameters" : "rope_scaling";
  const double theta = fields.number("rope_theta").value_or(architecture.defaults.rope_theta);
  RopeReader rope(*this, fields.object(field), field);
  rope.run(theta);
  out.set_f32(key("rope.freq_base"), static_cast<float>(rope.theta()));
  if (!architecture.turns_neighbours) out.set_bool("kvasir.split_pairs", true);
}

void FolderConfig::read_two_ropes() {
  const json& both = fields.object("rope_parameters");
  const bool nested = both.contains("full_attention") || both.contains("sliding_attention");
  double global = fields.number("rope_theta").value_or(architecture.defaults.rope_theta);
  double local = fields.number("rope_local_base_freq").value_or(10000);
  if (!nested) {
    // Before transformers 5, and in files that it has not nested.
    const std::string_view field = fields.has("rope_parameters") ? "rope_parameters" : "rope_scaling";
    RopeReader rope(*this, fields.object(field), field);
    rope.run(global);
    global = rope.theta();
  } else {
    ConfigFields inner(both, fmt::format("{}: rope_parameters", fields.origin()));
    RopeReader full(*this, inner.object("full_attention"), "rope_parameters: full_attention");
    full.run(global);
    global = full.theta();
    ConfigFields sliding(inner.object("sliding_attention"),
                         fmt::format("{}: rope_parameters: sliding_attention", fields.origin()));
    local = sliding.number("rope_theta").value_or(local);
    if (const auto type = sliding.text("rope_type"); type && *type != "default") {
      sliding.unsupported("rope_type", "which is not supported; use another model");
    }
    for (const std::string& field : sliding.unread()) sliding.refuse(field);
    fields.fail(inner.status());
    fields.fail(sliding.status());
  }
  out.set_f32(key("rope.freq_base"), static_cast<float>(global));
  out.set_f32(key("rope.freq_base_swa"), static_cast<float>(local));
  out.set_bool("kvasir.split_pairs", true);
}

}  // namespace kvasir
