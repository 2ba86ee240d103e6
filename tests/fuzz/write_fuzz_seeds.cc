// Writes what the fuzzers start from, so that none of it need be kept twice in the repository: small model
// files, the chat templates and requests of the golden tests, and bodies of requests. One folder for each
// fuzzer.
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "sched/beliefs/length_predictors.h"
#include "support/quantized_folder.h"
#include "support/tiny_folder.h"
#include "support/tiny_llama.h"

namespace {

using nlohmann::json;

// Throws where the file cannot be written; main() says so.
void write(const std::filesystem::path& path, std::string_view bytes) {
  std::filesystem::create_directories(path.parent_path());
  std::ofstream out(path, std::ios::binary);
  out.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  out.close();
  if (!out) throw std::runtime_error(path.string() + ": cannot be written");
}

std::string_view text_of(const std::vector<std::byte>& bytes) {
  return {reinterpret_cast<const char*>(bytes.data()), bytes.size()};
}

// As small as there is one, of any architecture: bytes of weights are nothing to find faults in. Quantised
// types need a width of 32.
kvasir::test::TinyLlamaShape smallest(const std::string& architecture, int32_t width = 8) {
  kvasir::test::TinyLlamaShape shape;
  shape.architecture = architecture;
  shape.layers = 1;
  shape.dim = shape.head_dim = shape.ffn = width;
  shape.heads = shape.kv_heads = 1;
  shape.vocab = 259;
  shape.context = 64;
  if (architecture == "gemma4") {
    shape.layers = 2;
    shape.window = shape.window_head_dim = width / 2;
    shape.window_kv_heads = 1;
  }
  if (architecture == "gpt-oss") {
    shape.experts = 2;
    shape.experts_used = 1;
    shape.expert_ffn = width;
    shape.window = 4;
  }
  if (architecture.starts_with("qwen35")) {
    shape.layers = 4;  // the last one has attention
    shape.key_heads = 1;
    shape.value_heads = 2;
    shape.key_dim = shape.value_dim = 16;
    shape.experts = architecture == "qwen35moe" ? 2 : 0;
    shape.experts_used = 1;
    shape.expert_ffn = shape.shared_ffn = width;
  }
  return shape;
}

// The input of gguf_split_fuzz is parts, each after its length.
void write_split_models(const std::filesystem::path& folder) {
  std::string parts;
  for (uint32_t part = 0; part < 2; ++part) {
    kvasir::test::GgufBuilder builder;
    if (part == 0) builder.set_string("general.architecture", "llama");
    builder.set_u32("split.no", part);
    builder.set_u32("split.count", 2);
    builder.set_u32("split.tensors.count", 2);
    builder.add_tensor(part == 0 ? "a" : "b", {4}, /*type=*/0, std::vector<std::byte>(16));
    const std::vector<std::byte> bytes = builder.build();
    const auto length = static_cast<uint32_t>(bytes.size());
    parts.append(reinterpret_cast<const char*>(&length), sizeof(length)).append(text_of(bytes));
  }
  write(folder / "two", parts);
}

// The input of model_folder_fuzz is config.json and, after a zero byte, model.safetensors.
void write_folder(const std::filesystem::path& root, const std::string& name,
                  const kvasir::test::TinyFolder& folder) {
  const std::vector<std::byte> weights = kvasir::test::safetensors_of(folder.tensors);
  write(root / "model_folder" / name, folder.texts.at("config.json") + '\0' + std::string(text_of(weights)));
  write(root / "safetensors" / name, text_of(weights));
}

// `more` fields go into the configuration.
void write_model_folder(const std::filesystem::path& root, const std::string& name,
                        const kvasir::test::TinyLlamaShape& shape, const std::string& more) {
  auto folder = kvasir::test::make_tiny_folder(shape, kvasir::ops::WeightType::kBf16, 1);
  std::string& config = folder.texts.at("config.json");
  config.replace(config.size() - 1, 1, "," + more + "}");
  write_folder(root, name, folder);
}

void write_folders(const std::filesystem::path& root) {
  for (const auto& [architecture, more] :
       {std::pair{"llama", R"("rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,)"
                           R"("high_freq_factor":4.0,"original_max_position_embeddings":32})"},
        {"gemma2", R"("layer_types":["sliding_attention"])"},
        {"gemma3", R"("rope_parameters":{"full_attention":{"rope_theta":1.0},"sliding_attention":{}})"},
        {"gemma4", R"("per_layer_config":{"0":{"head_dim":64,"num_key_value_heads":2}})"},
        {"gpt-oss", R"("swiglu_alpha":1.702)"},
        {"granite", R"("attention_bias":false)"},
        {"mistral3", R"("sliding_window":null)"},
        {"olmo2", R"("rope_scaling":{"type":"yarn","factor":2,"beta_fast":32,"beta_slow":1,"mscale":1})"},
        {"opt", R"("_remove_final_layer_norm":false)"},
        {"phi3", R"("rope_scaling":{"type":"longrope","short_factor":[1,1],"long_factor":[2,2]})"},
        {"qwen2", R"("use_sliding_window":true,"sliding_window":8,"max_window_layers":0)"},
        {"qwen3", R"("unknown":[{"a":1}],"rope_scaling":{"type":"linear","factor":2})"},
        {"qwen35",
         R"("layer_types":["linear_attention","full_attention","linear_attention","full_attention"])"},
        {"qwen35moe", R"("norm_topk_prob":true,"mtp_use_dedicated_embeddings":false)"},
        {"smollm3", R"("no_rope_layers":[1])"}}) {
    write_model_folder(root, architecture, smallest(architecture), more);
  }
  kvasir::test::TinyLlamaShape mxfp4 = smallest("gpt-oss", 32);
  mxfp4.other_types = {{"_exps", kvasir::ops::WeightType::kMxfp4}};
  write_model_folder(root, "mxfp4", mxfp4, R"("attention_bias":true)");
  for (const char* form : {"awq", "gptq", "packed", "bytes", "fp8_blocks", "fp8_rows"}) {
    kvasir::test::FolderQuantizing how;
    how.form = form;
    how.in_middle = how.form == "bytes";
    how.bits = how.form == "bytes" ? 8 : 4;
    how.type = how.form == "fp8_blocks" ? "F32" : "F16";
    const auto folder =
        kvasir::test::make_tiny_folder(smallest("llama", 32), kvasir::ops::WeightType::kBf16, 1);
    write_folder(root, form, kvasir::test::quantize_folder(folder, how).folder);
  }
  write(root / "safetensors" / "small",
        text_of(kvasir::test::safetensors_of(
            R"({"__metadata__":{"a":"b"},"x":{"dtype":"F32","shape":[2,1],"data_offsets":[0,8]}})",
            std::vector<std::byte>(8))));
}

