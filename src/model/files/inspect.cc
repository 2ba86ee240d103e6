// The text of `kvasir inspect`.
#include "model/files/inspect.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>

#include "base/units.h"
#include "model/files/form_bytes.h"

namespace kvasir {
namespace {

struct TypeUse {
  uint64_t tensors = 0;
  uint64_t values = 0;
  uint64_t bytes = 0;
};

template <typename... Args>
void add_line(std::string& out, std::string_view label, fmt::format_string<Args...> format, Args&&... args) {
  fmt::format_to(std::back_inserter(out), "{:<22}", fmt::format("{}:", label));
  fmt::format_to(std::back_inserter(out), format, std::forward<Args>(args)...);
  out += '\n';
}

// 134515008 -> "134.5 M".
std::string format_count(uint64_t count) {
  const auto number = static_cast<double>(count);
  if (number >= 1e9) return fmt::format("{:.2f} G", number * 1e-9);
  if (number >= 1e6) return fmt::format("{:.1f} M", number * 1e-6);
  if (number >= 1e3) return fmt::format("{:.1f} k", number * 1e-3);
  return fmt::format("{}", count);
}

// "base 500000 over 64 of 128 values, a divisor for each frequency, in 3 of 4 layers".
std::string describe_rope(const ModelSpec& spec, size_t index) {
  const Rope& rope = spec.ropes[index];
  std::string out = fmt::format("base {}", rope.base);
  const auto turns = [index](const LayerSpec& layer) { return layer.rope == static_cast<int32_t>(index); };
  const auto first = std::find_if(spec.layer_specs.begin(), spec.layer_specs.end(), turns);
  const int32_t head_dim = first == spec.layer_specs.end() ? spec.head_dim : spec.heads_of(*first).head_dim;
  if (rope.dim != head_dim && !spec.is_latent())
    out += fmt::format(" over {} of {} values", rope.dim, head_dim);
  if (rope.linear_factor != 1) out += fmt::format(", positions divided by {}", rope.linear_factor);
  if (!rope.divisors.empty()) out += ", a divisor for each frequency";
  if (!rope.long_divisors.empty())
    out += fmt::format(", another one beyond {} tokens", rope.original_context);
  const auto layers = std::count_if(spec.layer_specs.begin(), spec.layer_specs.end(), turns);
  if (layers != spec.layers) out += fmt::format(", in {} of {} layers", layers, spec.layers);
  return out;
}

std::string describe_norms(const ModelFile& model) {
  const ModelSpec& c = model.spec();
  const LayerWeights& first = model.weights().layers.front();
  std::string out =
      fmt::format("{}, epsilon {}", c.norm == NormKind::kRms ? "RMSNorm" : "LayerNorm", c.norm_epsilon);
  if (first.attn_post_norm.present()) {
    out += first.attn_norm.present() ? ", before and behind" : ", behind";
    out += " attention and feed-forward";
  }
  if (c.qk_norm != QkNorm::kNone) {
    out += fmt::format("; of Q and K by {}", c.qk_norm == QkNorm::kRow ? "row" : "head");
  }
  if (c.v_norm) out += "; of V by head, without weights";
  return out;
}

// ", in 5 of 6 layers 4 of 256 values": KV heads of layers that have others than the model's; of the first
// kind of them.
std::string describe_other_heads(const ModelSpec& c) {
  const HeadShape usual = {c.heads, c.kv_heads, c.head_dim};
  const auto is_other = [&](const LayerSpec& layer) { return c.heads_of(layer) != usual; };
  const auto first = std::find_if(c.layer_specs.begin(), c.layer_specs.end(), is_other);
  if (first == c.layer_specs.end()) return {};
  const HeadShape other = c.heads_of(*first);
  const auto layers = std::count_if(c.layer_specs.begin(), c.layer_specs.end(),
                                    [&](const LayerSpec& layer) { return c.heads_of(layer) == other; });
  return fmt::format(", in {} of {} layers {} of {} values", layers, c.layers, other.kv_heads,
                     other.head_dim);
}

std::string_view activation_name(const ModelSpec& c) {
  switch (c.activation) {
    case Activation::kSilu:
      return c.gated ? "SwiGLU" : "SiLU";
    case Activation::kGelu:
      return c.gated ? "GeGLU" : "GELU";
    case Activation::kRelu:
      return c.gated ? "ReGLU" : "ReLU";
    case Activation::kClampedSwiglu:
      return "SwiGLU with limits";
  }
  return "";
}

// "4 of 16 of 96, in 2 of 3 layers, by sigmoid, from 2 of 4 groups, and a shared one of 192".
std::string describe_experts(const ModelSpec& c) {
  const ExpertSpec& e = c.experts;
  std::string out = fmt::format("{} of {} of {}", e.used, e.count, e.ffn_dim);
  const auto layers =
      std::count_if(c.layer_specs.begin(), c.layer_specs.end(), [](const LayerSpec& l) { return l.experts; });
  if (layers != c.layers) out += fmt::format(", in {} of {} layers", layers, c.layers);
  if (e.gating == Gating::kSigmoid) out += ", by sigmoid";
  if (e.groups > 1) out += fmt::format(", from {} of {} groups", e.groups_used, e.groups);
  if (e.shared_ffn_dim > 0) out += fmt::format(", and a shared one of {}", e.shared_ffn_dim);
  return out;
}

// What multiplies or bounds values, where a model has that.
void add_factors(std::string& out, const ModelSpec& c) {
  std::string text;
  const auto add = [&text](std::string_view what, float value, float none) {
    if (value != none) text += fmt::format("{}{} {}", text.empty() ? "" : ", ", what, value);
  };
  add("embedding times", c.embedding_scale, 1);
  add("residuals times", c.residual_scale, 1);
  add("logits times", c.logit_scale, 1);
  add("scores capped at", c.score_cap, 0);
  add("logits capped at", c.logit_cap, 0);
  if (!text.empty()) add_line(out, "factors", "{}", text);
}

void add_shape(std::string& out, const ModelFile& model) {
  const ModelSpec& c = model.spec();
  const std::string_view attention = c.kv_heads == c.heads ? "MHA" : (c.kv_heads == 1 ? "MQA" : "GQA");
  add_line(out, "layers", "{}", c.layers);
  add_line(out, "width", "{} (feed-forward {}, {}{})", c.dim, c.ffn_dim, activation_name(c),
           c.parallel ? ", beside attention" : "");
  if (c.has_experts()) add_line(out, "experts", "{}", describe_experts(c));
  if (c.is_latent()) {
    add_line(out, "attention",
             "{} query heads of {} + {} values over latent rows of {} + {} (MLA), values of {}", c.heads,
             c.latent.nope_dim, c.latent.rope_dim, c.latent.rank, c.latent.rope_dim, c.latent.value_dim);
  } else {
    add_line(out, "attention", "{} query heads, {} KV heads of {} values ({}){}{}{}", c.heads, c.kv_heads,
             c.head_dim, attention, describe_other_heads(c),
             model.weights().layers.front().q_bias.empty() ? "" : ", with biases",
             c.sinks ? ", with sinks" : "");
  }
  if (c.is_recurrent()) {
    const RecurrentSpec& r = c.recurrent;
    add_line(out, "recurrent layers",
             "{} of {}: gated delta rule, {} heads of {} keys, {} of {} values, convolution over {} tokens",
             c.layers - c.attention_layers(), c.layers, r.key_heads, r.key_dim, r.value_heads, r.value_dim,
             r.taps);
  }
  add_line(out, "context", "{} tokens", c.context_length);
  const std::string windows = describe_windows(c, c.context_length);
  if (!windows.empty()) add_line(out, "windows", "{}", windows);
  for (size_t i = 0; i < c.ropes.size(); ++i) add_line(out, "RoPE", "{}", describe_rope(c, i));
  if (c.learned_positions) add_line(out, "positions", "learned");
  if (c.temperature_scale != 0) {
    add_line(out, "queries", "grow by {} · ln(1 + {} / {}){}", c.temperature_scale,
             c.temperature_without_rope ? "(position + 1)" : "position", c.temperature_interval,
             c.temperature_without_rope ? ", in layers without RoPE" : "");
  }
  add_line(out, "norm", "{}", describe_norms(model));
  add_factors(out, c);
  add_line(out, "output matrix", "{}", c.tied_embeddings ? "the embedding (tied)" : "its own");
}

void add_weights(std::string& out, const Gguf& file) {
  std::map<std::string_view, TypeUse> by_type;
  TypeUse all;
  for (const GgufTensor& tensor : file.tensors()) {
    for (TypeUse* use : {&by_type[tensor.type->name], &all}) {
      use->tensors += 1;
      use->values += tensor.values();
      use->bytes += tensor.bytes();
    }
  }
  add_line(out, "parameters", "{} ({})", format_count(all.values), all.values);
  add_line(out, "weights", "{} tensors, {}", all.tensors, format_bytes(all.bytes));
  for (const auto& [name, use] : by_type) {
    add_line(out, fmt::format("  {}", name), "{} {}, {} values, {}", use.tensors,
             use.tensors == 1 ? "tensor" : "tensors", format_count(use.values), format_bytes(use.bytes));
  }
}

// What a token takes in the cache, by form, and where X is the smaller one.
void add_cache(std::string& out, const ModelFile& model) {
  const ModelSpec& config = model.spec();
  for (ops::KvType type : ops::kKvTypes) {
    add_line(out, fmt::format("KV per token, {}", ops::kv_type_name(type)), "{}",
             format_bytes(config.kv_bytes_per_token(type)));
  }
  if (config.is_recurrent()) {
    add_line(out, "states of a sequence", "{}, whatever its length", format_bytes(config.state_bytes()));
    add_line(out, "hidden cache", "there is no X in layers with states");
    return;
  }
  if (config.is_latent()) {
    add_line(out, "hidden cache", "there is no X: rows of latent attention are smaller");
    return;
  }
  const FormBytes forms = form_bytes(config, x_type_of(model.weights(), ops::ActivationMode::kAuto));
  std::string ratios, pays, not_pays;
  for (ops::KvType type : ops::kKvTypes) {
    const double ratio = x_to_kv(config, forms, type);
    const char* name = ops::kv_type_name(type);
    ratios += fmt::format("{}{:.2f} of {}", ratios.empty() ? "" : ", ", ratio, name);
    std::string& list = ratio < 1 ? pays : not_pays;
    list += fmt::format("{}{}", list.empty() ? "" : " or ", name);
  }
  add_line(out, "X per token", "{} ({}: {})", format_bytes(forms.x_per_token),
           ops::activation_type_name(forms.x_type), ratios);
  std::string verdict;
  if (!pays.empty()) verdict += fmt::format("X pays: with K and V in {}", pays);
  if (!not_pays.empty()) {
    verdict += fmt::format("{}X does not pay, and is never chosen: it takes no less than K and V in {}",
                           verdict.empty() ? "" : "; ", not_pays);
  }
  add_line(out, "hidden cache", "{}", verdict);
}

void add_folder_tokenizer(std::string& out, const ModelFile& model) {
  const Result<TokenizerData> data = model.read_tokenizer();
  if (!data.ok()) {
    add_line(out, "tokenizer", "none that can be read: {}", data.status().message());
    return;
  }
  const auto kind = data->model == TokenizerModel::kByteBpe ? "BPE of bytes" : "BPE of characters";
  add_line(out, "tokenizer", "{} tokens, {} merges, {}", data->tokens.size(), data->merges.size(), kind);
  add_line(out, "chat template", "{}", data->chat_template ? "yes" : "no");
}

void add_tokenizer(std::string& out, const ModelFile& model) {
  if (model.is_folder()) return add_folder_tokenizer(out, model);
  const Gguf& file = model.gguf();
  const GgufValue* tokens = file.find("tokenizer.ggml.tokens");
  if (tokens == nullptr) {
    add_line(out, "tokenizer", "none in the file");
    return;
  }
  const auto text = [&file](std::string_view key) {
    auto value = file.get_string(key);
    return value.ok() ? gguf_quoted(*value) : std::string("not given");
  };
  const GgufValue* merges = file.find("tokenizer.ggml.merges");
  add_line(out, "tokenizer", "{} tokens, {} merges, model {}, pre {}", tokens->count,
           merges == nullptr ? 0 : merges->count, text("tokenizer.ggml.model"), text("tokenizer.ggml.pre"));
  add_line(out, "chat template", "{}", file.has("tokenizer.chat_template") ? "yes" : "no");
}

// What it is read from.
std::string describe_source(const ModelFile& model) {
  const size_t files = model.weight_files();
  const std::string count = fmt::format("{} {}", files, files == 1 ? "file" : "files");
  if (model.is_folder()) return fmt::format("Hugging Face folder, {} of weights", count);
  return fmt::format("GGUF version {}{}", model.gguf().version(), files == 1 ? "" : " in " + count);
}

}  // namespace

std::string describe_windows(const ModelSpec& spec, int64_t context) {
  int64_t windowed = 0, window = 0, read = 0;
  for (const LayerSpec& layer : spec.layer_specs) {
    const bool has = layer.window > 0 && layer.window < context;
    windowed += has ? 1 : 0;
    if (has) window = layer.window;
    read += has ? layer.window : context;
  }
  if (windowed == 0) return "";
  return fmt::format(
      "{} of {} layers attend to the last {} tokens only; of K and V of {} tokens {:.0f} % are "
      "read and kept, in whole blocks; a GPU keeps all",
      windowed, spec.layers, window, context,
      100.0 * static_cast<double>(read) / static_cast<double>(spec.layers * context));
}

std::string describe_model(const ModelFile& model) {
  const ModelSpec& config = model.spec();
  std::string out;
  add_line(out, model.is_folder() ? "folder" : "file", "{} ({}, {})", model.path(),
           format_bytes(model.file_bytes()), describe_source(model));
  add_line(out, "name", "{}", config.name.empty() ? "not given" : gguf_quoted(config.name));
  add_line(out, "architecture", "{}", config.architecture);
  add_shape(out, model);
  add_weights(out, model.gguf());
  add_cache(out, model);
  add_tokenizer(out, model);
  const std::string sampling = model.sampling_defaults().text();
  add_line(out, "sampling", "{}", sampling.empty() ? "not given" : sampling);
  add_line(out, "fingerprint", "{}", to_hex(model.fingerprint()));
  for (const std::string& warning : model.warnings()) add_line(out, "warning", "{}", warning);
  return out;
}

}  // namespace kvasir
