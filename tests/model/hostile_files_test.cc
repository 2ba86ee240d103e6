// Files that lie or mean harm: one line for each, and no more memory than a file of their size warrants,
// which an allocation counter measures.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/random.h"
#include "base/units.h"
#include "model/counted_memory.h"
#include "model/files/inspect.h"
#include "model/files/model_file.h"
#include "model/folders/safetensors.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/tokenizer_json.h"
#include "support/quantized_folder.h"
#include "support/temp_file.h"
#include "support/tiny_folder.h"

namespace kvasir {
namespace {

using nlohmann::json;
using test::GgufBuilder;
using test::TinyFolder;

// What a byte of a file may cost, and what any file may: 65,536 tokens without an entry of their own are
// allowed, as embeddings are padded.
constexpr uint64_t kBytesForEach = 40, kBytesForAny = 5 * kMiB;
constexpr size_t kBomb = 256 * kKiB;  // the size of files that are all harm

// A line that a person can read. An empty one: the file was accepted.
void expect_clear(const Status& status) {
  if (status.ok()) return;
  const std::string& line = status.message();
  EXPECT_FALSE(line.empty());
  EXPECT_LT(line.size(), 1000U) << line.substr(0, 200);
  EXPECT_EQ(line.find_first_of("\n\r\t\x1b"), std::string::npos) << line;
}

template <typename Read>
Status expect_bounded(uint64_t file_bytes, const Read& read) {
  const test::PeakMemory peak;
  const Status status = read();
  EXPECT_LE(peak.bytes(), kBytesForEach * file_bytes + kBytesForAny)
      << file_bytes << " bytes: " << (status.ok() ? "accepted" : status.message().substr(0, 200));
  expect_clear(status);
  return status;
}

// All that is read of a model before its weights are.
Status read_model(Result<std::unique_ptr<ModelFile>> model) {
  if (!model.ok()) return model.status();
  (void)describe_model(**model);
  for (const GgufTensor& tensor : (*model)->gguf().tensors()) {
    if (tensor.rows == nullptr) continue;
    const uint64_t rows = tensor.values() / tensor.shape[0];
    std::vector<std::byte> row(tensor.bytes() / rows);
    for (uint64_t i = 0; i < rows; ++i) tensor.rows->read(static_cast<int64_t>(i), row.data());
  }
  KV_ASSIGN_OR_RETURN(TokenizerData data, (*model)->read_tokenizer());
  KV_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(std::move(data)));
  (void)tokenizer.encode("a text \n<s>", true);
  return {};
}

Status expect_bounded_gguf(std::vector<std::byte> bytes) {
  const uint64_t size = bytes.size();
  return expect_bounded(size, [&] { return read_model(ModelFile::from_bytes(std::move(bytes), "x.gguf")); });
}

Status expect_bounded_folder(const TinyFolder& folder) {
  const test::FolderInMemory bytes(folder);
  uint64_t size = 0;
  for (const auto& [name, text] : folder.texts) size += text.size();
  for (const auto& tensor : folder.tensors) size += tensor.data.size();
  return expect_bounded(size, [&] { return read_model(ModelFile::from_folder(bytes.files())); });
}

Status expect_bounded_tokenizer(const std::string& file, const std::string& config = "") {
  TokenizerFiles files;
  files.tokenizer = file;
  files.tokenizer_config = config;
  return expect_bounded(file.size() + config.size(), [&]() -> Status {
    KV_ASSIGN_OR_RETURN(TokenizerData data, read_tokenizer_json(files, "folder"));
    KV_ASSIGN_OR_RETURN(const Tokenizer tokenizer, Tokenizer::create(std::move(data)));
    (void)tokenizer.encode("a text \n<s>", true);
    return {};
  });
}

std::string repeated(std::string_view part, size_t bytes) {
  std::string out;
  while (out.size() < bytes) out += part;
  return out;
}

// A list of as many as fit, without what separates them at its end.
std::string list_of(std::string_view part, size_t bytes) {
  std::string out = repeated(std::string(part) + ",", bytes);
  out.pop_back();
  return out;
}

test::TinyLlamaShape smallest(const std::string& architecture) {
  test::TinyLlamaShape shape;
  shape.architecture = architecture;
  shape.layers = 1;
  shape.dim = shape.head_dim = shape.ffn = 32;
  shape.heads = shape.kv_heads = 1;
  shape.vocab = 259;
  shape.context = 64;
  if (architecture == "gemma4") {
    shape.layers = 2;
    shape.window = shape.window_head_dim = 16;
    shape.window_kv_heads = 1;
  }
  if (architecture.starts_with("qwen35")) {
    shape.layers = 4;  // three recurrent ones
    shape.key_heads = 1;
    shape.value_heads = 2;
    shape.key_dim = shape.value_dim = 16;
    if (architecture == "qwen35") return shape;
    shape.experts = 2;
    shape.experts_used = 1;
    shape.expert_ffn = shape.shared_ffn = 32;
  }
  if (architecture != "gpt-oss") return shape;
  shape.experts = 2;
  shape.experts_used = 1;
  shape.expert_ffn = 32;
  shape.window = 16;
  shape.other_types = {{"_exps", ops::WeightType::kMxfp4}};
  return shape;
}

// ---------------------------------------------------------------- GGUF

TEST(HostileFiles, NumbersOfAGgufFileMayLie) {
  const auto whole = test::make_tiny_llama(smallest("llama"), ops::WeightType::kF16, 1);
  const auto file = Gguf::parse(whole, "x.gguf");
  ASSERT_TRUE(file.ok());
  const size_t header = file->headers().front().size();
  Random random(5);
  int refused = 0;
  for (int round = 0; round < 2000; ++round) {
    std::vector<std::byte> bytes = whole;
    // The counts first, then any place.
    const size_t place = round < 24 ? static_cast<size_t>(round) : random.below(header - 8);
    constexpr uint64_t kLies[] = {~uint64_t{0}, uint64_t{1} << 63, uint64_t{1} << 32, 0x7fffffff, 1 << 20, 0};
    const uint64_t lie = kLies[random.below(std::size(kLies))];
    std::memcpy(bytes.data() + place, &lie, random.below(2) == 0 ? 4 : 8);
    refused += expect_bounded_gguf(std::move(bytes)).ok() ? 0 : 1;
  }
  EXPECT_GT(refused, 1000);
}

TEST(HostileFiles, AGgufFileMayBeOfSmallThingsOnly) {
  GgufBuilder tensors;
  for (size_t i = 0; i < kBomb / 40; ++i) {
    tensors.add_tensor(fmt::format("{:x}", i), {1}, /*type=*/24, {std::byte{0}});  // I8
  }
  EXPECT_FALSE(expect_bounded_gguf(tensors.build()).ok());
  GgufBuilder keys;
  for (size_t i = 0; i < kBomb / 64; ++i) keys.set_raw(fmt::format("{:x}", i), /*u8=*/0, {std::byte{0}});
  EXPECT_FALSE(expect_bounded_gguf(keys.build()).ok());
  // Tensors that nothing uses are a warning each.
  GgufBuilder unused = test::tiny_llama_builder(smallest("llama"), ops::WeightType::kF16, 1);
  for (size_t i = 0; i < 2000; ++i) unused.add_tensor(fmt::format("{:x}", i), {1}, 24, {std::byte{0}});
  EXPECT_TRUE(expect_bounded_gguf(unused.build()).ok());
}

TEST(HostileFiles, TheVocabularyOfAGgufFileMayBeAnything) {
  const auto with = [](const std::function<void(GgufBuilder&)>& change) {
    GgufBuilder builder = test::tiny_llama_builder(smallest("llama"), ops::WeightType::kF16, 1);
    change(builder);
    return expect_bounded_gguf(builder.build());
  };
  std::vector<std::string> tokens(259);
  for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = fmt::format("t{}", i);
  std::vector<std::string> long_ones = tokens;
  for (size_t i = 0; i < long_ones.size(); ++i) long_ones[i] += repeated("a", kBomb / 259);
  const auto make_pieces = [](GgufBuilder& b, const std::vector<std::string>& pieces) {
    b.set_string("tokenizer.ggml.model", "llama");
    b.set_strings("tokenizer.ggml.tokens", pieces);
    b.set_f32s("tokenizer.ggml.scores", std::vector<float>(pieces.size(), -1));
  };
  EXPECT_TRUE(with([&](GgufBuilder& b) { make_pieces(b, tokens); }).ok());
  EXPECT_TRUE(with([&](GgufBuilder& b) { make_pieces(b, long_ones); }).ok());
  std::vector<std::string> one = tokens;
  one[7] = repeated("a", kBomb);
  const Status status = with([&](GgufBuilder& b) { make_pieces(b, one); });
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(), testing::HasSubstr("token 7 has 262144 bytes"));
  // Every token is a special one.
  EXPECT_TRUE(with([&](GgufBuilder& b) {
                b.set_strings("tokenizer.ggml.tokens", long_ones);
                b.set_strings("tokenizer.ggml.merges", {});
                b.set_i32s("tokenizer.ggml.token_type", std::vector<int32_t>(259, 3));
              }).ok());
  EXPECT_FALSE(with([&](GgufBuilder& b) {
                 b.set_strings("tokenizer.ggml.merges", std::vector<std::string>(kBomb / 8));
               }).ok());
  EXPECT_FALSE(
      with([&](GgufBuilder& b) { b.set_strings("tokenizer.ggml.merges", {repeated("a ", kBomb)}); }).ok());
  EXPECT_FALSE(with([&](GgufBuilder& b) {
                 b.set_strings("tokenizer.ggml.merges", {"a\nb" + repeated("\x1b", kBomb)});
               }).ok());
}