void write_models(const std::filesystem::path& folder) {
  using kvasir::ops::WeightType;
  for (auto [name, type] : {std::pair{"f32", WeightType::kF32}, std::pair{"f16", WeightType::kF16},
                            std::pair{"q8_0", WeightType::kQ8_0}, std::pair{"q4_0", WeightType::kQ4_0},
                            std::pair{"q4_1", WeightType::kQ4_1}}) {
    kvasir::test::TinyLlamaShape shape =
        smallest("llama", type == WeightType::kF32 || type == WeightType::kF16 ? 8 : 32);
    shape.rope_factors = true;
    shape.pieces = type == WeightType::kF16;
    write(folder / (std::string(name) + ".gguf"), text_of(kvasir::test::make_tiny_llama(shape, type, 1)));
  }
  write(folder / "gpt-oss.gguf",
        text_of(kvasir::test::make_tiny_llama(smallest("gpt-oss", 32), WeightType::kMxfp4, 1)));
  write(folder / "qwen35.gguf",
        text_of(kvasir::test::make_tiny_llama(smallest("qwen35"), WeightType::kF32, 1)));
}

// The input of template_fuzz is a template and, after a zero byte, the text of a message.
void write_templates(const std::filesystem::path& folder, const json& golden) {
  for (const json& entry : golden.at("templates")) {
    write(folder / entry.at("name").get<std::string>(), entry.at("source").get<std::string>());
  }
  size_t number = 0;
  for (const json& snippet : golden.at("snippets")) {
    write(folder / ("snippet-" + std::to_string(number++)),
          snippet.at("source").get<std::string>() + '\0' + "Grüße, {{ 世界 }}\n");
  }
}

