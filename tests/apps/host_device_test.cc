// "This machine": the fit finds a truth that it can express, and the file keeps what it is given.
#include "apps/simulate/host_device.h"

#include <gtest/gtest.h>
#include <unistd.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "apps/simulate/times_fit.h"
#include "base/draws.h"

namespace kvasir {
namespace {

MeasuredTables truth() {
  MeasuredTables t;
  t.step_s = 2e-3;
  t.chunk_s = 1e-4;
  t.decode_s = 2e-5;
  t.projected_s = 1e-6;
  t.rows = {{0, 8, 64}, {3e-4, 5e-4, 4e-4}};
  t.sampled = {{0, 2}, {1e-3, 2e-4}};
  t.pairs = {{0}, {4e-7}};
  t.spans = {{0}, {6e-7}};
  t.contexts = {{0, 4096}, {1e-6, 2e-6}};
  t.engine_step_s = 1e-4;
  t.engine_sequence_s = 3e-6;
  return t;
}

std::vector<TimedLoad> observed(double noise) {
  std::vector<TimedLoad> out;
  const MeasuredTimes times(truth());
  uint64_t counter = 0;
  const auto add = [&](double batch, double context, double rows, double history, double projected) {
    StepLoad load;
    load.decode_rows = batch;
    load.decode_context = batch * context;
    load.projected = projected;
    load.sampled = batch;
    if (rows > 0) {
      load.chunks.push_back({.rows = rows, .history = history});
      load.sampled += out.size() % 2;
    }
    const double z = noise > 0 ? normal_draw(7, 1, &counter) : 0;
    out.push_back({load, times.executor_seconds(load) * std::exp(noise * z)});
  };
  for (double rows : {1, 2, 4, 6, 8, 12, 16, 24, 32, 48, 64, 96, 128, 256, 512, 1024}) {
    for (double history : {0, 64, 300, 1024, 5000}) add(0, 0, rows, history, 0);
  }
  for (double batch : {1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64}) {
    for (double context : {16, 64, 256, 1000, 4096}) add(batch, context, 0, 0, 0);
    for (double rows : {8, 64, 200}) add(batch, 100, rows, 50, 0);
    add(batch, 100, 0, 0, 3000 * batch);
  }
  return out;
}

TEST(TimesFit, FindsATruthThatItCanExpress) {
  const std::vector<TimedLoad> seen = observed(0);
  MeasuredTables fitted = tables_to_fit(seen);
  fit_times(seen, fitted);
  EXPECT_LT(error_of(fitted, seen).worst, 0.005);
  EXPECT_LT(held_out_error(seen).worst, 0.02);
  // Loads that are unlike any that it has seen, the last ones beyond them.
  StepLoad load;
  load.chunks = {{.rows = 40, .history = 700}, {.rows = 20, .history = 0}};
  load.decode_rows = 10;
  load.decode_context = 5500;
  load.sampled = 11;
  load.projected = 1000;
  const MeasuredTimes times(fitted), real(truth());
  EXPECT_NEAR(times.executor_seconds(load) / real.executor_seconds(load), 1, 0.01);
  load.chunks[0].rows = 3000;
  EXPECT_NEAR(times.executor_seconds(load) / real.executor_seconds(load), 1, 0.02);
}

TEST(TimesFit, NoKnotLiesBeyondWhatWasSeen) {
  StepLoad load;
  load.decode_rows = 5;
  const MeasuredTables t = tables_to_fit({{load, 1}});
  EXPECT_EQ(t.rows.knots, (std::vector<double>{0, 1, 2, 4}));
  EXPECT_EQ(t.pairs.knots, (std::vector<double>{0}));
}

TEST(TimesFit, NoCoefficientIsNegative) {
  // More rows take less time.
  std::vector<TimedLoad> seen;
  for (double rows : {1, 10, 100}) {
    StepLoad load;
    load.chunks = {{.rows = rows}};
    seen.push_back({load, 1 / rows});
  }
  MeasuredTables fitted = tables_to_fit(seen);
  fit_times(seen, fitted);
  for (double c : coefficients(fitted)) EXPECT_GE(c, 0);
}

TEST(TimesFit, NoiseAroundTheFit) {
  std::vector<TimedLoad> seen;
  for (int i = 0; i < 20; ++i) {
    for (const TimedLoad& o : observed(0)) seen.push_back(o);
  }
  uint64_t counter = 0;
  for (TimedLoad& o : seen) o.seconds *= 1.5 * std::exp(0.1 * normal_draw(3, 2, &counter));
  const TimeNoise noise = noise_of(truth(), seen);
  EXPECT_NEAR(noise.deviation, 0.1, 0.01);
  EXPECT_NEAR(noise.mean, 1.5 * std::exp(0.005), 0.02);
  EXPECT_NEAR(noise.p99 / noise.expected_p99, 1, 0.05);
  MeasuredTables scaled = truth();
  scale_times(scaled, 2);
  EXPECT_DOUBLE_EQ(scaled.contexts.slopes[1], 4e-6);
  EXPECT_DOUBLE_EQ(scaled.engine_step_s, 1e-4);
}

TEST(TimesFit, EngineWithoutItsIdleTime) {
  std::vector<EngineGap> gaps;
  for (double n = 1; n <= 40; ++n) gaps.push_back({n, 1e-4 + 3e-6 * n});
  gaps.push_back({1, 0.5});
  MeasuredTables t;
  fit_engine(gaps, t);
  EXPECT_NEAR(t.engine_step_s, 1e-4, 1e-9);
  EXPECT_NEAR(t.engine_sequence_s, 3e-6, 1e-10);
}

class HostDeviceFile : public testing::Test {
 protected:
  void SetUp() override {
    folder_ = std::filesystem::temp_directory_path() / fmt::format("kvasir-host-device-{}", getpid());
    std::filesystem::create_directories(folder_);
    path_ = folder_ / "truth.json";
  }
  void TearDown() override { std::filesystem::remove_all(folder_); }