TEST(HostileFiles, APartOfAModelMayClaimManyMore) {
  GgufBuilder builder;
  builder.set_u32("split.no", 0);
  builder.set_u32("split.count", 65535);
  builder.set_u32("split.tensors.count", 0xffffffff);
  const std::vector<std::byte> bytes = builder.build();
  const test::TempFolder folder;
  const std::string path = folder.path() + "/x-00001-of-65535.gguf";
  std::ofstream(path, std::ios::binary)
      .write(reinterpret_cast<const char*>(bytes.data()), static_cast<std::streamsize>(bytes.size()));
  const test::PeakMemory peak;
  const Status status = ModelFile::open(path).status();
  EXPECT_LT(peak.bytes(), 64 * kKiB);
  ASSERT_FALSE(status.ok());
  EXPECT_THAT(status.message(),
              testing::HasSubstr("x-00002-of-65535.gguf: this part of the model is missing"));
}

// ---------------------------------------------------------------- safetensors

Status expect_bounded_safetensors(const std::string& header, size_t data = 16) {
  const std::vector<std::byte> bytes = test::safetensors_of(header, std::vector<std::byte>(data));
  return expect_bounded(bytes.size(), [&] { return parse_safetensors(bytes, "x").status(); });
}

TEST(HostileFiles, HeadersOfSafetensorsMayBeAnything) {
  const std::string tensor = R"({"dtype":"I8","shape":[16],"data_offsets":[0,16]})";
  ASSERT_TRUE(expect_bounded_safetensors(R"({"a":)" + tensor + "}").ok());
  const size_t third = kBomb / 3;
  for (const std::string& header :
       {repeated("[", kBomb), repeated(R"({"":)", kBomb), R"({"__metadata__":)" + repeated("[", kBomb),
        R"({"__metadata__":)" + repeated(R"({"a":)", kBomb), R"({"a":)" + repeated("[", kBomb) + "}",
        R"({"a":{"dtype":"I8","shape":[)" + list_of("1", kBomb) + R"(],"data_offsets":[0,1]}})",
        R"({"a":{"dtype":"I8","shape":[1],"data_offsets":[)" + list_of("1", kBomb) + "]}}",
        R"({"a":{"dtype":")" + repeated("\\n", kBomb) + R"(","shape":[16],"data_offsets":[0,16]}})",
        R"({"a":{")" + repeated("\\u0001", kBomb) + R"(":1}})", R"({")" + repeated("b", kBomb) + R"(":1})",
        repeated(" ", kBomb)}) {
    EXPECT_FALSE(expect_bounded_safetensors(header).ok()) << header.substr(0, 40);
  }
  EXPECT_TRUE(expect_bounded_safetensors(R"({"__metadata__":{"a":[)" + repeated("[", third) +
                                         repeated("]", third) + R"(]},"a":)" + tensor + "}")
                  .ok());
  std::string many = "{";
  for (size_t i = 0; i < kBomb / 64; ++i) {
    many += fmt::format(R"({}"{:x}":{{"dtype":"I8","shape":[],"data_offsets":[{},{}]}})", i == 0 ? "" : ",",
                        i, i, i + 1);
  }
  EXPECT_TRUE(expect_bounded_safetensors(many + "}", kBomb / 64).ok());
  // Lengths of the header itself.
  std::vector<std::byte> file = test::safetensors_of(R"({"a":)" + tensor + "}", std::vector<std::byte>(16));
  for (const uint64_t length : {uint64_t{0}, uint64_t{1}, uint64_t{1} << 32, ~uint64_t{0}, ~uint64_t{7}}) {
    std::memcpy(file.data(), &length, sizeof(length));
    EXPECT_FALSE(expect_bounded(file.size(), [&] { return parse_safetensors(file, "x").status(); }).ok());
  }
}

