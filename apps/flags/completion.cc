#include "apps/flags/completion.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <utility>

#include "apps/flags/command_line.h"
#include "base/check.h"

namespace kvasir {
namespace {

using Words = std::vector<std::string>;

// What may stand for a value.
struct Values {
  Words words;
  bool files = false;
  bool folders = false;
};

Values values_for(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  Values values;
  values.words = choices_of(option);
  values.files = type.starts_with(kFileType) || type.starts_with(kPathType);
  values.folders = type.starts_with(kFolderType);
  return values;
}

bool takes_value(const CLI::Option& option) {
  return option.get_items_expected_max() > 0;
}

// With their dashes.
Words names_of(const CLI::Option& option) {
  Words names;
  for (const std::string& name : option.get_snames()) names.push_back("-" + name);
  for (const std::string& name : option.get_lnames()) names.push_back("--" + name);
  return names;
}

std::vector<const CLI::App*> commands_of(const CLI::App& app) {
  return app.get_subcommands([](const CLI::App*) { return true; });
}

// For each command, also `app` itself: f(command, the words that lead to it, without the program's).
template <typename F>
void for_each_command(const CLI::App& app, const Words& path, const F& f) {
  f(app, path);
  for (const CLI::App* command : commands_of(app)) {
    Words longer = path;
    longer.push_back(command->get_name());
    for_each_command(*command, longer, f);
  }
}

std::string shell_word(std::string_view text) {
  std::string out = "'";
  for (const char c : text) out += c == '\'' ? std::string("'\\''") : std::string(1, c);
  return out + "'";
}

// The beginning of a description, as much as fits beside a flag.
std::string brief(const std::string& text) {
  size_t end = text.size();
  for (const char* mark : {" (", "; ", ": ", ". "}) end = std::min(end, text.find(mark));
  return text.substr(0, end);
}

// --- bash

std::string bash_assignments(const Values& values) {
  std::string out = fmt::format("words={}", shell_word(fmt::format("{}", fmt::join(values.words, " "))));
  if (values.files) out += " kind=file";
  if (values.folders) out += " kind=directory";
  return out;
}

// The cases of what may come next in a command, and of the values of its flags.
void add_bash_cases(const CLI::App& command, const std::string& path, std::string& nexts,
                    std::string& values) {
  Words flags;
  Values next;
  for (const CLI::App* sub : commands_of(command)) next.words.push_back(sub->get_name());
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames()) flags.push_back("--" + name);
    if (option->get_positional()) {
      const Values argument = values_for(*option);
      next.words.insert(next.words.end(), argument.words.begin(), argument.words.end());
      next.files |= argument.files;
    }
    if (!takes_value(*option) || names_of(*option).empty()) continue;
    Words patterns;
    for (const std::string& name : names_of(*option)) {
      patterns.push_back(shell_word(fmt::format("{} {}", path, name)));
    }
    values +=
        fmt::format("    {}) {} ;;\n", fmt::join(patterns, " | "), bash_assignments(values_for(*option)));
  }
  nexts += fmt::format("        {}) {} flags={} ;;\n", shell_word(path), bash_assignments(next),
                       shell_word(fmt::format("{}", fmt::join(flags, " "))));
}

std::string bash_script(const CLI::App& app) {
  Words commands;
  std::string nexts, values;
  for_each_command(app, {}, [&](const CLI::App& command, const Words& words) {
    std::string path;
    for (const std::string& word : words) path += " " + word;
    if (!path.empty()) commands.push_back(shell_word(path));
    add_bash_cases(command, path, nexts, values);
  });
  return fmt::format(R"(# Completion of {0} for bash: put it into /etc/bash_completion.d/, or source it.
_{0}() {{
  local word=${{COMP_WORDS[COMP_CWORD]}} flag=${{COMP_WORDS[COMP_CWORD - 1]}} path='' words='' flags='' kind='' i
  # In --flag=value the shell takes each of the three for a word.
  if [[ $word == '=' ]]; then
    word=''
  elif [[ $flag == '=' ]]; then
    flag=${{COMP_WORDS[COMP_CWORD - 2]}}
  fi
  for ((i = 1; i < COMP_CWORD; ++i)); do
    case "$path ${{COMP_WORDS[i]}}" in
      {1}) path+=" ${{COMP_WORDS[i]}}" ;;
    esac
  done
  case "$path $flag" in
{2}    *)
      case "$path" in
{3}      esac
      if [[ $word == -* || -z $words$kind ]]; then words=$flags kind=''; fi
      ;;
  esac
  mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
  if [[ -n $kind ]]; then
    compopt -o filenames 2>/dev/null
    mapfile -t -O "${{#COMPREPLY[@]}}" COMPREPLY < <(compgen -A "$kind" -- "$word")
  fi
}}
complete -F _{0} {0}
)",
                     app.get_name(), fmt::join(commands, " | "), values, nexts);
}

// --- zsh

std::string escaped(std::string_view text, std::string_view special) {
  std::string out;
  for (const char c : text) {
    if (special.find(c) != std::string_view::npos) out += '\\';
    out += c;
  }
  return out;
}

// What _arguments calls message and action.
std::string zsh_value(const CLI::Option& option) {
  const Values values = values_for(option);
  const std::string type = option.get_type_name();
  std::string action;
  if (values.files) action = "_files";
  if (values.folders) action = "_files -/";
  if (!values.words.empty() && action.empty()) {
    action = fmt::format("({})", escaped(fmt::format("{}", fmt::join(values.words, " ")), ":"));
  }
  return fmt::format(":{}:{}", type.substr(0, type.find(':')), action);
}

