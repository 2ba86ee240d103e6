// Tables of steps, priced.
#include "apps/simulate/catalog/price.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>

#include "exec/toy_device.h"

namespace kvasir::test {
namespace {

DeviceTimes toy() {
  return DeviceTimes(toy_model(), toy_device(), {}, {});
}
std::string refusal(const std::string& text) {
  const Result<std::string> out = price_text(text, "steps.csv", toy());
  return out.ok() ? "" : out.status().message();
}
// Of the first step.
double total_of(const std::string& csv) {
  const size_t begin = csv.find('\n') + 1;
  const std::string line = csv.substr(begin, csv.find('\n', begin) - begin);
  return std::stod(line.substr(line.rfind(',') + 1));
}

TEST(PriceTest, GivesEachLineBackWithItsParts) {
  const Result<std::string> out =
      price_text("decode_rows,decode_context, sampled\n1,1000,0\r\n\n 2,2000,2\n", "steps.csv", toy());
  ASSERT_TRUE(out.ok()) << out.status().message();
  EXPECT_EQ(
      out->substr(0, out->find('\n')),
      "decode_rows,decode_context, sampled,linear_ms,attention_ms,elementwise_ms,collectives_ms,output_ms,"
      "projection_ms,remote_ms,engine_ms,total_ms");
  StepLoad load;
  load.decode_rows = 1;
  load.decode_context = 1000;
  EXPECT_NEAR(total_of(*out), 1e3 * toy().seconds(load), 1e-3);
  EXPECT_NE(out->find("\n2,2000,2,"), std::string::npos);
}

TEST(PriceTest, EveryColumnCounts) {
  const auto total = [](const std::string& text) { return total_of(*price_text(text, "steps.csv", toy())); };
  const double one = total("prefill_rows\n512\n");
  EXPECT_GT(total("prefill_rows,history\n512,8192\n"), one);
  EXPECT_GT(total("prefill_rows,chunks\n512,3\n"), one);
  EXPECT_GT(total("prefill_rows,projected\n512,4096\n"), one);
  EXPECT_GT(total("prefill_rows,decode_rows,decode_context\n512,4,400\n"), one);
  EXPECT_NEAR(total("prefill_rows,sampled\n512,1\n"), one, 1e-9);
  EXPECT_LT(total("prefill_rows,sampled\n512,0\n"), one);
  EXPECT_NEAR(total("prefill_rows,remote_queries,remote_tokens\n512,1,1000\n"),
              one + 4e3 * toy().remote_attention_seconds(1, 1000), 1e-2);
}

TEST(PriceTest, MistakesAreNamedWithTheirLine) {
  EXPECT_NE(refusal("rows\n1\n").find("steps.csv:1: column 'rows': take any of prefill_rows"),
            std::string::npos);
  EXPECT_NE(refusal("history,history\n").find("twice"), std::string::npos);
  EXPECT_NE(refusal("prefill_rows\n1\n\nx\n").find("steps.csv:4: prefill_rows is 'x'"), std::string::npos);
  EXPECT_NE(refusal("prefill_rows\n-1\n").find("steps.csv:2:"), std::string::npos);
  EXPECT_NE(refusal("prefill_rows\ninf\n").find("steps.csv:2:"), std::string::npos);
  EXPECT_NE(refusal("prefill_rows,history\n1\n").find("1 values under 2 columns"), std::string::npos);
  EXPECT_NE(refusal("prefill_rows,chunks\n1,1.5\n").find("chunks is 1.5"), std::string::npos);
  EXPECT_NE(refusal("decode_rows,decode_context\n4,3\n").find("decode_context below decode_rows"),
            std::string::npos);
  EXPECT_NE(refusal("\n").find("no header"), std::string::npos);
}

TEST(PriceTest, ReadsAFile) {
  const std::string path = testing::TempDir() + "/kvasir_price_test.csv";
  std::ofstream(path) << "prefill_rows\n16\n";
  EXPECT_TRUE(price_steps(path, toy()).ok());
  std::filesystem::remove(path);
  EXPECT_EQ(price_steps(path, toy()).status().code(), ErrorCode::kNotFound);
}

}  // namespace
}  // namespace kvasir::test
