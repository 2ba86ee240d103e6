// --config: which settings a file makes, what counts more, and what is said of each mistake.
#include "apps/flags/config_file.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdint>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <optional>
#include <sstream>
#include <vector>

#include "apps/flags/command_line.h"
#include "apps/flags/settings_table.h"

namespace kvasir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// Of a command like `serve`, and a smaller one that shares its file.
class ConfigFileTest : public testing::Test {
 protected:
  void SetUp() override {
    path_ = (std::filesystem::path(testing::TempDir()) / "kvasir_config_file_test.yaml").string();
    unsetenv(kVariable);
  }
  void TearDown() override {
    std::filesystem::remove(path_);
    unsetenv(kVariable);
  }

  struct Values {
    std::string model, dtype = "bf16", json, secret, text;
    uint16_t port = 8000;
    double share = 0.5;
    bool cache = true, special = false;
    std::optional<bool> metrics;
    std::vector<std::string> names, origins;
    uint64_t bytes = 0;
  };

  // The exit code; nothing: it was parsed.
  std::optional<int> parse(std::vector<const char*> arguments) {
    app_ = std::make_unique<CLI::App>("A test", "kvasir");
    values_ = Values();
    places_.clear();
    app_->require_subcommand(1);
    serve_ = app_->add_subcommand("serve", "Serve");
    serve_->add_option("model,-m,--model", values_.model)->required();
    serve_->add_option("--port", values_.port, "Port")
        ->capture_default_str()
        ->check(between(0, 65535))
        ->envname(kVariable);
    serve_->add_option("--share", values_.share, "A share (default: half)");
    serve_->add_option("--max-model-len,--ctx-size", values_.dtype);
    serve_->add_option("--json", values_.json)->type_name(kJsonType);
    serve_->add_option("--api-key", values_.secret)->type_name(kSecretType);
    serve_->add_option("--text", values_.text, "A text (words; default: none)");
    serve_->add_flag("--cache,!--no-cache", values_.cache, "A cache (default: on)");
    serve_->add_flag("--special", values_.special);
    serve_->add_flag_function("--metrics,!--no-metrics",
                              [this](int64_t count) { values_.metrics = count > 0; });
    serve_->add_option("--name", values_.names)->allow_extra_args(false);
    serve_->add_option("--origins", values_.origins)->delimiter(',');
    serve_->add_option_function<std::string>("--bytes", [this](const std::string& text) {
      if (text == "bad") throw CLI::ValidationError("--bytes", "'bad' is no size");
      values_.bytes = text.size();
    });
    serve_->add_flag("--check-config")->configurable(false);
    CLI::App* other = app_->add_subcommand("other", "Another");
    other->add_option("--port", values_.port);
    other->add_option("--seconds", values_.share);
    add_config_file(*serve_, places_);
    add_config_file(*other, places_, serve_);
    arguments.insert(arguments.begin(), "kvasir");
    out_.str("");
    err_.str("");
    return parse_command_line(*app_, static_cast<int>(arguments.size()), arguments.data(), out_, err_);
  }

  void write(const std::string& text) { std::ofstream(path_, std::ios::binary) << text; }

  void takes(const std::string& text, std::vector<const char*> more = {}) {
    write(text);
    std::vector<const char*> arguments = {"serve", "--config", path_.c_str()};
    arguments.insert(arguments.end(), more.begin(), more.end());
    EXPECT_EQ(parse(std::move(arguments)), std::nullopt) << err_.str() << text;
  }

  // What is said of a mistake in the file, behind its path.
  std::string refusal(const std::string& text) {
    write("model: m\n" + text);
    EXPECT_EQ(parse({"serve", "--config", path_.c_str()}), 1) << text;
    const std::string line = err_.str(), begin = "kvasir serve: " + path_ + ":";
    EXPECT_EQ(line.find('\n'), line.size() - 1) << line;
    EXPECT_EQ(line.substr(0, begin.size()), begin);
    return line.substr(begin.size(), line.size() - 1 - begin.size());
  }

  static constexpr const char* kVariable = "KVASIR_TEST_OF_CONFIG_FILES";
  std::string path_;
  std::unique_ptr<CLI::App> app_;
  CLI::App* serve_ = nullptr;
  Values values_;
  SettingPlaces places_;
  std::ostringstream out_, err_;
};