// Between them they name the fields that the parser knows, in each of their shapes.
constexpr std::string_view kBodies[] = {
    R"({"model":"m","messages":[{"role":"user","content":"Hi"}],"max_tokens":16,"temperature":0.7,"top_p":0.9})",
    R"({"messages":[{"role":"developer","content":"Be brief."},{"role":"user","content":[
        {"type":"text","text":"Grüße, 世界 \ud83d\ude00"},"and more"]},{"role":"assistant","content":"","name":null}],
        "stream":true,"stream_options":{"include_usage":true,"include_obfuscation":false},
        "max_completion_tokens":5,"logprobs":true,"top_logprobs":20})",
    R"({"messages":[{"role":"user","content":"x"}],"stop":["\n\n","</s>"],"stop_token_ids":[0,2],"seed":-1,"top_k":-1,
        "ignore_eos":true,"cache_salt":"salt","n":1,"tools":[],"tool_choice":"none",
        "response_format":{"type":"text"},"user":"u","metadata":{"a":"b"}})",
    R"({"messages":[{"role":"assistant","tool_calls":[{"id":"1","type":"function","function":{"name":"f","arguments":"{}"}}],
        "reasoning":"r"},{"role":"tool","content":"42","tool_call_id":"1"}],"tools":[{"type":"function","function":
        {"name":"f","description":"d","strict":true,"parameters":{"type":"object"}}}],"parallel_tool_calls":false,
        "tool_choice":{"type":"function","function":{"name":"f"}},"chat_template_kwargs":{"enable_thinking":false}})",
    R"({"model":"m","prompt":"Once","max_tokens":1,"temperature":0,"logprobs":5,"echo":false,"stop":"."})",
    R"({"prompt":["one","two",[3,4]],"stream":false,"seed":18446744073709551615,"top_k":40,"top_p":1e-300})",
    R"({"prompt":[1,2,2147483647],"max_tokens":2147483647,"min_p":0.0,"repetition_penalty":1,"best_of":1})",
    R"({"prompt":"x","suffix":"","logit_bias":{},"presence_penalty":0,"frequency_penalty":-0.0,"priority":0})",
    R"({"max_tokens":5,"system":[{"type":"text","text":"s"}],"stop_sequences":["x"],"thinking":{"type":"enabled"},
        "tools":[{"name":"f","description":"d","input_schema":{"type":"object"}}],
        "tool_choice":{"type":"tool","name":"f","disable_parallel_tool_use":true},"messages":[
        {"role":"user","content":"a"},{"role":"assistant","content":[{"type":"thinking","thinking":"t","signature":""},
        {"type":"text","text":"b"},{"type":"tool_use","id":"i","name":"f","input":{"a":1}}]},
        {"role":"user","content":[{"type":"tool_result","tool_use_id":"i","content":[{"type":"text","text":"c"}]}]}]})",
    R"({"instructions":"i","previous_response_id":null,"store":false,"max_output_tokens":5,"parallel_tool_calls":false,
        "input":[{"role":"user","content":[{"type":"input_text","text":"a"}]},
        {"type":"reasoning","summary":[{"type":"summary_text","text":"r"}],"content":[]},
        {"type":"function_call","call_id":"c","name":"f","arguments":"{}"},
        {"type":"function_call_output","call_id":"c","output":"o"}],"tools":[{"type":"function","name":"f"}],
        "tool_choice":{"type":"function","name":"f"},"reasoning":{"effort":"low"},"metadata":{"a":"b"},
        "text":{"format":{"type":"json_schema","schema":{}}},"truncation":"disabled","include":[]})",
    R"({"input":"a","previous_response_id":"resp_1"})",
    R"({"prompt":"a","add_special_tokens":false,"return_token_strs":true})",
    R"({"tokens":[1,2,3]})",
    R"({"prompt":"x","n":2,"slo":{"ttft_ms":1e400},"guided_json":{},"prompt":""})",
};