void add_zsh_specs(const CLI::Option& option, Words& specs) {
  const Words names = names_of(option);
  const std::string value = takes_value(option) ? zsh_value(option) : "";
  if (option.get_positional()) specs.push_back(shell_word(value));
  const std::string others = option.get_expected_max() > 1 ? "*" : fmt::format("({})", fmt::join(names, " "));
  for (const std::string& name : names) {
    const char* joint = value.empty() ? "" : name.starts_with("--") ? "=" : "+";
    specs.push_back(shell_word(fmt::format("{}{}{}[{}]{}", others, name, joint,
                                           escaped(brief(option.get_description()), "\\[]"), value)));
  }
}

std::string zsh_script(const CLI::App& app) {
  std::string script =
      fmt::format("#compdef {0}\n# Completion of {0} for zsh: _{0} in a folder of $fpath.\n", app.get_name());
  for_each_command(app, {app.get_name()}, [&](const CLI::App& command, const Words& path) {
    Words specs, names, cases;
    const std::string function = fmt::format("_{}", fmt::join(path, "_"));
    for (const CLI::Option* option : command.get_options()) add_zsh_specs(*option, specs);
    for (const CLI::App* sub : commands_of(command)) {
      const std::string& name = sub->get_name();
      names.push_back(shell_word(escaped(name, ":") + ":" + escaped(sub->get_description(), ":")));
      cases.push_back(fmt::format("        {}) {}_{} ;;\n", name, function, name));
    }
    if (!names.empty()) {
      specs.push_back("'1: :->command'");
      specs.push_back("'*:: :->arguments'");
    }
    script += fmt::format("\n{}() {{\n", function);
    if (!names.empty()) {
      script += fmt::format("  local curcontext=$curcontext state line\n  local -a commands=(\n    {}\n  )\n",
                            fmt::join(names, "\n    "));
    }
    script +=
        fmt::format("  _arguments {}\\\n    {}\n", names.empty() ? "" : "-C ", fmt::join(specs, " \\\n    "));
    if (!names.empty()) {
      script += fmt::format(
          "  case $state in\n    command) _describe command commands ;;\n    arguments)\n"
          "      case $words[1] in\n{}      esac\n      ;;\n  esac\n",
          fmt::join(cases, ""));
    }
    script += "}\n";
  });
  // As a file of $fpath it is the function's body; sourced, it must say what it completes.
  return script +
         fmt::format("\nif [[ $funcstack[1] == _{0} ]]; then\n  _{0} \"$@\"\nelse\n  compdef _{0} {0}\nfi\n",
                     app.get_name());
}

// --- fish

std::string fish_quoted(std::string_view text) {
  return "'" + escaped(text, "'\\") + "'";
}

// When the words of `path` have been written, and none of the commands below it.
std::string fish_condition(const CLI::App& command, const Words& path) {
  Words parts;
  for (const std::string& word : path) parts.push_back("__fish_seen_subcommand_from " + word);
  Words below;
  for (const CLI::App* sub : commands_of(command)) below.push_back(sub->get_name());
  if (!below.empty()) {
    parts.push_back(fmt::format("not __fish_seen_subcommand_from {}", fmt::join(below, " ")));
  }
  return fmt::format("{}", fmt::join(parts, "; and "));
}

std::string fish_value(const CLI::Option& option) {
  if (!takes_value(option)) return "";
  const Values values = values_for(option);
  if (values.files || values.folders) return " -r -F";
  if (values.words.empty()) return " -x";
  return fmt::format(" -x -a {}", fish_quoted(fmt::format("{}", fmt::join(values.words, " "))));
}

std::string fish_script(const CLI::App& app) {
  const std::string& name = app.get_name();
  std::string script = fmt::format(
      "# Completion of {0} for fish: {0}.fish in ~/.config/fish/completions/.\ncomplete -c {0} -f\n", name);
  for_each_command(app, {}, [&](const CLI::App& command, const Words& path) {
    const std::string begin =
        fmt::format("complete -c {} -n {}", name, fish_quoted(fish_condition(command, path)));
    for (const CLI::App* sub : commands_of(command)) {
      script += fmt::format("{} -a {} -d {}\n", begin, sub->get_name(), fish_quoted(sub->get_description()));
    }
    for (const CLI::Option* option : command.get_options()) {
      const Values values = values_for(*option);
      if (option->get_positional() && values.files) script += begin + " -F\n";
      if (option->get_positional() && !values.words.empty()) {
        script +=
            fmt::format("{} -a {}\n", begin, fish_quoted(fmt::format("{}", fmt::join(values.words, " "))));
      }
      Words names;
      for (const std::string& short_name : option->get_snames()) names.push_back(" -s " + short_name);
      for (const std::string& long_name : option->get_lnames()) names.push_back(" -l " + long_name);
      if (names.empty()) continue;
      script += fmt::format("{}{}{} -d {}\n", begin, fmt::join(names, ""), fish_value(*option),
                            fish_quoted(brief(option->get_description())));
    }
  });
  return script;
}

constexpr std::pair<const char*, std::string (*)(const CLI::App&)> kShells[] = {
    {"bash", bash_script}, {"fish", fish_script}, {"zsh", zsh_script}};

}  // namespace

std::vector<std::string> completion_shells() {
  Words names;
  for (const auto& [name, script] : kShells) names.emplace_back(name);
  return names;
}

std::string completion_script(const CLI::App& app, std::string_view shell) {
  for (const auto& [name, script] : kShells) {
    if (name == shell) return script(app);
  }
  KV_CHECK(false, "no script for the shell {}", shell);
  return "";
}

}  // namespace kvasir