TEST_F(ConfigFileTest, EachKindOfSetting) {
  takes(
      "# settings\nmodel: m.gguf\nport: 9000\nshare: 2.5e-1\nmax-model-len: 4096\ncache: false\nspecial: on\n"
      "metrics: no\nname: [a, \"b c\"]\norigins:\n  - x\n  - y\nbytes: 4GiB\ntext: 'on'\napi-key: k\n");
  EXPECT_EQ(values_.model, "m.gguf");
  EXPECT_EQ(values_.port, 9000);
  EXPECT_EQ(values_.share, 0.25);
  EXPECT_EQ(values_.dtype, "4096");
  EXPECT_FALSE(values_.cache);
  EXPECT_TRUE(values_.special);
  EXPECT_EQ(values_.metrics, false);
  EXPECT_EQ(values_.names, (std::vector<std::string>{"a", "b c"}));
  EXPECT_EQ(values_.origins, (std::vector<std::string>{"x", "y"}));
  EXPECT_EQ(values_.bytes, 4u);
  EXPECT_EQ(values_.text, "on");
  EXPECT_EQ(values_.secret, "k");
}

TEST_F(ConfigFileTest, NamesAsPeopleWriteThem) {
  takes("model: m\nmax_model_len: 10\nno-cache: true\nname: only\norigins: a,b\n");
  EXPECT_EQ(values_.dtype, "10");
  EXPECT_FALSE(values_.cache);
  EXPECT_EQ(values_.names, std::vector<std::string>{"only"});
  EXPECT_EQ(values_.origins, (std::vector<std::string>{"a", "b"}));
  takes("model: m\nno_cache: false\nctx-size: 11\n");
  EXPECT_TRUE(values_.cache);
  EXPECT_EQ(values_.dtype, "11");
}

TEST_F(ConfigFileTest, AMapIsTheJsonThatItSays) {
  takes("model: m\njson:\n  temperature: 0.5\n  stop: [a, '1']\n  deep: {on: true, none: null}\n");
  EXPECT_EQ(values_.json, R"({"deep":{"none":null,"on":true},"stop":["a","1"],"temperature":0.5})");
  takes("model: m\njson: {\"a\": 1}\n");
  EXPECT_EQ(values_.json, R"({"a":1})");
  takes("model: m\njson: '{\"a\": 1}'\n");
  EXPECT_EQ(values_.json, R"({"a": 1})");
}

TEST_F(ConfigFileTest, TheCommandLineThenTheEnvironmentThenTheFileThenTheDefault) {
  const std::string file = "model: m\nport: 9000\nname: [a]\n";
  takes("model: m\n");
  EXPECT_EQ(values_.port, 8000);
  takes(file);
  EXPECT_EQ(values_.port, 9000);
  setenv(kVariable, "9001", 1);
  takes(file);
  EXPECT_EQ(values_.port, 9001);
  takes(file, {"--port", "9002", "--name", "b"});
  EXPECT_EQ(values_.port, 9002);
  EXPECT_EQ(values_.names, std::vector<std::string>{"b"}) << "a list is not mixed";
}

TEST_F(ConfigFileTest, TheTableNamesEachSourceAndNoSecret) {
  setenv(kVariable, "9001", 1);
  takes("model: m\ncache: off\napi-key: hush\nname: [a, b]\n", {"--share", "0.75"});
  const std::string table = settings_table(*serve_, places_);
  EXPECT_THAT(table, testing::ContainsRegex("model +" + path_ + ":1 +m\n"));
  EXPECT_THAT(table, testing::ContainsRegex(std::string("port +environment, ") + kVariable + " +9001\n"));
  EXPECT_THAT(table, testing::ContainsRegex("share +flag +0.75\n"));
  EXPECT_THAT(table, testing::ContainsRegex("cache +" + path_ + ":2 +off\n"));
  EXPECT_THAT(table, testing::ContainsRegex("name +" + path_ + ":4 +a, b\n"));
  EXPECT_THAT(table, testing::ContainsRegex("special +default +off\n"));
  EXPECT_THAT(table, testing::ContainsRegex("api-key +" + path_ + ":3 +.not shown.\n"));
  EXPECT_THAT(table, Not(HasSubstr("hush")));
  EXPECT_THAT(table, Not(HasSubstr("check-config")));
  unsetenv(kVariable);
  takes("model: m\n");
  const std::string defaults = settings_table(*serve_, places_);
  EXPECT_THAT(defaults, testing::ContainsRegex("port +default +8000\n"));
  EXPECT_THAT(defaults, testing::ContainsRegex("share +default +half\n"));
  EXPECT_THAT(defaults, testing::ContainsRegex("cache +default +on\n"));
  EXPECT_THAT(defaults, testing::ContainsRegex("text +default +none\n"));
  EXPECT_THAT(defaults, testing::ContainsRegex("name +default +-\n"));
}

