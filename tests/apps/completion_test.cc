// Completion scripts and the manual page have what the table of flags has. tests/e2e/config_test.py asks the
// shells.
#include "apps/flags/completion.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "apps/flags/command_line.h"
#include "apps/flags/man_page.h"

namespace kvasir {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

class CompletionTest : public testing::Test {
 protected:
  CompletionTest() {
    CLI::App* serve = app_.add_subcommand("serve", "Serve a model: now");
    serve->add_option("model,-m,--model", text_, "The model")->type_name(kPathType)->required();
    serve->add_option("--policy", text_, "What runs next; more")->check(suggests({"auto", "fcfs"}));
    serve->add_option("--level", text_, "It's a [level]")->check(CLI::IsMember({"low", "high"}));
    serve->add_option("--port", port_, "Port (default: 1)")->check(between(0, 65535))->capture_default_str();
    serve->add_option("--folder", text_, ".A folder \\ with 'it'")->type_name(kFolderType);
    serve->add_flag("--cache,!--no-cache", cache_, "A cache");
    CLI::App* cluster = app_.add_subcommand("cluster", "Look");
    cluster->add_subcommand("status", "Status");
  }

  CLI::App app_{"A test", "kvasir"};
  std::string text_;
  int port_ = 7;
  bool cache_ = false;
};

TEST_F(CompletionTest, ChoicesAreThoseOfTheChecks) {
  const CLI::App* serve = app_.get_subcommand("serve");
  EXPECT_THAT(choices_of(*serve->get_option("--policy")), ElementsAre("auto", "fcfs"));
  EXPECT_THAT(choices_of(*serve->get_option("--level")), ElementsAre("low", "high"));
  EXPECT_THAT(choices_of(*serve->get_option("--port")), IsEmpty());
  EXPECT_THAT(choices_of(*serve->get_option("--folder")), IsEmpty());
}

TEST_F(CompletionTest, AnyOtherTextPassesWhatIsOnlySuggested) {
  app_.parse("serve m --policy fcfs:x=1");
  EXPECT_EQ(text_, "fcfs:x=1");
  CLI::App again("A test");
  again.add_option("--level", text_)->check(CLI::IsMember({"low"}));
  EXPECT_THROW(again.parse("--level other"), CLI::ValidationError);
}

TEST_F(CompletionTest, AScriptForEachShellHasEverything) {
  EXPECT_THAT(completion_shells(), ElementsAre("bash", "fish", "zsh"));
  for (const std::string& shell : completion_shells()) {
    const std::string script = completion_script(app_, shell);
    for (const char* word :
         {"serve", "cluster", "status", "policy", "auto", "fcfs", "low", "no-cache", "help"}) {
      EXPECT_THAT(script, HasSubstr(word)) << shell;
    }
    EXPECT_THAT(script, Not(HasSubstr("new-flag")));
  }
  app_.get_subcommand("serve")->add_option("--new-flag", text_);
  for (const std::string& shell : completion_shells()) {
    EXPECT_THAT(completion_script(app_, shell), HasSubstr("new-flag")) << shell;
  }
}

TEST_F(CompletionTest, TheManualPageHasEveryFlagAndNothingThatRoffMistakes) {
  const std::string page = man_page(app_, "1.2");
  EXPECT_THAT(page, HasSubstr(".SS kvasir serve\nServe a model: now.\n"));
  EXPECT_THAT(page, HasSubstr(".SS kvasir cluster status\n"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-\\-port\\fR \\fIINT:0 to 65535\\fR [7]\nPort (default: 1)\n"));
  EXPECT_THAT(page, HasSubstr("\\fImodel\\fR, \\fB\\-m\\fR, \\fB\\-\\-model\\fR \\fIPATH\\fR (required)\n"));
  EXPECT_THAT(page, HasSubstr("\\fB\\-\\-cache\\fR, \\fB\\-\\-no\\-cache\\fR\nA cache\n"));
  EXPECT_THAT(page, HasSubstr("\n\\&.A folder \\e with \\(aqit\\(aq\n"));
}

}  // namespace
}  // namespace kvasir
