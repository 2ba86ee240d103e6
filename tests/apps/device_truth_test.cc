// What every device and model of the catalogue must do, and what the fits say of themselves.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "apps/simulate/catalog/catalog.h"
#include "apps/simulate/catalog/catalog_files.h"
#include "exec/sim/device_times.h"

namespace kvasir::test {
namespace {

using Json = nlohmann::json;

DeviceTimes times(const std::string& model, const std::string& device, Parallelism p = {}) {
  return DeviceTimes(find_model(model).value(), find_device(device).value(), p,
                     find_overhead("kvasir").value());
}
StepLoad chunk(double rows, double history = 0) {
  StepLoad load;
  load.chunks.push_back({rows, history});
  return load;
}
StepLoad decode(double rows, double context_of_each) {
  StepLoad load;
  load.decode_rows = rows;
  load.decode_context = rows * context_of_each;
  load.sampled = rows;
  return load;
}

class DeviceTruthTest : public testing::TestWithParam<std::string> {};

TEST_P(DeviceTruthTest, EveryModelOverEveryNumberOfCardsIsFiniteAndPositive) {
  const DeviceSpec device = find_device(GetParam()).value();
  EXPECT_FALSE(device.source.empty());
  for (const auto& [kernel, error] : device.fit) {
    EXPECT_GT(error.points, 100u) << kernel;
    EXPECT_GT(error.mean_percent, 0) << kernel;
    EXPECT_LT(error.held_out_mean_percent, 20) << kernel;
  }
  for (const std::string& name : model_names()) {
    const ModelShape model = find_model(name).value();
    for (const uint32_t tensor : {1, 2, 3, 4, 8}) {
      for (const uint32_t pipeline : {1, 2}) {
        const Parallelism p{tensor, pipeline};
        if (!DeviceTimes::check(model, device, p).ok()) continue;
        const DeviceTimes t(model, device, p, {});
        for (const double rows : {1.0, 7.0, 100.0, 5000.0, 400000.0}) {
          for (const double other : {1.0, 100.0, 100000.0}) {
            for (const StepLoad& load : {chunk(rows, other), decode(rows, other)}) {
              const StepParts parts = t.parts(load);
              ASSERT_TRUE(std::isfinite(parts.total()))
                  << name << " " << tensor << " " << rows << " " << other;
              ASSERT_GT(parts.linear, 0);
              ASSERT_GT(parts.attention, 0);
              ASSERT_EQ(parts.collectives > 0, p.cards() > 1);
            }
          }
        }
      }
    }
  }
}

// A row reads 2 of Mixtral's 8 experts, 64 rows read all: 84 MB of attention and 705 or 2,819 MB of experts
// in a layer, so 0.27 of the bytes.
TEST_P(DeviceTruthTest, AStepReadsTheExpertsThatItsRowsChoose) {
  const DeviceTimes t = times("mixtral-8x7b", GetParam(), {1, 1});
  EXPECT_NEAR(t.model().experts_touched(1), 2, 1e-12);
  EXPECT_NEAR(t.model().experts_touched(2), 3.5, 1e-12);
  const double share = t.parts(decode(1, 100)).linear / t.parts(decode(64, 6400)).linear;
  EXPECT_GT(share, 0.2);
  EXPECT_LT(share, 0.4);
}

TEST_P(DeviceTruthTest, MoreWorkNeverTakesLess) {
  for (const char* name : {"opt-13b", "llama-3-8b", "yi-34b-200k", "mixtral-8x7b", "qwen3-30b-a3b"}) {
    for (const uint32_t tensor : {1, 2, 4}) {
      const DeviceTimes t = times(name, GetParam(), {tensor, 1});
      for (const double fixed : {0.0, 512.0, 8192.0, 65536.0}) {
        double last = 0;
        for (double rows = 1; rows < 20000; rows *= 1.17) {
          const double now = t.seconds(chunk(std::floor(rows), fixed));
          ASSERT_GE(now, last) << name << " TP" << tensor << " rows " << rows << " history " << fixed;
          last = now;
        }
      }
      for (const double rows : {1.0, 64.0, 512.0, 4096.0}) {
        double last = 0;
        for (double history = 0; history < 1e5; history = history * 1.2 + 16) {
          const double now = t.seconds(chunk(rows, history));
          ASSERT_GE(now, last) << name << " TP" << tensor << " rows " << rows << " history " << history;
          last = now;
        }
        last = 0;
        for (double context = 1; context < 1e5; context *= 1.2) {
          const double now = t.seconds(decode(std::min(rows, 512.0), context));
          ASSERT_GE(now, last) << name << " TP" << tensor << " batch " << rows << " context " << context;
          last = now;
        }
      }
      for (const double context : {16.0, 1024.0, 16384.0}) {
        double last = 0;
        for (double rows = 1; rows < 1024; ++rows) {
          const double now = t.seconds(decode(rows, context));
          ASSERT_GE(now, last) << name << " TP" << tensor << " batch " << rows << " context " << context;
          last = now;
        }
      }
    }
  }
}

TEST_P(DeviceTruthTest, AChunkBesideAnotherNeitherComesFreeNorCostsMoreThanAlone) {
  constexpr double kSlack = 1.03;  // the largest products were measured to be a little slower for each row
  const DeviceTimes t = times("llama-2-7b", GetParam());
  for (const double small : {1.0, 64.0, 1024.0}) {
    StepLoad both = chunk(2048, 1024);
    both.chunks.push_back({small, 256});
    EXPECT_GT(t.seconds(both), t.seconds(chunk(2048, 1024)));
    EXPECT_LT(t.seconds(both), kSlack * (t.seconds(chunk(2048, 1024)) + t.seconds(chunk(small, 256))));
    StepLoad hybrid = chunk(2048, 1024);
    hybrid.decode_rows = small;
    hybrid.decode_context = small * 500;
    EXPECT_LT(t.seconds(hybrid), kSlack * (t.seconds(chunk(2048, 1024)) + t.seconds(decode(small, 500))));
  }
}

TEST_P(DeviceTruthTest, CardsShareTheWork) {
  double last = 1e9;
  for (const uint32_t tensor : {1, 2, 4, 8}) {
    const StepParts p = times("llama-2-70b", GetParam(), {tensor, 1}).parts(chunk(2048));
    EXPECT_LT(p.linear, last);
    EXPECT_GT(p.linear, 0.45 * (last < 1e9 ? last : p.linear));  // never better than half
    last = p.linear;
  }
}

INSTANTIATE_TEST_SUITE_P(Catalog, DeviceTruthTest, testing::ValuesIn(device_names()), [](const auto& entry) {
  std::string name = entry.param;
  std::replace(name.begin(), name.end(), '-', '_');
  return name;
});

// The examples are points of the profiles that the fit did not see, in the devices' files.
TEST(DeviceTruth, FitsMeetTheirExamples) {
  int seen = 0;
  for (const CatalogFile& file : catalog_files()) {
    if (!file.path.starts_with("devices/")) continue;
    const Json json = Json::parse(file.text);
    const DeviceSpec device = parse_device(file.text, std::string(file.path)).value();
    for (const auto& [kernel, fit] : json.at("fit").items()) {
      double sum = 0;
      const Json examples = fit.value("examples", Json::array());
      for (const Json& e : examples) {
        const auto at = [&](const char* key) { return e.at(key).get<double>(); };
        ModelShape model = find_model("llama-2-7b").value();
        double now = 0;
        if (kernel == "gemm") {
          now = DeviceTimes(model, device, {}, {}).gemm_seconds(at("m"), at("n"), at("k"));
        } else {
          model.heads = static_cast<uint32_t>(at("q_heads"));
          model.kv_heads = static_cast<uint32_t>(at("kv_heads"));
          const DeviceTimes t(model, device, {}, {});
          if (kernel == "prefill_attention") {
            const StepLoad::Chunk one{at("prompt_len"), 0};
            now = t.prefill_attention_seconds(
                std::vector<StepLoad::Chunk>(static_cast<size_t>(at("batch")), one));
          } else {
            now = t.decode_attention_seconds(at("batch"), at("batch") * at("kv_len"));
          }
        }
        EXPECT_NEAR(now / at("fitted_s"), 1, 0.002) << file.path << " " << kernel << " " << e.dump();
        sum += std::abs(now / at("measured_s") - 1);
        ++seen;
      }
      if (!examples.empty()) {
        EXPECT_LT(100 * sum / static_cast<double>(examples.size()),
                  fit.at("held_out_p95_percent").get<double>())
            << file.path << " " << kernel;
      }
    }
  }
  EXPECT_GT(seen, 80);
}

TEST(DeviceTruth, DerivedDevicesDifferAsTheySay) {
  const double l40s = times("opt-13b", "l40s").parts(chunk(8192)).linear;
  EXPECT_NEAR(times("opt-13b", "l20").parts(chunk(8192)).linear / l40s, 362.05 / 119.5, 0.05);
  EXPECT_NEAR(
      times("opt-13b", "l20").seconds(decode(1, 100)) / times("opt-13b", "l40s").seconds(decode(1, 100)), 1,
      0.05);
  EXPECT_NEAR(times("opt-13b", "a100-40g").parts(decode(1, 100)).linear /
                  times("opt-13b", "a100-80g").parts(decode(1, 100)).linear,
              2.039 / 1.555, 0.05);
  const PcieSpec one = find_device("l20").value().pcie, pair = find_device("l20-pcie-pair").value().pcie;
  EXPECT_DOUBLE_EQ(pair.usable(), one.usable() / 2);
}

}  // namespace
}  // namespace kvasir::test