  static HostDevice device() {
    HostDevice d;
    d.model = "toy \xff";  // not UTF-8, as a file's name may be
    d.fingerprint = "cpu='x'";
    d.measured_at = 1'700'000'000;
    d.threads = 3;
    d.tables = truth();
    d.noise = 0.04;
    d.request_s = 2e-3;
    d.geometry = {64, 30, 4, 384, 612};
    d.max_model_len = 8192;
    d.vocab_size = 49'152;
    d.links[index_of(Tier::kHost)][index_of(Tier::kDevice)] = {1e-5, 2e-10};
    d.fit = {0.01, 0.02, 0.03, 40};
    d.tail = {1.01, 0.04, 1.3, 1.1};
    return d;
  }
  std::string text() const {
    std::ifstream in(path_);
    std::ostringstream out;
    out << in.rdbuf();
    return out.str();
  }
  Status loaded(const std::string& changed) const {
    std::ofstream(path_) << changed;
    return load_host_device(path_).status();
  }

  std::filesystem::path folder_, path_;
};

TEST_F(HostDeviceFile, KeepsWhatItIsGiven) {
  const HostDevice d = device();
  ASSERT_TRUE(save_host_device(d, path_).ok());
  const Result<HostDevice> again = load_host_device(path_);
  ASSERT_TRUE(again.ok()) << again.status().message();
  EXPECT_EQ(again->tables, d.tables);
  EXPECT_EQ(again->links, d.links);
  EXPECT_EQ(again->fingerprint, d.fingerprint);
  EXPECT_EQ(again->measured_at, d.measured_at);
  EXPECT_EQ(again->threads, 3);
  EXPECT_EQ(again->noise, 0.04);
  EXPECT_EQ(again->request_s, 2e-3);
  EXPECT_EQ(again->geometry.groups(), 8u);
  EXPECT_EQ(again->geometry.kv_plane_bytes_per_token_layer, 384u);
  EXPECT_EQ(again->geometry.x_bytes_per_token_layer, 612u);
  EXPECT_EQ(again->max_model_len, 8192u);
  EXPECT_EQ(again->vocab_size, 49'152);
  EXPECT_EQ(again->fit.worst, 0.03);
  EXPECT_EQ(again->tail.p99, 1.3);
  StepLoad load;
  load.decode_rows = 3;
  EXPECT_EQ(again->times->seconds(load), MeasuredTimes(d.tables).seconds(load));
}

TEST_F(HostDeviceFile, SaysInOneLineWhatIsWrong) {
  const Status missing = load_host_device(path_).status();
  EXPECT_EQ(missing.code(), ErrorCode::kNotFound);
  EXPECT_NE(missing.message().find("profile --full"), std::string::npos);
  ASSERT_TRUE(save_host_device(device(), path_).ok());
  const std::string whole = text();
  const auto with = [&](std::string_view from, std::string_view to) {
    std::string out = whole;
    const size_t at = out.find(from);
    EXPECT_NE(at, std::string::npos) << from;
    return out.replace(at, from.size(), to);
  };
  ASSERT_TRUE(loaded(whole).ok());
  for (const std::string& damaged :
       {std::string(), std::string("[]"), std::string("{\"kvasir_cost_profile\": 1}"),
        whole.substr(0, whole.size() / 2), with("\"kvasir_host_device\": 1", "\"kvasir_host_device\": 2"),
        with("\"noise\": 0.04", "\"noise\": -1"), with("\"noise\": 0.04", "\"noise\": 1e999"),
        with("\"noise\": 0.04", "\"noise\": \"x\""), with("\"layers\": 30", "\"layers\": 0"),
        with("\"block_tokens\": 64", "\"block_tokens\": 48"),
        with("\"layers_per_group\": 4", "\"layers_per_group\": 31"), with("\"vocab_size\"", "\"words\""),
        with("\"host\"", "\"cloud\""), with("\"request_s\": 0.002", "\"request_s\": null")}) {
    const Status status = loaded(damaged);
    ASSERT_FALSE(status.ok()) << damaged;
    EXPECT_EQ(status.code(), ErrorCode::kCorrupt);
    EXPECT_EQ(status.message().find('\n'), std::string::npos);
  }
}

TEST_F(HostDeviceFile, NoPrefixOfTheFileIsOne) {
  ASSERT_TRUE(save_host_device(device(), path_).ok());
  const std::string whole = text();
  for (size_t n = 0; n + 2 < whole.size(); n += 37) EXPECT_FALSE(loaded(whole.substr(0, n)).ok()) << n;
}

TEST_F(HostDeviceFile, AFolderThatIsMissingIsAnError) {
  EXPECT_EQ(save_host_device(device(), folder_ / "none" / "truth.json").code(), ErrorCode::kIo);
}

}  // namespace
}  // namespace kvasir
