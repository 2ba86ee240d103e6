// The vocabularies of published models, against their originals. tools/fetch_tokenizers.py fetches them;
// without them these tests skip themselves.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <sstream>
#include <string>
#include <vector>

#include "model/files/gguf.h"
#include "model/files/mapped_file.h"
#include "model/golden_text.h"
#include "model/tokenizers/tokenizer.h"
#include "model/tokenizers/tokenizer_gguf.h"

namespace kvasir {
namespace {

namespace fs = std::filesystem;

// KVASIR_TEST_TOKENIZERS, else the folder in the cache; empty if there is none.
fs::path material() {
  if (const char* path = std::getenv("KVASIR_TEST_TOKENIZERS")) return path;
  const char* cache = std::getenv("XDG_CACHE_HOME");
  const char* home = std::getenv("HOME");
  fs::path folder =
      cache != nullptr && *cache != '\0' ? fs::path(cache) : fs::path(home ? home : "/nowhere") / ".cache";
  folder = folder / "kvasir" / "tokenizers";
  std::error_code ignored;
  return fs::exists(folder, ignored) ? folder : fs::path();
}

constexpr const char* kNoMaterial =
    "no vocabularies: set KVASIR_TEST_TOKENIZERS, or run tools/fetch_tokenizers.py";

Result<TokenizerData> load(const fs::path& path) {
  KV_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path.string()));
  KV_ASSIGN_OR_RETURN(const Gguf gguf, Gguf::parse(file.bytes(), path.string()));
  return read_tokenizer_data(gguf);
}

std::string read_text(const fs::path& path) {
  std::ifstream in(path, std::ios::binary);
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<int32_t> read_ids(const std::string& line) {
  std::istringstream in(line);
  return {std::istream_iterator<int32_t>(in), {}};
}

// llama.cpp's own tests: texts (.inp), and the ids of each (.out), mostly by Hugging Face.
TEST(Vocabularies, GiveTheIdsOfLlamaCppsTests) {
  const fs::path folder = material();
  if (folder.empty()) GTEST_SKIP() << kNoMaterial;
  size_t files = 0;
  for (const auto& entry : fs::directory_iterator(folder)) {
    fs::path path = entry.path();
    if (path.extension() != ".inp" || path.string().find("bert") != std::string::npos) continue;
    path.replace_extension();
    auto data = load(path);
    ASSERT_TRUE(data.ok()) << data.status().message();
    const Tokenizer tokenizer = Tokenizer::create(*data).value();
    // Where a model's own files compose text and llama.cpp does not, the .out of llama.cpp is of text as it
    // is.
    data->nfc = false;
    const Tokenizer as_it_is = Tokenizer::create(*data).value();
    const std::string texts = read_text(entry.path());
    std::istringstream lines(read_text(path.string() + ".out"));
    const std::string separator = "\n__ggml_vocab_test__\n";
    std::string line;
    for (size_t begin = 0; begin <= texts.size() && std::getline(lines, line);) {
      const size_t end = std::min(texts.find(separator, begin), texts.size());
      const std::string text = texts.substr(begin, end - begin);
      begin = end + separator.size();
      if (tokenizer.encode(text, false) == read_ids(line)) continue;
      EXPECT_EQ(as_it_is.encode(text, false), read_ids(line)) << path << ": " << text;
    }
    ++files;
  }
  EXPECT_GE(files, 14u);
}

TEST(Vocabularies, GiveTheIdsOfHuggingFace) {
  const fs::path folder = material();
  if (folder.empty()) GTEST_SKIP() << kNoMaterial;
  const test::SplitGoldens texts = test::read_split_goldens();
  std::ifstream goldens(std::string(KVASIR_SOURCE_DIR) + "/tests/golden/vocabularies.txt");
  std::string line;
  size_t files = 0;
  while (std::getline(goldens, line)) {
    std::istringstream words(line);
    std::string name;
    words >> name;
    auto data = load(folder / name);
    ASSERT_TRUE(data.ok()) << data.status().message();
    const Tokenizer tokenizer = Tokenizer::create(std::move(data).value()).value();
    constexpr size_t kTextsOfAHash = 20;
    std::string hash;
    for (size_t begin = 0; words >> hash; begin += kTextsOfAHash) {
      std::vector<int32_t> ids;
      for (size_t i = begin; i < begin + kTextsOfAHash; ++i) {
        const auto more = tokenizer.encode(texts.lines.at(i).text, true);
        ids.insert(ids.end(), more.begin(), more.end());
      }
      EXPECT_EQ(fmt::format("{:016x}", test::fnv1a(ids)), hash) << name << ", texts from " << begin;
    }
    ++files;
  }
  EXPECT_GE(files, 13u);
}

}  // namespace
}  // namespace kvasir
