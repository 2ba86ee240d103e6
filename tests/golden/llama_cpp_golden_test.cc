// A real model against llama.cpp, position by position: see make_llama_cpp_goldens.py.
//
// There are two goldens: llama.cpp as people run it, on quantised weights with int8 activations, and
// llama.cpp on the same weights in f32. The second is what both programs approximate with int8, so each can
// be judged by it.
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
#include "model/tokenizers/tokenizer_gguf.h"

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

// `which`: "f32" or "q4_1"
std::vector<PeerChunk> read_goldens(const std::string& which) {
  std::istringstream in(read_text(golden_folder() + "llama_cpp_" + which + ".txt"));
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

constexpr double kFar = 0.3;  // nats

// How far next-token predictions are from a golden.
struct Agreement {
  uint64_t positions = 0;
  uint64_t agree = 0;
  uint64_t unknown = 0;       // a most likely token that is not among the golden's five
  uint64_t far = 0;           // where they differ by more than kFar of the golden's nats
  double worst_gap = 0;       // of the golden, between its token and the other one, where they differ
  double sum_difference = 0;  // of the log-probabilities of the golden's token, absolute
  double worst_difference = 0;

  // `best` is the most likely token, `logprob` the log-probability of golden.top[0].
  void add(const PeerRow& golden, Token best, double logprob) {
    ++positions;
    const double difference = std::fabs(logprob - golden.best_logprob);
    sum_difference += difference;
    worst_difference = std::max(worst_difference, difference);
    const auto place = std::find(golden.top.begin(), golden.top.end(), best);
    if (place == golden.top.begin()) {
      ++agree;
    } else if (place == golden.top.end()) {
      ++unknown;
    } else {
      const double gap = golden.behind[static_cast<size_t>(place - golden.top.begin())];
      worst_gap = std::max(worst_gap, gap);
      far += gap > kFar ? 1 : 0;
    }
  }
  void add(const PeerRow& golden, std::span<const float> logits) {
    const auto best = std::max_element(logits.begin(), logits.end());
    double sum = 0;
    for (float x : logits) sum += std::exp(static_cast<double>(x - *best));
    add(golden, static_cast<Token>(best - logits.begin()),
        logits[static_cast<size_t>(golden.top[0])] - *best - std::log(sum));
  }

  double share() const { return static_cast<double>(agree) / static_cast<double>(positions); }
  double mean_difference() const { return sum_difference / static_cast<double>(positions); }
  void print(const std::string& what) const {
    std::cout
        << fmt::format(
               "{}: {} of {} tokens agree ({:.2f} %), the others are at most {:.3f} nats behind ({} of them "
               "by more than {}, {} beyond the five); log-probabilities differ by {:.4f} on average, {:.3f} "
               "at most",
               what, agree, positions, 100 * share(), worst_gap, far, kFar, unknown, mean_difference(),
               worst_difference)
        << std::endl;
  }
};

// What llama.cpp's own int8 arithmetic costs it. Where its token in f32 is beyond the five of the other
// golden, the log-probability is taken to be that of the fifth.
Agreement int8_of_the_peer() {
  Agreement agreement;
  const std::vector<PeerChunk> exact = read_goldens("f32"), rounded = read_goldens("q4_1");
  for (size_t c = 0; c < exact.size(); ++c) {
    for (size_t i = 0; i < exact[c].rows.size(); ++i) {
      const PeerRow& row = rounded.at(c).rows.at(i);
      const auto place = std::find(row.top.begin(), row.top.end() - 1, exact[c].rows[i].top[0]);
      const double behind = row.behind[static_cast<size_t>(place - row.top.begin())];
      agreement.add(exact[c].rows[i], row.top[0], row.best_logprob - behind);
    }
  }
  return agreement;
}

class LlamaCppGolden : public testing::Test {
 protected:
  void SetUp() override {
    const std::string path = golden_model_path();
    if (path.empty()) GTEST_SKIP() << kNoGoldenModel;
    file_ = open_model(path);
    ASSERT_NE(file_, nullptr);
  }

  // Of ours with one of the goldens.
  Agreement agreement(const std::string& which, const ForcedPrecision& precision) {
    Agreement result;
    TeacherForcing model(*file_, precision, kMaxTokens, /*threads=*/2);
    for (const PeerChunk& chunk : read_goldens(which)) {
      const std::vector<Token> tokens = chunk.tokens();
      model.run(tokens, 256, [&](uint32_t position, std::span<const float> logits) {
        result.add(chunk.rows[position], logits);
      });
    }
    result.print(fmt::format("{} against llama.cpp in {}", describe(precision), which));
    EXPECT_GE(result.positions, 2000u);
    EXPECT_EQ(result.unknown, 0u);
    return result;
  }

  std::unique_ptr<ModelFile> file_;
};

constexpr ForcedPrecision kExact = {ops::ActivationMode::kF32, ops::KvType::kF32};
constexpr ForcedPrecision kInt8 = {ops::ActivationMode::kAuto, ops::KvType::kF32};
constexpr ForcedPrecision kServed = {ops::ActivationMode::kAuto, ops::KvType::kBf16};  // the default

TEST_F(LlamaCppGolden, TheSameInF32) {
  const Agreement ours = agreement("f32", kExact);
  EXPECT_GE(ours.share(), 0.998);
  EXPECT_LT(ours.worst_gap, 0.005);  // goldens are in thousandths
  EXPECT_LT(ours.worst_difference, 0.01);
}

// Int8 activations cost us no more than they cost llama.cpp.
TEST_F(LlamaCppGolden, Int8IsAsGoodAsThePeers) {
  const Agreement peer = int8_of_the_peer();
  peer.print("llama.cpp in q4_1 against llama.cpp in f32");
  for (const ForcedPrecision& precision : {kInt8, kServed}) {
    const Agreement ours = agreement("f32", precision);
    EXPECT_GE(ours.share(), peer.share() - 0.005) << describe(precision);
    EXPECT_LT(ours.mean_difference(), 1.1 * peer.mean_difference()) << describe(precision);
    EXPECT_LE(ours.far, ours.positions / 500) << describe(precision);
    EXPECT_LT(ours.worst_gap, 0.9) << describe(precision);
  }
}

// Both round, each in its own way.
TEST_F(LlamaCppGolden, CloseToThePeerAsItIsRun) {
  for (const ForcedPrecision& precision : {kExact, kServed}) {
    const Agreement ours = agreement("q4_1", precision);
    EXPECT_GE(ours.share(), 0.955) << describe(precision);
    EXPECT_LT(ours.worst_gap, 0.6) << describe(precision);
    EXPECT_LT(ours.mean_difference(), 0.06) << describe(precision);
  }
}

TEST_F(LlamaCppGolden, TokenizesTheSame) {
  auto data = read_tokenizer_data(file_->gguf());
  ASSERT_TRUE(data.ok()) << data.status().message();
  const auto tokenizer = Tokenizer::create(std::move(data).value());
  ASSERT_TRUE(tokenizer.ok()) << tokenizer.status().message();
  size_t chunks = 0;
  for (const PeerChunk& chunk : read_goldens("f32")) {
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
