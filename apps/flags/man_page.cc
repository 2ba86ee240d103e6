#include "apps/flags/man_page.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <vector>

namespace kvasir {
namespace {

// Text that roff takes as it is. Its lines begin with no dot or quote, which would be a request.
std::string roff(std::string_view text) {
  std::string out;
  for (const char c : text) {
    if ((c == '.' || c == '\'') && (out.empty() || out.back() == '\n')) out += "\\&";
    if (c == '\\') {
      out += "\\e";
    } else if (c == '-') {
      out += "\\-";  // else a hyphen, which is not what one types
    } else if (c == '\'') {
      out += "\\(aq";
    } else if (c == '^') {
      out += "\\(ha";
    } else if (c == '~') {
      out += "\\(ti";
    } else if (c == '`') {
      out += "\\(ga";
    } else if (c == ',') {
      out += ",\\:";  // where a long list may be broken
    } else {
      out += c;
    }
  }
  return out;
}

// What stands for the value, as "UINT [8000]".
std::string value_text(const CLI::Option& option) {
  if (option.get_items_expected_max() == 0) return "";
  std::string text = fmt::format(" \\fI{}\\fR", roff(option.get_type_name()));
  if (!option.get_default_str().empty()) text += fmt::format(" [{}]", roff(option.get_default_str()));
  if (option.get_required()) text += " (required)";
  return text;
}

std::string option_text(const CLI::Option& option) {
  std::vector<std::string> names;
  if (option.get_positional()) names.push_back(fmt::format("\\fI{}\\fR", roff(option.get_name(true))));
  for (const std::string& name : option.get_snames())
    names.push_back(fmt::format("\\fB\\-{}\\fR", roff(name)));
  for (const std::string& name : option.get_lnames()) {
    names.push_back(fmt::format("\\fB\\-\\-{}\\fR", roff(name)));
  }
  return fmt::format(".TP\n{}{}\n{}\n", fmt::join(names, ", "), value_text(option),
                     roff(option.get_description()));
}

void add_command_text(const CLI::App& command, const std::string& path, std::string& page) {
  const auto commands = command.get_subcommands([](const CLI::App*) { return true; });
  if (commands.empty()) {
    page += fmt::format(".SS {}\n{}.\n", roff(path), roff(command.get_description()));
    for (const CLI::Option* option : command.get_options()) page += option_text(*option);
    if (!command.get_footer().empty()) page += fmt::format(".PP\n{}\n", roff(command.get_footer()));
  }
  for (const CLI::App* sub : commands) add_command_text(*sub, path + " " + sub->get_name(), page);
}

}  // namespace

std::string man_page(const CLI::App& app, std::string_view version) {
  std::string page = fmt::format(
      R"(.\" Made by `{0} man` from the table of its flags.
.TH KVASIR 1 "" "{0} {1}" "Kvasir"
.ad l
.SH NAME
{0} \- serve large language models and manage their KV cache
.SH SYNOPSIS
.B {0}
.I COMMAND
.RI [ FLAGS ]
.br
.B {0} \-\-help
.br
.B {0} \-\-version
.SH DESCRIPTION
{2}
.PP
Of a flag \fB\-\-x, \-\-no\-x\fR the second form switches off what the first one switches on.
A value in brackets is the default.
.SH COMMANDS
)",
      app.get_name(), roff(version), roff(app.get_description()));
  add_command_text(app, app.get_name(), page);
  page += R"(.SH ENVIRONMENT
.TP
\fBKVASIR_\fR...
The flags of most commands, as their sections say: \fB\-\-max\-num\-seqs\fR as \fBKVASIR_MAX_NUM_SEQS\fR.
The command line counts more, and a file of \fB\-\-config\fR less.
.SH FILES
.TP
.I FILE
The file of \fB\-\-config\fR is YAML: a map of flags\(aq names to values, as
.IR "max\-num\-seqs: 64" ,
with true or false for a switch and a list for a flag that may be given again.
.SH EXIT STATUS
.TP
.B 0
Success, and the end of a server that was told to stop.
.TP
.B 1
Something failed, and one line on standard error says what.
.TP
.B 2
A mistake on the command line or in the environment.
)";
  return page;
}

}  // namespace kvasir