TEST_F(ConfigFileTest, AMistakeNamesPlaceAndKey) {
  EXPECT_EQ(refusal("prot: 1\n"), "2:1: unknown key 'prot'; did you mean port? (see --help)");
  EXPECT_EQ(refusal("--port: 1\n"), "2:1: unknown key '--port'; did you mean port? (see --help)");
  EXPECT_EQ(refusal("frobnicate: 1\n"), "2:1: unknown key 'frobnicate' (see --help)");
  EXPECT_EQ(refusal("<<: {a: 1}\n"), "2:1: unknown key '<<' (see --help)");
  EXPECT_EQ(refusal("m: x\n"), "2:1: unknown key 'm' (see --help)") << "only long names";
  EXPECT_EQ(refusal("port: http\n"), "2:7: port: 'http' is not a whole number from 0 to 65535");
  EXPECT_EQ(refusal("share: much\n"), "2:8: share: 'much' is not a number");
  EXPECT_EQ(refusal("bytes: bad\n"), "2:8: bytes: 'bad' is no size");
  EXPECT_EQ(refusal("port: [1, 2]\n"), "2:7: port: must be one value, not a list");
  EXPECT_EQ(refusal("port: {a: 1}\n"), "2:7: port: must be one value, not a map");
  EXPECT_EQ(refusal("name: {a: 1}\n"), "2:7: name: must be a list, not a map");
  EXPECT_EQ(refusal("name: [a, [b]]\n"), "2:11: name: each item of the list must be one value");
  EXPECT_EQ(refusal("name: []\n"), "2:7: name: the list is empty; leave the key out for the default");
  EXPECT_THAT(refusal("port:\n"), HasSubstr("port: has no value; leave the key out for the default"));
  EXPECT_EQ(refusal("cache: maybe\n"), "2:8: cache: must be true or false");
  EXPECT_EQ(refusal("special: [true]\n"), "2:10: special: must be true or false");
  EXPECT_EQ(refusal("port: 1\nport: 2\n"), "3:1: 'port' is there twice; the first is in line 2");
  EXPECT_EQ(refusal("max-model-len: 1\nmax_model_len: 2\n"),
            "3:1: 'max-model-len' is set twice; the first is in line 2");
  EXPECT_EQ(refusal("max-model-len: 1\nctx-size: 2\n"),
            "3:1: 'ctx-size' is set twice; the first is in line 2");
  EXPECT_EQ(refusal("cache: on\nno-cache: on\n"), "3:1: 'no-cache' is set twice; the first is in line 2");
  EXPECT_EQ(refusal("config: f\n"), "2:1: 'config' is for the command line only; leave it out");
  EXPECT_EQ(refusal("check-config: true\n"),
            "2:1: 'check-config' is for the command line only; leave it out");
  EXPECT_EQ(refusal("help: true\n"), "2:1: 'help' is for the command line only; leave it out");
  EXPECT_THAT(refusal("api-key: [hush]\n"), Not(HasSubstr("hush")));
}

TEST_F(ConfigFileTest, AFileThatIsNoMapOrNotThere) {
  write("- port\n");
  EXPECT_EQ(parse({"serve", "--config", path_.c_str()}), 1);
  EXPECT_EQ(err_.str(),
            "kvasir serve: " + path_ + ":1:1: no settings; write NAME: VALUE, one on each line\n");
  EXPECT_EQ(parse({"serve", "--config", "/nonexistent/f"}), 1);
  EXPECT_EQ(err_.str(), "kvasir serve: --config /nonexistent/f: cannot be read: No such file or directory\n");
  takes("# nothing is set\n", {"m"});
}

TEST_F(ConfigFileTest, MistakesOnTheCommandLineAndHelpComeFirst) {
  write("prot: 1\n");
  EXPECT_EQ(parse({"serve", "--config", path_.c_str(), "--help"}), 0);
  parse({"serve", "m", "--config", path_.c_str(), "--prot", "1"});
  EXPECT_THAT(err_.str(), HasSubstr("unknown flag --prot"));
}

TEST_F(ConfigFileTest, AnotherCommandPassesOverWhatOnlyServeHas) {
  write("port: 9000\nseconds: 3\napi-key: k\n");
  EXPECT_EQ(parse({"other", "--config", path_.c_str()}), std::nullopt) << err_.str();
  EXPECT_EQ(values_.port, 9000);
  EXPECT_EQ(values_.share, 3);
  EXPECT_EQ(values_.secret, "");
  write("prot: 9000\n");
  EXPECT_EQ(parse({"other", "--config", path_.c_str()}), 1);
  EXPECT_THAT(err_.str(), HasSubstr(":1:1: unknown key 'prot'; did you mean port?"));
  write("model: m\nseconds: 3\n");
  EXPECT_EQ(parse({"serve", "--config", path_.c_str()}), 1) << "serve's own file has what serve has";
}

TEST_F(ConfigFileTest, AMistakeInTheEnvironmentNamesTheVariable) {
  setenv(kVariable, "http", 1);
  EXPECT_EQ(parse({"serve", "m"}), 2);
  EXPECT_EQ(err_.str(),
            std::string("kvasir serve: ") + kVariable + ": 'http' is not a whole number from 0 to 65535\n");
}

}  // namespace
}  // namespace kvasir