// ---------------------------------------------------------------- configurations

// JSON in the place of a field's value.
constexpr const char* kLies[] = {
    "-1",    "0",    "1",    "2147483647", "4294967296",        "18446744073709551615",
    "1e308", "0.5",  "-0.0", "\"x\"",      "\"\\n\\u001b[2J\"", "[[[1]]]",
    "{}",    "true", "null", "1e999"};

TEST(HostileFiles, FieldsOfConfigurationsMayLie) {
  int refused = 0;
  for (const char* architecture : {"llama", "gemma3", "gemma4", "gpt-oss", "mistral3", "opt", "phi3",
                                   "qwen35", "qwen35moe", "smollm3"}) {
    const TinyFolder folder = test::make_tiny_folder(smallest(architecture), ops::WeightType::kBf16, 1);
    const json config = json::parse(folder.texts.at("config.json"));
    for (const auto& [field, value] : config.items()) {
      for (const std::string lie : kLies) {
        SCOPED_TRACE(std::string(architecture) + ": " + field + " is " + lie);
        TinyFolder other = folder;
        json changed = config;
        changed[field] = "HERE";
        other.texts["config.json"] = changed.dump();
        other.edit("config.json", "\"HERE\"", lie);
        other.texts.erase("tokenizer.json");
        refused += expect_bounded_folder(other).ok() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(refused, 500);
}

TEST(HostileFiles, FieldsOfQuantisationMayLie) {
  int refused = 0;
  for (const char* form : {"awq", "gptq", "packed", "fp8_blocks"}) {
    const test::FolderQuantizing how = {.form = form, .type = form[0] == 'f' ? "F32" : "F16"};
    const TinyFolder folder =
        quantize_folder(test::make_tiny_folder(smallest("llama"), ops::WeightType::kBf16, 1), how).folder;
    const json config = json::parse(folder.texts.at("config.json"));
    for (const auto& [field, value] : config.at("quantization_config").items()) {
      for (const std::string lie : kLies) {
        SCOPED_TRACE(std::string(form) + ": " + field + " is " + lie);
        TinyFolder other = folder;
        json changed = config;
        changed["quantization_config"][field] = "HERE";
        other.texts["config.json"] = changed.dump();
        other.edit("config.json", "\"HERE\"", lie);
        other.texts.erase("tokenizer.json");
        refused += expect_bounded_folder(other).ok() ? 0 : 1;
      }
    }
  }
  EXPECT_GT(refused, 150);
}

TEST(HostileFiles, TextsOfFoldersMayBeBombs) {
  const TinyFolder folder = test::make_tiny_folder(smallest("llama"), ops::WeightType::kBf16, 1);
  ASSERT_TRUE(expect_bounded_folder(folder).ok());
  const size_t third = kBomb / 3;
  const std::string closed = repeated("[", third) + repeated("]", third);
  for (const std::string file : {"config.json", "generation_config.json", "tokenizer_config.json",
                                 "tokenizer.json", "model.safetensors.index.json"}) {
    for (const std::string& text :
         {repeated("[", kBomb), R"({"a":)" + closed + "}", R"({"eos_token_id":)" + closed + "}",
          R"({"weight_map":)" + closed + "}", R"({"model_type":")" + repeated("\\n", kBomb) + R"("})",
          R"({"model":{"type":")" + repeated("\\n", kBomb) + R"("}})",
          R"({"normalizer":)" + closed + R"(,"model":{"vocab":{"a":0},"merges":[]}})",
          repeated("\xff", kBomb)}) {
      SCOPED_TRACE(file + ": " + text.substr(0, 40));
      TinyFolder other = folder;
      other.texts[file] = text;
      // What nothing looks at may be of any length, but not of any depth.
      const bool nested = text.find("[[") != std::string::npos;
      EXPECT_FALSE(expect_bounded_folder(other).ok() && nested);
    }
  }
  TinyFolder wide = folder;
  wide.texts["tokenizer_config.json"] = R"({"a":[)" + list_of("[]", kBomb) + "]}";
  EXPECT_TRUE(expect_bounded_folder(wide).ok());
}

// ---------------------------------------------------------------- tokenizers

std::string bytes_of_model(const std::string& vocab, const std::string& merges,
                           const std::string& added = "") {
  return R"({"added_tokens":[)" + added +
         R"(],"pre_tokenizer":{"type":"ByteLevel","add_prefix_space":false},"model":{"type":"BPE","vocab":{)" +
         vocab + R"(},"merges":[)" + merges + "]}}";
}

TEST(HostileFiles, TokenizersMayBeAnything) {
  const std::string vocab = R"("a":0,"b":1,"ab":2)";
  ASSERT_TRUE(expect_bounded_tokenizer(bytes_of_model(vocab, R"("a b")")).ok());
  for (const char* lie : kLies) {
    SCOPED_TRACE(lie);
    (void)expect_bounded_tokenizer(bytes_of_model(fmt::format(R"("a":{},"b":1)", lie), ""));
    (void)expect_bounded_tokenizer(
        bytes_of_model(vocab, "", fmt::format(R"({{"id":{},"content":"c\n\u001b"}})", lie)));
    (void)expect_bounded_tokenizer(bytes_of_model(vocab, "", fmt::format(R"({{"id":3,"content":{}}})", lie)));
    (void)expect_bounded_tokenizer(bytes_of_model(vocab, lie));
    (void)expect_bounded_tokenizer(fmt::format(R"({{"model":{}}})", lie));
    (void)expect_bounded_tokenizer(bytes_of_model(vocab, ""), fmt::format(R"({{"bos_token":{}}})", lie));
    (void)expect_bounded_tokenizer(bytes_of_model(vocab, ""), fmt::format(R"({{"chat_template":{}}})", lie));
  }
  for (const char* number : {"1e300", "0.5", "18446744073709551615", "-1", "70000"}) {
    EXPECT_FALSE(expect_bounded_tokenizer(bytes_of_model(fmt::format(R"("a":{})", number), "")).ok())
        << number;
  }
  // 65,536 ids without a token are the most that is allowed.
  EXPECT_TRUE(expect_bounded_tokenizer(bytes_of_model(R"("a":0,"b":65537)", "")).ok());
  EXPECT_FALSE(expect_bounded_tokenizer(bytes_of_model(R"("a":0,"b":65538)", "")).ok());
}

TEST(HostileFiles, TokenizersMayBeBombs) {
  const std::string vocab = R"("a":0,"b":1,"ab":2)";
  const std::string long_token = repeated("x", kBomb);
  EXPECT_TRUE(
      expect_bounded_tokenizer(bytes_of_model(vocab, "", R"({"id":3,"content":")" + long_token + R"("})"))
          .ok());
  std::string tokens, merges;
  for (size_t i = 0; tokens.size() < kBomb; ++i) {
    tokens += fmt::format(R"({}{{"id":{},"content":"<{:x}>{}"}})", i == 0 ? "" : ",", i + 3, i,
                          repeated("y", 1000));
  }
  EXPECT_TRUE(expect_bounded_tokenizer(bytes_of_model(vocab, "", tokens)).ok());
  std::string small = vocab;
  for (size_t i = 3; small.size() < kBomb; ++i) small += fmt::format(R"(,"{:x}!":{})", i, i);
  EXPECT_TRUE(expect_bounded_tokenizer(bytes_of_model(small, "")).ok());
  EXPECT_TRUE(expect_bounded_tokenizer(bytes_of_model(vocab, list_of(R"("a b")", kBomb))).ok());
  EXPECT_TRUE(expect_bounded_tokenizer(bytes_of_model(vocab, list_of(R"(["a","b"])", kBomb))).ok());
  for (const std::string& merge : {R"(")" + repeated("a ", kBomb) + R"(")", R"(")" + long_token + R"( b")",
                                   list_of("[]", kBomb), list_of("\"\"", kBomb)}) {
    EXPECT_FALSE(expect_bounded_tokenizer(bytes_of_model(vocab, merge)).ok());
  }
  EXPECT_TRUE(expect_bounded_tokenizer(bytes_of_model(vocab, ""),
                                       R"({"chat_template":[)" + list_of("{\"name\":\"a\"}", kBomb) + "]}")
                  .ok());
}

}  // namespace
}  // namespace kvasir
