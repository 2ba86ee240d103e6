// Each mistake on the command line gets one line that names the command, the argument and what was expected.
#include "apps/flags/command_line.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <sstream>
#include <vector>

namespace kvasir {
namespace {

using ::testing::HasSubstr;

class CommandLineTest : public testing::Test {
 protected:
  CommandLineTest() {
    app_.require_subcommand(1);
    CLI::App* serve = app_.add_subcommand("serve", "Serve");
    serve->add_option("model,-m,--model", model_)->required();
    serve->add_option("--port", port_)->check(between(0, 65535));
    serve->add_option("--share", share_)->check(between(0.0, 1.0));
    serve->add_option("--max-num-seqs", seqs_);
    serve->add_option("--shift", shift_);
    serve->add_option("--factor", factor_);
    serve->add_flag("--cache,!--no-cache", cache_);
    app_.add_subcommand("simulate", "Simulate");
    CLI::App* cluster = app_.add_subcommand("cluster", "Look at a cluster");
    cluster->require_subcommand(1);
    cluster->add_subcommand("status", "Status");
  }

  std::optional<int> parse(std::vector<const char*> arguments) {
    arguments.insert(arguments.begin(), "kvasir");
    out_.str("");
    err_.str("");
    return parse_command_line(app_, static_cast<int>(arguments.size()), arguments.data(), out_, err_);
  }
  // What is said of a mistake, without the end of the line.
  std::string refusal(std::vector<const char*> arguments) {
    EXPECT_EQ(parse(std::move(arguments)), 2);
    EXPECT_EQ(out_.str(), "");
    const std::string line = err_.str();
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    return line.substr(0, line.find('\n'));
  }

  CLI::App app_{"A test", "kvasir"};
  std::string model_;
  uint16_t port_ = 0;
  double share_ = 0;
  uint32_t seqs_ = 0;
  int32_t shift_ = 0;
  double factor_ = 0;
  bool cache_ = false;
  std::ostringstream out_, err_;
};

TEST_F(CommandLineTest, WhatIsRightIsTaken) {
  EXPECT_EQ(parse({"serve", "m.gguf", "--port=65535", "--share", "0.5", "--shift", "-3", "--no-cache"}),
            std::nullopt);
  EXPECT_EQ(model_, "m.gguf");
  EXPECT_EQ(port_, 65535);
  EXPECT_EQ(share_, 0.5);
  EXPECT_EQ(shift_, -3);
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandLineTest, HelpGoesToTheOutput) {
  EXPECT_EQ(parse({"serve", "--help"}), 0);
  EXPECT_THAT(out_.str(), HasSubstr("--port UINT:0 to 65535"));
  EXPECT_EQ(err_.str(), "");
}

TEST_F(CommandLineTest, ANumberOutOfBoundsNamesThem) {
  EXPECT_EQ(refusal({"serve", "m", "--port", "80000"}),
            "kvasir serve: --port: '80000' is not a whole number from 0 to 65535");
  EXPECT_EQ(refusal({"serve", "m", "--port", "http"}),
            "kvasir serve: --port: 'http' is not a whole number from 0 to 65535");
  EXPECT_EQ(refusal({"serve", "m", "--share", "1.5"}),
            "kvasir serve: --share: '1.5' is not a number from 0 to 1");
  EXPECT_EQ(refusal({"serve", "m", "--share", "nan"}),
            "kvasir serve: --share: 'nan' is not a number from 0 to 1");
}

TEST_F(CommandLineTest, AValueOfAnotherTypeNamesWhatIsExpected) {
  EXPECT_EQ(refusal({"serve", "m", "--max-num-seqs", "many"}),
            "kvasir serve: --max-num-seqs: 'many' is not a whole number of 0 or more");
  EXPECT_EQ(refusal({"serve", "m", "--max-num-seqs", "-1"}),
            "kvasir serve: --max-num-seqs: '-1' is not a whole number of 0 or more");
  EXPECT_EQ(refusal({"serve", "m", "--max-num-seqs", "5000000000"}),
            "kvasir serve: --max-num-seqs: '5000000000' is too large");
  EXPECT_EQ(refusal({"serve", "m", "--shift", "1.5"}), "kvasir serve: --shift: '1.5' is not a whole number");
  EXPECT_EQ(refusal({"serve", "m", "--factor", "x"}), "kvasir serve: --factor: 'x' is not a number");
  EXPECT_EQ(refusal({"serve", "m", "--cache=maybe"}), "kvasir serve: --cache: 'maybe' is not true or false");
}

TEST_F(CommandLineTest, AValueIsMissingOrGivenTwice) {
  EXPECT_EQ(refusal({"serve", "m", "--port"}), "kvasir serve: --port: its value is missing");
  EXPECT_EQ(refusal({"serve", "m", "--port", "1", "--port", "2"}), "kvasir serve: --port is given 2 times");
  EXPECT_EQ(refusal({"serve"}), "kvasir serve: --model is required");
  EXPECT_EQ(refusal({"serve", "m", "more"}),
            "kvasir serve: unexpected argument 'more' (see kvasir serve --help)");
}

TEST_F(CommandLineTest, AnUnknownFlagNamesTheNearestOne) {
  const std::string port =
      "kvasir serve: unknown flag --prot; did you mean --port? (see kvasir serve --help)";
  EXPECT_EQ(refusal({"serve", "m", "--prot", "9202"}), port);
  EXPECT_EQ(refusal({"serve", "--prot", "9202", "m"}), port) << "9202 was taken for the model";
  EXPECT_EQ(refusal({"serve", "m", "--prot=9202"}), port);
  EXPECT_THAT(refusal({"serve", "m", "-port", "1"}), HasSubstr("unknown flag -port; did you mean --port?"));
  EXPECT_THAT(refusal({"serve", "m", "--max_num_seq", "1"}), HasSubstr("did you mean --max-num-seqs?"));
  EXPECT_THAT(refusal({"serve", "m", "--nocache"}), HasSubstr("did you mean --no-cache?"));
  EXPECT_EQ(refusal({"serve", "m", "--frobnicate"}),
            "kvasir serve: unknown flag --frobnicate (see kvasir serve --help)");
  const std::string endless = "--" + std::string(100'000, 'p');
  EXPECT_THAT(refusal({"serve", "m", endless.c_str()}), HasSubstr("unknown flag --ppp"));
  EXPECT_EQ(refusal({"--port", "1"}), "kvasir: unknown flag --port (see kvasir --help)");
}

TEST_F(CommandLineTest, AnUnknownCommandNamesThoseThatThereAre) {
  EXPECT_EQ(refusal({}), "kvasir: no command: there are serve, simulate, cluster (see kvasir --help)");
  EXPECT_EQ(refusal({"foo"}),
            "kvasir: no command 'foo': there are serve, simulate, cluster (see kvasir --help)");
  EXPECT_EQ(refusal({"foo", "serve", "m"}),
            "kvasir: no command 'foo': there are serve, simulate, cluster (see kvasir --help)");
  EXPECT_THAT(refusal({"serv"}), HasSubstr("cluster; did you mean serve?"));
  EXPECT_EQ(refusal({"cluster", "stats"}),
            "kvasir cluster: no command 'stats': there are status; did you mean status? (see kvasir cluster "
            "--help)");
}

}  // namespace
}  // namespace kvasir