void write_bodies(const std::filesystem::path& folder) {
  for (size_t i = 0; i < std::size(kBodies); ++i) write(folder / ("body-" + std::to_string(i)), kBodies[i]);
}

// A character of the corpus is a byte.
void write_requests(const std::filesystem::path& folder, const json& corpus) {
  size_t number = 0;
  for (const json& entry : corpus) {
    const auto text = entry.at("send").get<std::string>();
    std::string bytes;
    for (size_t i = 0; i < text.size(); ++i) {
      const auto c = static_cast<unsigned char>(text[i]);
      bytes += c < 0xc0 ? text[i] : static_cast<char>((c << 6) | (text[++i] & 0x3f));
    }
    write(folder / ("request-" + std::to_string(number++)), bytes);
  }
}

// Outputs, each behind the number of its form.
constexpr std::string_view kOutputs[] = {
    "\x01 a <tool_call>\n{\"name\": \"f\", \"arguments\": {\"s\": \"}\"}}\n</tool_call> b",
    "\x02 {\"name\": \"f\", \"parameters\": {}}; <|python_tag|>{\"name\": \"g\"}",
    "\x03 [TOOL_CALLS][{\"name\": \"f\", \"arguments\": \"\\u00e9\"}, {}]",
    "\x04 [TOOL_CALLS]f[CALL_ID]1[ARGS]{\"s\": []}",
    "\x05 <|tool_call|>[{\"arguments\": null, \"name\": \"f\"}]",
    "\x06 <tool_call><function=f><parameter=s>\n1\n</parameter></function></tool_call>",
    "\x07 <|channel|>analysis<|message|>a<|end|><|start|>assistant<|channel|>commentary "
    "to=functions.f<|message|>{}",
    "\x07 to=functions.f<|channel|>commentary <|constrain|>json<|message|>{}<|call|>b<|return|>",
    "\x09 <think>\na\n</think>\n<tool_call>{\"name\": \"f\"}",
};

// A model of bytes and one of characters, each with the parts that its kind has.
constexpr std::string_view kTokenizers[] = {
    R"({"added_tokens":[{"id":6,"content":"<s>","special":true,"lstrip":true},{"id":7,"content":"[x]","rstrip":true}],
        "normalizer":{"type":"NFC"},"pre_tokenizer":{"type":"Sequence","pretokenizers":[
        {"type":"Digits","individual_digits":true},{"type":"Split","pattern":{"Regex":"[\\r\\n]"},"behavior":"Isolated","invert":false},
        {"type":"ByteLevel","add_prefix_space":false,"use_regex":true}]},"post_processor":{"type":"ByteLevel"},
        "model":{"type":"BPE","dropout":null,"ignore_merges":true,"vocab":{"a":0,"b":1,"ab":2,"\u0120":3,"\u0120ab":4,"1":5},
        "merges":["a b",["\u0120","ab"]]}})",
    R"({"added_tokens":[{"id":1,"content":"<s>","special":true}],"normalizer":{"type":"Sequence","normalizers":[
        {"type":"Prepend","prepend":"\u2581"},{"type":"Replace","pattern":{"String":" "},"content":"\u2581"}]},
        "post_processor":{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"<s>","type_id":0}}]},
        "model":{"vocab":{"<unk>":0,"<s>":1,"\u2581":2,"a":3,"\u2581a":4,"<0x0A>":5},"merges":[["\u2581","a"]],
        "unk_token":"<unk>","fuse_unk":true,"byte_fallback":true}})",
    R"({"pre_tokenizer":{"type":"Metaspace","replacement":"\u2581","prepend_scheme":"first","split":false},
        "model":{"vocab":{"\u2581":0,"a":1},"merges":[]}})",
};

