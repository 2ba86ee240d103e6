// The names of Hugging Face are said here a second time, beside those of src/model/folders.
#include "support/tiny_folder.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <utility>

#include "base/check.h"
#include "model/files/model_file.h"
#include "ops/det_math.h"
#include "ops/numerics.h"
#include "support/tiny_folder_config.h"

namespace kvasir::test {
namespace {

using nlohmann::json;

std::string shared_expert(const std::string& architecture) {
  return architecture == "dots1" || architecture == "deepseek2" ? "shared_experts" : "shared_expert";
}

bool is_qwen35(const std::string& architecture) {
  return architecture.starts_with("qwen35");
}

// In the names of GGUF: what the architecture calls them.
std::string their_stem(const std::string& architecture, const std::string& ours) {
  const bool has_both_norms = architecture.starts_with("gemma"), is_glm4 = architecture == "glm4";
  const std::string mlp = architecture == "llama4" ? "feed_forward." : "mlp.";
  const std::map<std::string, std::string> opt = {{"attn_q", "self_attn.q_proj"},
                                                  {"attn_k", "self_attn.k_proj"},
                                                  {"attn_v", "self_attn.v_proj"},
                                                  {"attn_output", "self_attn.out_proj"},
                                                  {"ffn_up", "fc1"},
                                                  {"ffn_down", "fc2"},
                                                  {"attn_norm", "self_attn_layer_norm"},
                                                  {"ffn_norm", "final_layer_norm"}};
  const std::map<std::string, std::string> others = {
      {"attn_q", "self_attn.q_proj"},
      {"attn_k", "self_attn.k_proj"},
      {"attn_v", "self_attn.v_proj"},
      {"attn_qkv", is_qwen35(architecture) ? "linear_attn.in_proj_qkv" : "self_attn.qkv_proj"},
      {"attn_gate", "linear_attn.in_proj_z"},
      {"attn_output", "self_attn.o_proj"},
      {"attn_q_norm", "self_attn.q_norm"},
      {"attn_k_norm", "self_attn.k_norm"},
      {"attn_q_a", "self_attn.q_a_proj"},
      {"attn_q_a_norm", "self_attn.q_a_layernorm"},
      {"attn_q_b", "self_attn.q_b_proj"},
      {"attn_kv_a_mqa", "self_attn.kv_a_proj_with_mqa"},
      {"attn_kv_a_norm", "self_attn.kv_a_layernorm"},
      {"ffn_gate", mlp + "gate_proj"},
      {"ffn_up", is_glm4 || architecture == "phi3" ? "mlp.gate_up_proj" : mlp + "up_proj"},
      {"ffn_down", mlp + "down_proj"},
      {"attn_norm", "input_layernorm"},
      {"ffn_norm", has_both_norms ? "pre_feedforward_layernorm" : "post_attention_layernorm"},
      {"post_attention_norm", is_glm4 ? "post_self_attn_layernorm" : "post_attention_layernorm"},
      {"post_ffw_norm", is_glm4 ? "post_mlp_layernorm" : "post_feedforward_layernorm"},
      {"ssm_alpha", "linear_attn.in_proj_a"},
      {"ssm_beta", "linear_attn.in_proj_b"},
      {"ssm_ba", "linear_attn.in_proj_ba"},
      {"ssm_conv1d", "linear_attn.conv1d"},
      {"ssm_norm", "linear_attn.norm"},
      {"ssm_out", "linear_attn.out_proj"},
      {"ffn_gate_inp", architecture == "llama"        ? "block_sparse_moe.gate"
                       : architecture == "granitemoe" ? "block_sparse_moe.router.layer"
                       : architecture == "gpt-oss"    ? "mlp.router"
                       : architecture == "llama4"     ? "feed_forward.router"
                                                      : "mlp.gate"},
      {"ffn_gate_inp_shexp", "mlp.shared_expert_gate"},
      {"ffn_gate_shexp", mlp + shared_expert(architecture) + ".gate_proj"},
      {"ffn_up_shexp", mlp + shared_expert(architecture) + ".up_proj"},
      {"ffn_down_shexp", architecture == "granitemoe" ? "shared_mlp.output_linear"
                                                      : mlp + shared_expert(architecture) + ".down_proj"},
      {"ffn_down_exps", "block_sparse_moe.output_linear"}};
  return (architecture == "opt" ? opt : others).at(ours);
}

std::string their_name(const std::string& architecture, const std::string& ours) {
  const std::string prefix = architecture == "opt" ? "model.decoder." : "model.";
  if (ours == "token_embd.weight") return prefix + "embed_tokens.weight";
  if (ours == "position_embd.weight") return prefix + "embed_positions.weight";
  if (ours == "output.weight") return "lm_head.weight";
  const std::string last = architecture == "opt" ? "final_layer_norm" : "norm";
  if (ours.starts_with("output_norm.")) return prefix + last + ours.substr(ours.find('.'));
  const size_t layer_end = ours.find('.', 4), stem_end = ours.find('.', layer_end + 1);
  for (const auto& [ending, theirs] : {std::pair{"exp_probs_b.bias", ".mlp.gate.e_score_correction_bias"},
                                       {"layer_output_scale.weight", ".layer_scalar"},
                                       {"attn_sinks.weight", ".self_attn.sinks"},
                                       {"ssm_a", ".linear_attn.A_log"},
                                       {"ssm_dt.bias", ".linear_attn.dt_bias"},
                                       {"ffn_down_exps.bias", ".mlp.experts.down_proj_bias"}}) {
    if (ours.ends_with(ending)) return prefix + "layers" + ours.substr(3, layer_end - 3) + theirs;
  }
  return prefix + "layers" + ours.substr(3, layer_end - 3) + "." +
         their_stem(architecture, ours.substr(layer_end + 1, stem_end - layer_end - 1)) +
         ours.substr(stem_end);
}

// GGUF files of these have the rows of Q and K in the order of RoPE's pairs.
bool has_pairs(const std::string& architecture) {
  constexpr std::array<std::string_view, 5> kNames = {"llama", "mistral3", "granite", "smollm3",
                                                      "granitemoe"};
  return std::find(kNames.begin(), kNames.end(), architecture) != kNames.end();
}

// Row 2i of each head becomes row i, row 2i + 1 row i + half.
std::vector<std::byte> split_rows(std::span<const std::byte> data, size_t head_dim, size_t rows) {
  const size_t row = data.size() / rows;
  std::vector<std::byte> out(data.size());
  for (size_t r = 0; r < rows; ++r) {
    const size_t in_head = r % head_dim;
    const size_t to = r - in_head + in_head / 2 + in_head % 2 * (head_dim / 2);
    std::memcpy(out.data() + to * row, data.data() + r * row, row);
  }
  return out;
}

std::vector<std::byte> less_one(std::span<const std::byte> data) {
  std::vector<std::byte> out(data.begin(), data.end());
  for (size_t i = 0; i < out.size(); i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, out.data() + i, sizeof(value));
    value -= 1;
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
  return out;
}

// The logarithm of what is stored negated: it has the few bits of BF16.
std::vector<std::byte> logs_of(std::span<const std::byte> data) {
  std::vector<std::byte> out(data.begin(), data.end());
  for (size_t i = 0; i < out.size(); i += sizeof(float)) {
    float value = 0;
    std::memcpy(&value, out.data() + i, sizeof(value));
    value = ops::bf16_to_f32(ops::f32_to_bf16(static_cast<float>(ops::det_log(-static_cast<double>(value)))));
    std::memcpy(out.data() + i, &value, sizeof(value));
  }
  return out;
}

// By key head: its queries' rows, its keys', its values', its z's.
void add_qkvz(TinyFolder& out, const TinyLlamaShape& s, const GgufTensor& qkv, const GgufTensor& z) {
  const auto heads = static_cast<size_t>(s.key_heads), keys = static_cast<size_t>(s.key_dim),
             values = static_cast<size_t>(s.value_heads / s.key_heads * s.value_dim);
  const size_t row = qkv.data.size() / qkv.shape[1];
  FolderTensor& to = out.tensors.emplace_back();
  to.name = "model.layers" + std::string(qkv.name.substr(3, qkv.name.find('.', 4) - 3)) +
            ".linear_attn.in_proj_qkvz.weight";
  to.type = qkv.type->name;
  to.shape = {qkv.shape[1] + z.shape[1], qkv.shape[0]};
  const auto take = [&](const GgufTensor& from, size_t first, size_t rows) {
    const auto part = from.data.subspan(first * row, rows * row);
    to.data.insert(to.data.end(), part.begin(), part.end());
  };
  for (size_t h = 0; h < heads; ++h) {
    take(qkv, h * keys, keys);
    take(qkv, (heads + h) * keys, keys);
    take(qkv, 2 * heads * keys + h * values, values);
    take(z, h * values, values);
  }
}

// Value heads by turns become those of each key head side by side: `of` bytes of each, in each of `rows`
// rows, behind the first `before` bytes of a row.
std::vector<std::byte> side_by_side(const TinyLlamaShape& s, std::span<const std::byte> data, size_t rows,
                                    size_t before, size_t of) {
  const auto groups = static_cast<size_t>(s.key_heads), heads = static_cast<size_t>(s.value_heads),
             share = heads / groups, row = data.size() / rows;
  KV_CHECK(row == before + heads * of, "{} bytes of {} heads", row, heads);
  std::vector<std::byte> out;
  for (size_t r = 0; r < rows; ++r) {
    const auto all = data.subspan(r * row, row), first = all.first(before);
    out.insert(out.end(), first.begin(), first.end());
    for (size_t h = 0; h < heads; ++h) {
      const auto one = all.subspan(before + (h % share * groups + h / share) * of, of);
      out.insert(out.end(), one.begin(), one.end());
    }
  }
  return out;
}

std::vector<std::byte> value_heads_of_folder(const TinyLlamaShape& s, const GgufTensor& tensor) {
  const auto dim = static_cast<size_t>(s.value_dim), keys = static_cast<size_t>(2 * s.key_heads * s.key_dim);
  const size_t value = tensor.type->block_bytes, row = tensor.shape[0] * value;
  const auto is = [&tensor](std::string_view ending) { return tensor.name.ends_with(ending); };
  if (is("attn_qkv.weight") || is("ssm_conv1d.weight"))
    return side_by_side(s, tensor.data, 1, keys * row, dim * row);
  if (is("attn_gate.weight")) return side_by_side(s, tensor.data, 1, 0, dim * row);
  if (is("ssm_alpha.weight") || is("ssm_beta.weight")) return side_by_side(s, tensor.data, 1, 0, row);
  if (is("ssm_a") || is("ssm_dt.bias")) return side_by_side(s, tensor.data, 1, 0, value);
  if (is("ssm_out.weight")) return side_by_side(s, tensor.data, tensor.shape[1], 0, dim * value);
  return {tensor.data.begin(), tensor.data.end()};
}

std::string tokenizer_of(int32_t vocab) {
  const TinyVocabulary words = make_tiny_vocabulary(vocab);
  json added = json::array(), ids = json::object();
  for (size_t i = 0; i < words.tokens.size(); ++i) {
    if (words.types[i] == 3) added.push_back({{"id", i}, {"content", words.tokens[i]}, {"special", true}});
    ids[words.tokens[i]] = i;
  }
  const json digits = {{"type", "Digits"}, {"individual_digits", true}};
  const json bytes = {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", true}};
  const json out = {{"added_tokens", added},
                    {"pre_tokenizer", {{"type", "Sequence"}, {"pretokenizers", {digits, bytes}}}},
                    {"model", {{"type", "BPE"}, {"vocab", ids}, {"merges", words.merges}}}};
  return out.dump();
}

void write_file(const std::filesystem::path& path, const void* data, size_t bytes) {
  std::ofstream out(path, std::ios::binary);
  out.write(static_cast<const char*>(data), static_cast<std::streamsize>(bytes));
  out.close();
  KV_CHECK(out.good(), "cannot write {}", path.string());
}

}  // namespace

std::vector<std::byte> safetensors_of(std::string_view header, std::span<const std::byte> data) {
  std::vector<std::byte> out;
  append<uint64_t>(out, header.size());
  for (char c : header) out.push_back(static_cast<std::byte>(c));
  out.insert(out.end(), data.begin(), data.end());
  return out;
}

std::vector<std::byte> safetensors_of(const std::vector<FolderTensor>& tensors) {
  json header = {{"__metadata__", {{"format", "pt"}}}};
  std::vector<std::byte> data;
  for (const FolderTensor& tensor : tensors) {
    const size_t begin = data.size();
    data.insert(data.end(), tensor.data.begin(), tensor.data.end());
    header[tensor.name] = {
        {"dtype", tensor.type}, {"shape", tensor.shape}, {"data_offsets", {begin, data.size()}}};
  }
  return safetensors_of(header.dump(), data);
}

FolderTensor& TinyFolder::tensor(std::string_view name) {
  for (FolderTensor& tensor : tensors) {
    if (tensor.name == name) return tensor;
  }
  KV_CHECK(false, "no tensor {}", name);
  return tensors.front();
}

void TinyFolder::edit(const std::string& file, std::string_view from, std::string_view to) {
  std::string& text = texts.at(file);
  const size_t place = text.find(from);
  KV_CHECK(place != std::string::npos && text.find(from, place + 1) == std::string::npos, "{}", from);
  text.replace(place, from.size(), to);
}

void TinyFolder::write(const std::string& path, size_t files) const {
  const std::filesystem::path folder(path);
  for (const auto& [name, text] : texts) write_file(folder / name, text.data(), text.size());
  json places = json::object();
  for (size_t f = 0; f < files; ++f) {
    std::vector<FolderTensor> part;
    const std::string name =
        files == 1 ? "model.safetensors" : fmt::format("model-{:05}-of-{:05}.safetensors", f + 1, files);
    for (size_t i = f; i < tensors.size(); i += files) {
      part.push_back(tensors[i]);
      places[tensors[i].name] = name;
    }
    const std::vector<std::byte> bytes = safetensors_of(part);
    write_file(folder / name, bytes.data(), bytes.size());
  }
  if (files == 1) return;
  const std::string index = json{{"weight_map", places}}.dump();
  write_file(folder / "model.safetensors.index.json", index.data(), index.size());
}

namespace {

std::string layer_of(std::string_view name) {
  return std::string(name.substr(4, name.find('.', 4) - 4));
}

// DeepSeek: of each head the columns of attn_k_b, then the rows of attn_v_b.
void add_kv_b(TinyFolder& out, const GgufTensor& k_b, const GgufTensor& v_b) {
  const uint64_t nope = k_b.shape[0], rank = k_b.shape[1], heads = k_b.shape[2], value = v_b.shape[1];
  const size_t bytes = k_b.type->block_bytes;
  FolderTensor& to = out.tensors.emplace_back();
  to.name = fmt::format("model.layers.{}.self_attn.kv_b_proj.weight", layer_of(k_b.name));
  to.type = k_b.type->name;
  to.shape = {heads * (nope + value), rank};
  for (uint64_t h = 0; h < heads; ++h) {
    for (uint64_t n = 0; n < nope; ++n) {
      for (uint64_t r = 0; r < rank; ++r) {
        const auto one = k_b.data.subspan(((h * rank + r) * nope + n) * bytes, bytes);
        to.data.insert(to.data.end(), one.begin(), one.end());
      }
    }
    const auto rows = v_b.data.subspan(h * value * rank * bytes, value * rank * bytes);
    to.data.insert(to.data.end(), rows.begin(), rows.end());
  }
}

// Of the tensor of all experts one for each.
void add_each_expert(TinyFolder& out, const std::string& architecture, const GgufTensor& tensor) {
  const bool mixtral = architecture == "llama";
  const std::string_view name = tensor.name;
  const bool gate = name.find("gate") != std::string_view::npos,
             up = name.find("up") != std::string_view::npos;
  const std::string role = mixtral ? (gate ? "w1"
                                      : up ? "w3"
                                           : "w2")
                                   : (gate ? "gate_proj"
                                      : up ? "up_proj"
                                           : "down_proj");
  const size_t bytes = tensor.data.size() / tensor.shape[2];
  for (uint64_t e = 0; e < tensor.shape[2]; ++e) {
    FolderTensor& to = out.tensors.emplace_back();
    to.name = fmt::format("model.layers.{}.{}.experts.{}.{}.weight", layer_of(name),
                          mixtral ? "block_sparse_moe" : "mlp", e, role);
    to.type = tensor.type->name;
    to.shape = {tensor.shape[1], tensor.shape[0]};
    const auto data = tensor.data.subspan(e * bytes, bytes);
    to.data.assign(data.begin(), data.end());
  }
}

// gpt-oss and Llama 4: outputs are columns. Several: theirs in one tensor, of gpt-oss by turns.
void add_columns(TinyFolder& out, const std::string& architecture, const std::string& role,
                 const std::vector<const GgufTensor*>& parts) {
  const GgufTensor& first = *parts[0];
  const size_t value = first.type->block_bytes, turns = parts.size();
  const uint64_t inputs = first.shape[0], outputs = first.shape[1], experts = first.shape[2];
  FolderTensor& to = out.tensors.emplace_back();
  const bool by_turns = architecture == "gpt-oss";
  to.name = fmt::format("model.layers.{}.{}.experts.{}", layer_of(first.name),
                        by_turns ? "mlp" : "feed_forward", role);
  to.type = first.type->name;
  to.shape = {experts, inputs, outputs * turns};
  to.data.resize(first.data.size() * turns);
  for (uint64_t e = 0; e < experts; ++e) {
    for (uint64_t o = 0; o < outputs * turns; ++o) {
      for (uint64_t i = 0; i < inputs; ++i) {
        const uint64_t part = by_turns ? o % turns : o / outputs, place = by_turns ? o / turns : o % outputs;
        const std::byte* from = parts[part]->data.data() + ((e * outputs + place) * inputs + i) * value;
        std::memcpy(to.data.data() + ((e * inputs + i) * outputs * turns + o) * value, from, value);
      }
    }
  }
}

// The same of MXFP4: outputs are rows of blocks, which have value 2i in the low half of byte i.
void add_mxfp4(TinyFolder& out, const std::string& role, const std::vector<const GgufTensor*>& parts) {
  const GgufTensor& first = *parts[0];
  const uint64_t blocks = first.shape[0] / 32, outputs = first.shape[1], experts = first.shape[2];
  const size_t turns = parts.size();
  FolderTensor codes, scales;
  const std::string name = fmt::format("model.layers.{}.mlp.experts.{}", layer_of(first.name), role);
  codes.name = name + "_blocks";
  scales.name = name + "_scales";
  codes.type = scales.type = "U8";
  scales.shape = {experts, outputs * turns, blocks};
  codes.shape = {experts, outputs * turns, blocks, 16};
  for (uint64_t row = 0; row < experts * outputs * turns; ++row) {
    const uint64_t e = row / (outputs * turns), o = row % (outputs * turns);
    const std::byte* from = parts[o % turns]->data.data() + (e * outputs + o / turns) * blocks * 17;
    for (uint64_t b = 0; b < blocks; ++b, from += 17) {
      scales.data.push_back(from[0]);
      const auto code = [from](size_t i) { return i < 16 ? from[1 + i] & std::byte{15} : from[i - 15] >> 4; };
      for (size_t i = 0; i < 32; i += 2) codes.data.push_back(code(i) | code(i + 1) << 4);
    }
  }
  out.tensors.push_back(std::move(codes));
  out.tensors.push_back(std::move(scales));
}

void add_outputs(TinyFolder& out, const std::string& architecture, const std::string& role,
                 const std::vector<const GgufTensor*>& parts) {
  if (parts[0]->type->name == "MXFP4") return add_mxfp4(out, role, parts);
  add_columns(out, architecture, role, parts);
}

// Biases of gate and up by turns.
void add_bias_by_turns(TinyFolder& out, const GgufTensor& gate, const GgufTensor& up) {
  FolderTensor& to = out.tensors.emplace_back();
  to.name = fmt::format("model.layers.{}.mlp.experts.gate_up_proj_bias", layer_of(gate.name));
  to.type = gate.type->name;
  to.shape = {gate.shape[1], 2 * gate.shape[0]};
  for (size_t i = 0; i < gate.data.size(); i += sizeof(float)) {
    for (const GgufTensor* part : {&gate, &up}) {
      const auto value = part->data.subspan(i, sizeof(float));
      to.data.insert(to.data.end(), value.begin(), value.end());
    }
  }
}

// True: it is of experts, and is there now.
bool add_stacked(TinyFolder& out, const std::string& architecture, const Gguf& file,
                 const GgufTensor& tensor) {
  const std::string name(tensor.name);
  const size_t stem = name.find("ffn_");
  if (name.find("_exps.") == std::string::npos || name.ends_with("ffn_down_exps.bias")) return false;
  if (name.find("ffn_up") != std::string::npos) return true;  // with gate
  if (name.find("ffn_down") != std::string::npos) {
    add_outputs(out, architecture, "down_proj", {&tensor});
    return true;
  }
  std::string up = name;
  const GgufTensor& other = *file.find_tensor(up.replace(stem + 4, 4, "up"));
  if (name.ends_with(".bias")) {
    add_bias_by_turns(out, tensor, other);
  } else {
    add_outputs(out, architecture, "gate_up_proj", {&tensor, &other});
  }
  return true;
}

// Granite: of each expert the rows of gate, then those of up.
void add_gate_and_up(TinyFolder& out, const GgufTensor& gate, const GgufTensor& up) {
  FolderTensor& to = out.tensors.emplace_back();
  const bool shared = gate.dimensions == 2;
  to.name = fmt::format("model.layers.{}.{}.input_linear.weight", layer_of(gate.name),
                        shared ? "shared_mlp" : "block_sparse_moe");
  to.type = gate.type->name;
  to.shape = {2 * gate.shape[1], gate.shape[0]};
  if (!shared) to.shape.insert(to.shape.begin(), gate.shape[2]);
  const size_t bytes = gate.data.size() / gate.shape[2];
  for (uint64_t e = 0; e < gate.shape[2]; ++e) {
    for (const GgufTensor* part : {&gate, &up}) {
      const auto data = part->data.subspan(e * bytes, bytes);
      to.data.insert(to.data.end(), data.begin(), data.end());
    }
  }
}

}  // namespace

TinyFolder make_tiny_folder(const TinyLlamaShape& shape, ops::WeightType type, uint64_t seed) {
  auto model = ModelFile::from_bytes(make_tiny_llama(shape, type, seed), "tiny.gguf");
  KV_CHECK(model.ok(), "{}", model.status().message());
  const std::string& architecture = shape.architecture;
  TinyFolder out;
  out.texts["config.json"] = tiny_folder_config(shape).dump();
  out.texts["tokenizer.json"] = tokenizer_of(shape.vocab);
  out.texts["tokenizer_config.json"] = json{
      {"bos_token", "<|im_start|>"},
      {"eos_token", "<|im_end|>"},
      {"unk_token", "<|endoftext|>"},
      {"add_bos_token", false},
      {"chat_template", kTinyChatTemplate}}.dump();
  for (const GgufTensor& tensor : (*model)->gguf().tensors()) {
    const std::string name(tensor.name);
    if (name == "rope_freqs.weight") continue;  // what the configuration says instead is up to the test
    const bool stacked = architecture == "gpt-oss" || architecture == "llama4";
    if (stacked && add_stacked(out, architecture, (*model)->gguf(), tensor)) continue;
    if (name.find("_exps.") != std::string::npos && architecture != "granitemoe" && !stacked) {
      add_each_expert(out, architecture, tensor);
      continue;
    }
    if (architecture == "granitemoe" && name.find("ffn_up_") != std::string::npos) continue;  // with gate
    if (architecture == "granitemoe" && name.find("ffn_gate_") != std::string::npos &&
        name.find("inp") == std::string::npos) {
      std::string up = name;
      add_gate_and_up(out, tensor, *(*model)->gguf().find_tensor(up.replace(up.find("gate"), 4, "up")));
      continue;
    }
    if (architecture == "qwen3next" && name.ends_with("attn_gate.weight")) continue;  // with attn_qkv
    if (architecture == "qwen3next" && name.ends_with("attn_qkv.weight")) {
      std::string gate = name;
      add_qkvz(out, shape, tensor,
               *(*model)->gguf().find_tensor(gate.replace(gate.find("attn_qkv"), 8, "attn_gate")));
      continue;
    }
    if (name.ends_with("attn_v_b.weight")) continue;  // with attn_k_b
    if (name.ends_with("attn_k_b.weight")) {
      std::string values = name;
      values.replace(values.find("attn_k_b"), 8, "attn_v_b");
      add_kv_b(out, tensor, *(*model)->gguf().find_tensor(values));
      continue;
    }
    FolderTensor& to = out.tensors.emplace_back();
    to.name = their_name(architecture, name);
    to.type = tensor.type->name;
    for (uint32_t d = tensor.dimensions; d-- > 0;) to.shape.push_back(tensor.shape[d]);
    if (name.ends_with("ffn_gate_inp_shexp.weight")) to.shape.insert(to.shape.begin(), 1);
    to.data.assign(tensor.data.begin(), tensor.data.end());
    if (is_qwen35(architecture)) to.data = value_heads_of_folder(shape, tensor);
    const bool of_rope = name.ends_with("attn_q.weight") || name.ends_with("attn_k.weight") ||
                         name.ends_with("attn_q.bias") || name.ends_with("attn_k.bias");
    if (of_rope && has_pairs(architecture)) {
      to.data = split_rows(tensor.data, static_cast<size_t>(shape.head_dim), to.shape[0]);
    }
    const bool norms_less_one = architecture == "gemma2" || architecture == "gemma3" || shape.key_heads > 0;
    if (norms_less_one && name.ends_with("_norm.weight") && !name.ends_with("ssm_norm.weight"))
      to.data = less_one(tensor.data);
    if (name.ends_with(".ssm_a")) to.data = logs_of(to.data);
    if (name.ends_with(".ssm_conv1d.weight")) to.shape.insert(to.shape.begin() + 1, 1);
  }
  return out;
}

FolderInMemory::FolderInMemory(const TinyFolder& folder)
    : texts_(folder.texts), weights_(safetensors_of(folder.tensors)) {}

FolderFiles FolderInMemory::files() const {
  FolderFiles out;
  out.path = "folder";
  const auto text = [this](const char* name) -> std::string_view {
    const auto found = texts_.find(name);
    return found == texts_.end() ? std::string_view() : found->second;
  };
  out.config = text("config.json");
  out.generation_config = text("generation_config.json");
  out.tokenizer = text("tokenizer.json");
  out.tokenizer_config = text("tokenizer_config.json");
  out.chat_template = text("chat_template.jinja");
  out.vocab = text("vocab.json");
  out.merges = text("merges.txt");
  out.pooling = text("1_Pooling/config.json");
  out.index = text("model.safetensors.index.json");
  out.weights.push_back({"model.safetensors", weights_});
  return out;
}

}  // namespace kvasir::test
