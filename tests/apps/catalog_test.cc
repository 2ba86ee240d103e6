// The catalogue: names, files, what fits.
#include "apps/simulate/catalog/catalog.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <tuple>

#include "apps/simulate/catalog/catalog_files.h"
#include "model/files/model_file.h"
#include "support/quantized_folder.h"
#include "support/temp_file.h"
#include "support/tiny_llama.h"

namespace kvasir::test {
namespace {

ModelShape model(const std::string& name) {
  return find_model(name).value();
}
DeviceSpec device(const std::string& name) {
  return find_device(name).value();
}

TEST(CatalogTest, HasTheDevicesAndModelsThatThePapersUse) {
  EXPECT_EQ(fmt::format("{}", fmt::join(device_names(), " ")),
            "a100-40g a100-80g a100-80g-pcie h100 h200 l20 l20-pcie-pair l20-pcie-ring l40s");
  EXPECT_EQ(fmt::format("{}", fmt::join(model_names(), " ")),
            "codellama-34b deepseek-v2 deepseek-v2-lite deepseek-v3 gpt-oss-120b gpt-oss-20b llama-2-13b "
            "llama-2-70b llama-2-7b llama-3-8b "
            "llama-3.1-70b mixtral-8x7b opt-13b "
            "opt-175b opt-30b opt-66b qwen3-30b-a3b "
            "smollm2-135m yi-34b-200k yi-6b");
  EXPECT_EQ(fmt::format("{}", fmt::join(overhead_names(), " ")), "eager kvasir none python");
}

TEST(CatalogTest, ShapesHaveTheirModelsParameters) {
  // In thousand millions, as their authors publish them.
  const std::pair<const char*, double> kPublished[] = {
      {"llama-2-7b", 6.74},     {"llama-2-13b", 13.02},   {"llama-2-70b", 68.98},
      {"llama-3-8b", 8.03},     {"llama-3.1-70b", 70.55}, {"opt-13b", 12.85},
      {"opt-30b", 29.97},       {"opt-66b", 65.72},       {"opt-175b", 174.6},
      {"yi-6b", 6.06},          {"yi-34b-200k", 34.39},   {"codellama-34b", 33.74},
      {"smollm2-135m", 0.1345}, {"mixtral-8x7b", 46.7},   {"qwen3-30b-a3b", 30.5},
      {"gpt-oss-20b", 20.91},   {"gpt-oss-120b", 116.83}, {"deepseek-v2-lite", 15.7},
      {"deepseek-v2", 235.7},   {"deepseek-v3", 671.0}};
  for (const auto& [name, billions] : kPublished) {
    EXPECT_NEAR(static_cast<double>(model(name).parameters()) / (billions * 1e9), 1, 0.005) << name;
  }
  EXPECT_EQ(model("Llama-2-70B").kv_bytes_per_token(), 327680u);
  // 512 + 64 values of bf16 in each of 27, 60 and 61 layers.
  EXPECT_EQ(model("deepseek-v2-lite").kv_bytes_per_token(), 31104u);
  EXPECT_EQ(model("deepseek-v2").kv_bytes_per_token(), 69120u);
  EXPECT_EQ(model("deepseek-v3").kv_bytes_per_token(), 70272u);
  // Their published checkpoints, with experts in MXFP4, have 12.8 and 60.8 GiB.
  EXPECT_NEAR(static_cast<double>(model("gpt-oss-20b").weight_bytes()) / (1ULL << 30), 12.8, 0.1);
  EXPECT_NEAR(static_cast<double>(model("gpt-oss-120b").weight_bytes()) / (1ULL << 30), 60.8, 0.3);
  EXPECT_FALSE(model("opt-13b").gated_mlp);
  EXPECT_TRUE(model("opt-13b").tied_embeddings);
}

TEST(CatalogTest, ANetworkIsFastEfficientAndLate) {
  const auto network = [](double bytes_per_s, double efficiency, double latency_s) {
    return parse_network(
        fmt::format(R"({{"name":"n","bytes_per_s":{},"efficiency":{},"latency_s":{},"source":[]}})",
                    bytes_per_s, efficiency, latency_s),
        "n.json");
  };
  EXPECT_TRUE(network(1e9, 1, 0).ok());
  for (const auto& [bytes_per_s, efficiency, latency_s] :
       {std::tuple{0., 1., 0.}, {1e9, 0., 0.}, {-1e9, -1., 0.}, {1e9, 1.1, 0.}, {1e9, 1., -1e-6}}) {
    const auto bad = network(bytes_per_s, efficiency, latency_s);
    ASSERT_FALSE(bad.ok()) << bytes_per_s << ' ' << efficiency << ' ' << latency_s;
    EXPECT_EQ(bad.status().code(), ErrorCode::kCorrupt);
    EXPECT_NE(bad.status().message().find("n.json"), std::string::npos);
  }
}

TEST(CatalogTest, AnUnknownNameListsWhatThereIs) {
  const Status d = find_device("a1000").status();
  EXPECT_EQ(d.code(), ErrorCode::kNotFound);
  EXPECT_EQ(d.message(),
            "device 'a1000': unknown, and no such file; take one of: a100-40g, a100-80g, a100-80g-pcie, "
            "h100, h200, l20, "
            "l20-pcie-pair, l20-pcie-ring, l40s");
  const Status m = find_model("gpt-9").status();
  EXPECT_EQ(m.code(), ErrorCode::kNotFound);
  EXPECT_NE(m.message().find("codellama-34b, "), std::string::npos);
  EXPECT_EQ(m.message().find('\n'), std::string::npos);
  EXPECT_NE(find_overhead("java").status().message().find("eager, kvasir, none, python"), std::string::npos);
}

TEST(CatalogTest, OverheadsAreOfAsManyCardsOrFewer) {
  EXPECT_GT(find_overhead("python", 4)->step_s, find_overhead("python", 1)->step_s);
  EXPECT_EQ(find_overhead("python", 3)->step_s, find_overhead("python", 2)->step_s);
  EXPECT_TRUE(find_overhead("python")->eager);
  EXPECT_DOUBLE_EQ(find_overhead("Kvasir", 8)->step_s, 60e-6);
  EXPECT_FALSE(find_overhead("kvasir")->eager);
  EXPECT_EQ(find_overhead("none")->step_s, 0);
}

TEST(CatalogTest, ReadsConfigFilesOfOtherFamilies) {
  const ModelShape gpt =
      parse_model(
          R"({"model_type":"gpt2","n_layer":12,"n_embd":768,"n_head":12,"vocab_size":50257,"n_positions":1024,
                      "n_inner":null})",
          "some/gpt2/config.json")
          .value();
  EXPECT_EQ(gpt.name, "gpt2");
  EXPECT_EQ(gpt.ffn, 3072u);
  EXPECT_EQ(gpt.head_dim, 64u);
  EXPECT_EQ(gpt.kv_heads, 12u);
  EXPECT_FALSE(gpt.gated_mlp);
  const ModelShape inner =
      parse_model(R"({"text_config":{"model_type":"x","num_hidden_layers":2,"hidden_size":64,
      "num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,"intermediate_size":100,"vocab_size":10}})",
                  "a.json")
          .value();
  EXPECT_EQ(inner.head_dim, 32u);
  EXPECT_EQ(inner.name, "a");
  EXPECT_EQ(parse_model("{", "a.json").status().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(parse_model("{}", "a.json").status().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(parse_model(R"({"num_hidden_layers":"2"})", "a.json").status().code(), ErrorCode::kCorrupt);
  EXPECT_EQ(parse_model(R"({"text_config":{"model_type":"gemma4_text"}})", "a.json").status().code(),
            ErrorCode::kUnsupported);
  for (const char* some :
       {R"("decoder_sparse_step":2)", R"("moe_layer_freq":2)", R"("mlp_only_layers":[3])"}) {
    EXPECT_EQ(parse_model(fmt::format(R"({{"num_local_experts":8,{}}})", some), "a.json").status().code(),
              ErrorCode::kUnsupported)
        << some;
  }
}

// A configuration is not read as if recurrent layers had K and V, whether or not it lists the layers.
TEST(CatalogTest, RefusesRecurrentLayers) {
  for (const char* some : {R"("layer_types":["linear_attention","full_attention"])",
                           R"("model_type":"qwen3_next","linear_num_value_heads":32)",
                           R"("text_config":{"linear_num_value_heads":32})"}) {
    const Status status =
        parse_model(fmt::format(R"({{"num_hidden_layers":2,"hidden_size":64,"num_attention_heads":4,)"
                                R"("vocab_size":10,{}}})",
                                some),
                    "a.json")
            .status();
    EXPECT_EQ(status.code(), ErrorCode::kUnsupported) << some;
    EXPECT_EQ(status.message(),
              "a.json: models with recurrent layers, whose states the simulator does not price yet, are not "
              "simulated");
  }
}

TEST(CatalogTest, ReadsTheWindowsOfLayers) {
  const auto windows = [](const char* keys) {
    const char* const shape = R"({{"num_hidden_layers":6,"hidden_size":64,"num_attention_heads":4,)"
                              R"("num_key_value_heads":2,"intermediate_size":100,"vocab_size":10{}}})";
    return parse_model(fmt::format(fmt::runtime(shape), keys), "a.json").value().windows;
  };
  using Windows = std::vector<uint32_t>;
  EXPECT_EQ(windows(""), Windows());
  EXPECT_EQ(windows(R"(,"sliding_window":null)"), Windows());
  EXPECT_EQ(windows(R"(,"sliding_window":32)"), Windows(6, 32));
  EXPECT_EQ(windows(R"(,"sliding_window":32,"use_sliding_window":false)"), Windows());
  EXPECT_EQ(windows(R"(,"sliding_window":32,"max_window_layers":4)"), (Windows{0, 0, 0, 0, 32, 32}));
  EXPECT_EQ(windows(R"(,"sliding_window":32,"model_type":"gemma2")"), (Windows{32, 0, 32, 0, 32, 0}));
  EXPECT_EQ(windows(R"(,"sliding_window":32,"model_type":"gemma3_text")"), (Windows{32, 32, 32, 32, 32, 0}));
  EXPECT_EQ(windows(R"(,"sliding_window":32,"sliding_window_pattern":3)"), (Windows{32, 32, 0, 32, 32, 0}));
  EXPECT_EQ(windows(R"(,"sliding_window":32,"layer_types":["full_attention","sliding_attention",)"
                    R"("sliding_attention","full_attention","sliding_attention","full_attention"])"),
            (Windows{0, 32, 32, 0, 32, 0}));
}

TEST(CatalogTest, AFolderWithAConfigIsAModelAndAFileADevice) {
  const std::filesystem::path folder = std::filesystem::path(testing::TempDir()) / "kvasir_catalog_test";
  std::filesystem::create_directories(folder);
  for (const CatalogFile& file : catalog_files()) {
    if (file.path == "models/yi-6b.json") std::ofstream(folder / "config.json") << file.text;
    if (file.path == "devices/h100.json") std::ofstream(folder / "mine.json") << file.text;
  }
  EXPECT_EQ(model(folder.string()).parameters(), model("yi-6b").parameters());
  EXPECT_EQ(device((folder / "mine.json").string()).memory_bytes, device("H100").memory_bytes);
  std::ofstream(folder / "mine.json") << "{\"name\": \"x\"}";
  const Status bad = find_device((folder / "mine.json").string()).status();
  EXPECT_EQ(bad.code(), ErrorCode::kCorrupt);
  EXPECT_NE(bad.message().find("memory_bytes"), std::string::npos);
  std::ofstream(folder / "broken.gguf") << "GGUF";
  EXPECT_FALSE(find_model((folder / "broken.gguf").string()).ok());
  std::filesystem::remove_all(folder);
}

TEST(CatalogTest, AGgufFileIsAModelWithTheWeightsThatItHas) {
  const TinyLlamaShape shape = tiny_gqa();
  const std::vector<std::byte> bytes = make_tiny_llama(shape, ops::WeightType::kQ8_0, 1);
  const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "kvasir_catalog_test.GGUF";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const Result<ModelShape> found = find_model(path.string());
  std::filesystem::remove(path);
  ASSERT_TRUE(found.ok()) << found.status().message();
  EXPECT_EQ(found->layers, 3u);
  EXPECT_EQ(found->hidden, 128u);
  EXPECT_EQ(found->heads, 4u);
  EXPECT_EQ(found->kv_heads, 2u);
  EXPECT_NEAR(static_cast<double>(found->weight_bytes()), static_cast<double>(bytes.size()), 2);
}

TEST(CatalogTest, AQuantisedFolderHasTheWeightsThatItTakes) {
  for (const char* form : {"awq", "fp8_rows"}) {
    const TempFolder place;
    quantize_folder(make_tiny_folder(tiny_gqa(), ops::WeightType::kBf16, 1), {.form = form})
        .folder.write(place.path());
    const Result<ModelShape> found = find_model(place.path());
    ASSERT_TRUE(found.ok()) << found.status().message();
    const auto file = ModelFile::open(place.path());
    ASSERT_TRUE(file.ok());
    uint64_t bytes = 0;
    for (const GgufTensor& tensor : (*file)->gguf().tensors()) bytes += tensor.bytes();
    EXPECT_NEAR(static_cast<double>(found->weight_bytes()), static_cast<double>(bytes), 2) << form;
    if (std::string(form) == "fp8_rows") {
      EXPECT_GT(bytes, (*file)->file_bytes()) << "it becomes BF16";
    }
  }
}

TEST(CatalogTest, AGgufFileMayHaveExpertsBehindTheFirstLayers) {
  std::vector<TinyLlamaShape> shapes = tiny_mixtures();
  for (TinyLlamaShape& shape : tiny_latents()) shapes.push_back(std::move(shape));
  for (const TinyLlamaShape& shape : shapes) {
    const std::vector<std::byte> bytes = make_tiny_llama(shape, ops::WeightType::kQ8_0, 1);
    const std::filesystem::path path = std::filesystem::path(testing::TempDir()) / "kvasir_mixture_test.gguf";
    std::ofstream(path, std::ios::binary)
        .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
    const Result<ModelShape> found = find_model(path.string());
    std::filesystem::remove(path);
    if (shape.expert_step > 1) {
      EXPECT_NE(found.status().message().find("experts in some layers"), std::string::npos) << "not priced";
      continue;
    }
    ASSERT_TRUE(found.ok()) << found.status().message();
    EXPECT_EQ(found->dense_layers, static_cast<uint32_t>(shape.dense_layers));
    // Q8_0 has 34 bytes for 32 weights.
    EXPECT_NEAR(found->expert_element_bytes, 34.0 / 32, shape.architecture == "gpt-oss" ? 0.1 : 1e-9)
        << shape.architecture;
    if (shape.kv_rank > 0) {
      EXPECT_EQ(found->kv_bytes_per_token(), 2U * 3 * (64 + 16));
      EXPECT_EQ(found->latent.q_rank, static_cast<uint32_t>(shape.q_rank));
    }
  }
}

TEST(CatalogTest, MemoryHoldsWhatAPublishedTableSays) {
  // OPT-13B on A100-80G, in tokens of KV at about 100 % of memory; our reserve is assumed, and a little
  // small.
  const std::tuple<Parallelism, uint64_t> kRows[] = {
      {{1, 1}, 66144}, {{1, 2}, 163008}, {{2, 1}, 163008}, {{4, 1}, 356736}, {{8, 1}, 744208}};
  for (const auto& [p, tokens] : kRows) {
    const DeviceMemory m = memory_of(model("opt-13b"), device("a100-80g"), p, 1).value();
    EXPECT_NEAR(static_cast<double>(m.kv_tokens(model("opt-13b"), p)) / static_cast<double>(tokens), 1.04,
                0.035)
        << p.tensor << " " << p.pipeline;
    EXPECT_LE(m.weights + m.kv_cache + m.reserve, device("a100-80g").memory_bytes);
  }
}

TEST(CatalogTest, ExpertsAreSplitWithTheirLayers) {
  // gpt-oss-20b: 24 layers of 32 experts of 3 x 2880 x 2880 weights in 17/32 bytes; the rest in 2.
  const ModelShape oss = model("gpt-oss-20b");
  EXPECT_EQ(oss.expert_element_bytes, 17.0 / 32);
  EXPECT_EQ(oss.weight_element_bytes, 2);
  const double experts = 24.0 * 32 * 3 * 2880 * 2880, embedding = 201088.0 * 2880;
  const double others = static_cast<double>(oss.parameters()) - experts - 2 * embedding;
  const auto weights = [&](uint32_t tensor, uint32_t pipeline) {
    return static_cast<double>(memory_of(oss, device("a100-80g"), {tensor, pipeline}, 0.9).value().weights);
  };
  EXPECT_NEAR(weights(1, 1), static_cast<double>(oss.weight_bytes()), 2);
  EXPECT_NEAR(weights(2, 1), static_cast<double>(oss.weight_bytes()) / 2, 2);
  EXPECT_NEAR(weights(1, 2), experts / 2 * 17 / 32 + 2 * (others / 2 + embedding), 2);
}

TEST(CatalogTest, WhatDoesNotFitSaysByHowMuch) {
  const Status s = memory_of(model("opt-66b"), device("a100-80g"), {1, 1}, 0.9).status();
  EXPECT_EQ(s.code(), ErrorCode::kExhausted);
  EXPECT_EQ(s.message().find("opt-66b does not fit 1 x a100-80g at 90 %"), 0u) << s.message();
  EXPECT_NE(s.message().find("GiB more"), std::string::npos);
  EXPECT_TRUE(memory_of(model("opt-66b"), device("a100-80g"), {2, 1}, 0.95).ok());
  EXPECT_EQ(memory_of(model("opt-13b"), device("h100"), {}, 0).status().code(), ErrorCode::kInvalidArgument);
  EXPECT_EQ(memory_of(model("opt-13b"), device("h100"), {}, 1.1).status().code(),
            ErrorCode::kInvalidArgument);
}

}  // namespace
}  // namespace kvasir::test