void write_tokenizers(const std::filesystem::path& folder) {
  const std::string config =
      R"({"bos_token":"<s>","eos_token":{"content":"<s>"},"add_bos_token":true,"chat_template":"{{ x }}"})";
  for (size_t i = 0; i < std::size(kTokenizers); ++i) {
    write(folder / ("tokenizer-" + std::to_string(i)), std::string(kTokenizers[i]) + '\0' + config);
  }
}

// Texts, each behind the number of its tokenizer.
constexpr std::string_view kTexts[] = {
    "\x01 abc 12345 it's\n\n  \tÄüß e\u0301 世界 \U0001F600 <s>[x]",
    "\x03 \xff\xe2\x82 abab[x<s>",
};

constexpr std::string_view kYaml[] = {
    "# settings\nmodel: m.gguf\nport: 9000\nshare: 2.5e-1\nlevel: low\ncache: off\nmetrics: yes\n"
    "name: [a, 'b c', \"d\\n\"]\nmore:\n  - x\norigins: a,b\njson:\n  t: 0.5\n  s: [1, null]\napi_key: |\n  "
    "k\n",
    "keys:\n  - name: a\n    sha256: 2bb80d537b1da3e38bd30361aa855686bde0eacd7162fef6a25fe97bf527a25b\n"
    "    concurrent_requests: 64\n    requests_per_minute: 600\n    tokens_per_minute: 200000\n"
    "    queue_share: 0.25\n    weight: 2\n    priority: -1\n    claims: [slo, output_tokens_hint]\n",
    "%YAML 1.2\n---\n{\"port\": 1, json: {a: {b: [*x]}}, ? c : &x !t >-\n  folded\n}\n...\n",
};

// Of few prompts, and rows of four elements.
void write_predictors(const std::filesystem::path& folder) {
  for (const char* name : {"online", "hidden"}) {
    const auto predictor = kvasir::make_length_predictor(name).value();
    for (uint32_t i = 0; i < 120; ++i) {
      const std::vector<kvasir::Token> prompt = {1, static_cast<kvasir::Token>(i % 5)};
      const std::vector<float> row = {1, static_cast<float>(i % 5), static_cast<float>(i % 3), 0};
      const kvasir::PromptFeatures features{prompt, 1, 1, 0, row};
      predictor->learn(features, predictor->predict(features), 10 + 7 * (i % 5));
    }
    write(folder / name, predictor->save());
  }
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 3) {
    std::fputs("usage: write_fuzz_seeds FOLDER CHAT_TEMPLATES_JSON\n", stderr);
    return 2;
  }
  try {
    const std::filesystem::path root = argv[1];
    write_models(root / "gguf");
    write_split_models(root / "gguf_split");
    write_folders(root);
    write_bodies(root / "http_body");
    write_tokenizers(root / "tokenizer_json");
    for (size_t i = 0; i < std::size(kOutputs); ++i) {
      write(root / "output_parser" / ("output-" + std::to_string(i)), kOutputs[i]);
    }
    for (size_t i = 0; i < std::size(kTexts); ++i) {
      write(root / "tokenizer_text" / ("text-" + std::to_string(i)), kTexts[i]);
    }
    for (const char* target : {"yaml", "config_file"}) {
      for (size_t i = 0; i < std::size(kYaml); ++i)
        write(root / target / ("yaml-" + std::to_string(i)), kYaml[i]);
    }
    write_predictors(root / "length_predictor");
    write(
        root / "length_trace" / "both",
        R"({"messages": [{"role": "user", "content": "a"}], "temperature": 0.7, "output_tokens": 9, "again": [3]})"
        "\n"
        R"({"prompt": "b", "top_p": 0.5, "finish_reason": "length", "kind": {"c": 1}})");
    std::ifstream golden(argv[2]);
    if (!golden) throw std::runtime_error(std::string(argv[2]) + ": cannot be read");
    write_templates(root / "template", json::parse(golden));
    std::ifstream requests(std::filesystem::path(argv[2]).replace_filename("request_framing.json"));
    write_requests(root / "http_head", json::parse(requests));
  } catch (const std::exception& e) {
    std::fprintf(stderr, "write_fuzz_seeds: %s\n", e.what());
    return 1;
  }
  return 0;
}
