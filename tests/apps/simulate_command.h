// Commands of `kvasir simulate` as tests write them, and devices whose times are worked out by hand.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "apps/simulate/answer.h"
#include "apps/simulate/host_device.h"
#include "apps/simulate/simulate.h"
#include "apps/simulate/study.h"

namespace CLI {
class App;
}

namespace kvasir::test {

using Args = std::vector<std::string>;
Args operator+(Args a, const Args& b);

// Parses them; the test fails unless the app's flags take them.
void parse(CLI::App& app, const Args& args);
// Of a flag that is given twice the last one counts. REQUIRES: the flags take them; else the test fails.
SimulateOptions options_of(const Args& args);

struct Ran {
  int code = 0;
  std::string out, err;
};
// What a command returns, and prints.
Ran ran_by(const std::function<int(std::ostream& out, std::ostream& err)>& command);
Ran command(const Args& args);
// The error's line, without what names the program; fails unless there is exactly one line.
std::string refusal(const Args& args);
// Fails the test where the command does.
Answer answer_of(const Args& args);

// A folder of its own for each test.
class CommandTest : public testing::Test {
 protected:
  void SetUp() override;
  void TearDown() override;
  std::string in_folder(const std::string& name) const { return (folder_ / name).string(); }
  // Gives its path.
  std::string write(const std::string& name, const std::string& text) const;
  std::string read(const std::string& name) const;
  // The truth of `device`, with --kv-cache-memory-bytes for so many tokens, and no overhead of any kind.
  Args host(const HostDevice& device, uint64_t kv_tokens) const;
  Args host(const MeasuredTables& tables, uint64_t kv_tokens) const;

  std::filesystem::path folder_;
};

// Two layers, 32 bytes of K and V for a token; tables are those of the test.
HostDevice clockwork(const MeasuredTables& tables);
// A step takes this long, and each decode this much more.
MeasuredTables tables(double step_s, double decode_s = 0);

// So many requests of one length, prompt and output.
Args lengths(int prompt, int output, int requests);

}  // namespace kvasir::test
