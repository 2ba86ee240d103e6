#include "apps/simulate_command.h"

#include <fmt/format.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <sstream>

namespace kvasir::test {

Args operator+(Args a, const Args& b) {
  a.insert(a.end(), b.begin(), b.end());
  return a;
}

void parse(CLI::App& app, const Args& args) {
  try {
    app.parse(std::vector<std::string>(args.rbegin(), args.rend()));
  } catch (const CLI::ParseError& e) {
    ADD_FAILURE() << e.what();
  }
}

SimulateOptions options_of(const Args& args) {
  SimulateOptions options;
  CLI::App app;
  add_simulate_flags(app, options);
  // So that a test can change one flag of a command.
  for (CLI::Option* option : app.get_options()) {
    if (option->get_items_expected_max() == 1) option->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  }
  parse(app, args);
  return options;
}

Ran ran_by(const std::function<int(std::ostream& out, std::ostream& err)>& command) {
  std::ostringstream out, err;
  Ran result;
  result.code = command(out, err);
  result.out = out.str();
  result.err = err.str();
  return result;
}

Ran command(const Args& args) {
  return ran_by(
      [&](std::ostream& out, std::ostream& err) { return run_simulate(options_of(args), out, err); });
}

std::string refusal(const Args& args) {
  const Ran ran = command(args);
  EXPECT_EQ(ran.code, 1) << ran.out;
  const std::string begin = "kvasir simulate: ";
  EXPECT_EQ(ran.err.substr(0, begin.size()), begin);
  if (ran.err.size() <= begin.size()) return "";
  EXPECT_EQ(ran.err.find('\n'), ran.err.size() - 1) << "one line";
  return ran.err.substr(begin.size(), ran.err.size() - begin.size() - 1);
}

Answer answer_of(const Args& args) {
  std::ostringstream out, err;
  Result<Answer> got = answer(options_of(args), {out, err, false});
  EXPECT_TRUE(got.ok()) << got.status().message();
  return got.ok() ? *std::move(got) : Answer();
}

void CommandTest::SetUp() {
  const auto* info = testing::UnitTest::GetInstance()->current_test_info();
  folder_ = std::filesystem::temp_directory_path() /
            fmt::format("kvasir-{}-{}-{}", info->test_suite_name(), info->name(), getpid());
  std::filesystem::create_directories(folder_);
}
void CommandTest::TearDown() {
  std::error_code ignored;
  std::filesystem::remove_all(folder_, ignored);
}

std::string CommandTest::write(const std::string& name, const std::string& text) const {
  std::ofstream(in_folder(name)) << text;
  return in_folder(name);
}

std::string CommandTest::read(const std::string& name) const {
  std::ifstream in(in_folder(name));
  EXPECT_TRUE(in.good()) << name;
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

Args CommandTest::host(const HostDevice& device, uint64_t kv_tokens) const {
  const std::string path = in_folder("truth.json");
  EXPECT_TRUE(save_host_device(device, path).ok());
  return {"--device", path, "--kv-cache-memory-bytes", fmt::format("{}", 32 * kv_tokens)};
}
Args CommandTest::host(const MeasuredTables& tables, uint64_t kv_tokens) const {
  return host(clockwork(tables), kv_tokens);
}

HostDevice clockwork(const MeasuredTables& tables) {
  HostDevice d;
  d.model = "clockwork";
  d.tables = tables;
  d.geometry = {16, 2, 1, 8};
  d.max_model_len = 4096;
  d.vocab_size = 1000;
  return d;
}

MeasuredTables tables(double step_s, double decode_s) {
  MeasuredTables t;
  t.step_s = step_s;
  t.decode_s = decode_s;
  return t;
}

Args lengths(int prompt, int output, int requests) {
  return {"--workload",          "random",
          "--random-input-len",  fmt::format("{}", prompt),
          "--random-output-len", fmt::format("{}", output),
          "--num-prompts",       fmt::format("{}", requests)};
}

}  // namespace kvasir::test
