// A real model against llama.cpp, position by position: see make_llama_cpp_goldens.py.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <fstream>
#include <iostream>
#include <sstream>
#include <string>
#include <vector>

#include "golden/teacher_forcing.h"
#include "model/golden_model.h"
#include "model/tokenizer_gguf.h"

namespace kvasir::test {
namespace {

constexpr uint32_t kMaxTokens = 1024;

struct PeerRow {
  Token token = 0;             // at this position
  double best_logprob = 0;     // of top[0], in nats
  std::vector<Token> top;      // most likely next tokens
  std::vector<double> behind;  // their log-probabilities below that of top[0]; behind[0] = 0
};

struct PeerChunk {
  std::string names;  // files of tests/golden/text, joined by '+'
  std::vector<PeerRow> rows;
  std::vector<Token> tokens() const {
    std::vector<Token> out;
    for (const PeerRow& row : rows) out.push_back(row.token);
    return out;
  }
};

std::string golden_folder() {
  return std::string(KVASIR_SOURCE_DIR) + "/tests/golden/";
}

std::string read_text(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  EXPECT_TRUE(in.is_open()) << path;
  return {std::istreambuf_iterator<char>(in), {}};
}

std::vector<PeerChunk> read_goldens() {
  std::istringstream in(read_text(golden_folder() + "llama_cpp_smollm2.txt"));
  std::vector<PeerChunk> chunks;
  for (std::string line; std::getline(in, line);) {
    std::istringstream fields(line);
    if (line.starts_with('#')) continue;
    if (line.starts_with("chunk ")) {
      fields.ignore(6);
      fields >> chunks.emplace_back().names;
      continue;
    }
    PeerRow row;
    fields >> row.token;
    double thousandths = 0;
    for (Token id; fields >> id >> thousandths;) {
      if (row.top.empty()) {
        row.best_logprob = -thousandths / 1000;
        thousandths = 0;
      }
      row.top.push_back(id);
      row.behind.push_back(thousandths / 1000);
    }
    EXPECT_EQ(row.top.size(), 5u) << line;
    chunks.back().rows.push_back(std::move(row));
  }
  return chunks;
}

std::unique_ptr<ModelFile> open_model(const std::string& path) {
  auto file = ModelFile::open(path);
  EXPECT_TRUE(file.ok()) << file.status().message();
  return file.ok() ? std::move(file).value() : nullptr;
}

struct Agreement {
  uint64_t positions = 0;
  uint64_t agree = 0;
  uint64_t unknown = 0;       // our token is not among the peer's five
  double worst_gap = 0;       // of the peer, between its token and ours, where they differ
  double sum_difference = 0;  // of |log-probability| differences of the peer's token
  double worst_difference = 0;

  void add(const PeerRow& peer, std::span<const float> logits) {
    ++positions;
    const auto ours = static_cast<Token>(std::max_element(logits.begin(), logits.end()) - logits.begin());
    const float best = logits[static_cast<size_t>(ours)];
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x - best));
    const double logprob = logits[static_cast<size_t>(peer.top[0])] - best - std::log(sum);
    const double difference = std::fabs(logprob - peer.best_logprob);
    sum_difference += difference;
    worst_difference = std::max(worst_difference, difference);
    const auto place = std::find(peer.top.begin(), peer.top.end(), ours);
    if (place == peer.top.begin()) {
      ++agree;
    } else if (place == peer.top.end()) {
      ++unknown;
    } else {
      worst_gap = std::max(worst_gap, peer.behind[static_cast<size_t>(place - peer.top.begin())]);
    }
  }
  double share() const { return static_cast<double>(agree) / static_cast<double>(positions); }
  double mean_difference() const { return sum_difference / static_cast<double>(positions); }
};

class LlamaCppGolden : public testing::TestWithParam<ForcedPrecision> {};

// llama.cpp quantises activations to int8 in groups of 32, too, but rounds and sums otherwise.
constexpr double kAgreement = 0.99;
constexpr double kWorstGap = 0.5;         // nats
constexpr double kMeanDifference = 0.05;  // nats

TEST_P(LlamaCppGolden, PredictsTheSameTokens) {
  const std::string path = golden_model_path();
  if (path.empty()) GTEST_SKIP() << kNoGoldenModel;
  const auto file = open_model(path);
  ASSERT_NE(file, nullptr);
  Agreement agreement;
  TeacherForcing model(*file, GetParam(), kMaxTokens);
  for (const PeerChunk& chunk : read_goldens()) {
    const std::vector<Token> tokens = chunk.tokens();
    model.run(tokens, 256, [&](uint32_t position, std::span<const float> logits) {
      agreement.add(chunk.rows[position], logits);
    });
  }
  std::cout
      << fmt::format(
             "{}: {} of {} positions agree ({:.2f} %); where not, the peer's gap is at most {:.3f} nats "
             "({} beyond its five); log-probability of its token differs by {:.4f} on average, {:.3f} "
             "at most",
             describe(GetParam()), agreement.agree, agreement.positions, 100 * agreement.share(),
             agreement.worst_gap, agreement.unknown, agreement.mean_difference(), agreement.worst_difference)
      << std::endl;
  EXPECT_GE(agreement.positions, 2000u);
  EXPECT_GE(agreement.share(), kAgreement);
  EXPECT_LT(agreement.worst_gap, kWorstGap);
  EXPECT_EQ(agreement.unknown, 0u);
  EXPECT_LT(agreement.mean_difference(), kMeanDifference);
}

INSTANTIATE_TEST_SUITE_P(All, LlamaCppGolden,
                         testing::Values(ForcedPrecision{ops::ActivationType::kInt8, ops::KvType::kBf16},
                                         ForcedPrecision{ops::ActivationType::kInt8, ops::KvType::kF32},
                                         ForcedPrecision{ops::ActivationType::kF32, ops::KvType::kF32}),
                         [](const auto& instance) {
                           return std::string(instance.param.activation == ops::ActivationType::kInt8
                                                  ? "int8"
                                                  : "f32") +
                                  "_kv_" + ops::kv_type_name(instance.param.kv_type);
                         });

TEST(LlamaCppGoldenText, TokenizesTheSame) {
  const std::string path = golden_model_path();
  if (path.empty()) GTEST_SKIP() << kNoGoldenModel;
  const auto file = open_model(path);
  ASSERT_NE(file, nullptr);
  auto data = read_tokenizer_data(file->gguf());
  ASSERT_TRUE(data.ok()) << data.status().message();
  const auto tokenizer = Tokenizer::create(std::move(data).value());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  size_t chunks = 0;
  for (const PeerChunk& chunk : read_goldens()) {
    ++chunks;
    std::istringstream names(chunk.names);
    std::string text;
    for (std::string name; std::getline(names, name, '+');) {
      text += read_text(golden_folder() + "text/" + name + ".txt");
    }
    EXPECT_EQ(tokenizer->encode(text, /*parse_special=*/false), chunk.tokens()) << chunk.names;
  }
  EXPECT_GE(chunks, 4u);
}

}  // namespace
}  // namespace kvasir::test
