#include <CLI/CLI.hpp>
#include <iostream>
#include <iterator>
#include <memory>
#include <sstream>

#include "cleave/base/error.h"
#include "cleave/cli/command.h"
#include "cleave/planner/cluster_names.h"

namespace cleave::cli {
namespace {

struct Item {
  std::string name;   // "--tp"
  std::string value;  // "N", "a|b", "FILE"; empty for a switch
  std::string help;
  std::vector<std::string> words;  // that its value may be
};

// The words of "cosine|linear"; empty for placeholders such as "FILE" and "NAME|DIR".
std::vector<std::string> choices(const std::string& value) {
  std::vector<std::string> words;
  std::istringstream parts(value);
  for (std::string word; std::getline(parts, word, '|');) {
    if (word.find_first_of("ABCDEFGHIJKLMNOPQRSTUVWXYZ") == std::string::npos)
      words.push_back(word);
  }
  return words;
}

// The words that the value of a flag may be.
std::vector<std::string> known_values(const std::string& name, const std::string& value) {
  if (name != "--cluster") return choices(value);
  std::istringstream names{std::string(kClusterNames)};
  return {std::istream_iterator<std::string>(names), {}};
}

std::vector<Item> items(const CLI::App& app) {
  std::vector<Item> found;
  for (const CLI::Option* option : app.get_options()) {
    const bool is_positional = option->get_lnames().empty() && option->get_snames().empty();
    if (option->get_group().empty() || is_positional) continue;
    const bool is_switch = option->get_items_expected_max() == 0;
    const std::string name = option->get_lnames().empty() ? "-" + option->get_snames().front()
                                                          : "--" + option->get_lnames().front();
    const std::string value = is_switch ? "" : option->get_type_name();
    found.push_back({name, value, option->get_description(), known_values(name, value)});
  }
  return found;
}

std::vector<std::string> part_names(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* part : app.get_subcommands({})) names.push_back(part->get_name());
  return names;
}

// What may follow the command: its subcommands, or the choices of its first word.
std::vector<std::string> first_words(const CLI::App& app) {
  std::vector<std::string> words = part_names(app);
  for (const CLI::Option* option : app.get_options()) {
    const bool is_positional = option->get_lnames().empty() && option->get_snames().empty();
    if (is_positional && words.empty()) words = choices(option->get_type_name());
  }
  return words;
}

bool takes_path(const std::string& value) {
  return value.find("FILE") != std::string::npos || value.find("DIR") != std::string::npos ||
         value == "PATH";
}

std::string joined(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) text += (text.empty() ? "" : " ") + word;
  return text;
}

std::string bash_values(const Item& item) {
  const std::string words = joined(item.words);
  if (takes_path(item.value)) {
    return "mapfile -t COMPREPLY < <(compgen -f -W '" + words + "' -- \"$current\")";
  }
  return "mapfile -t COMPREPLY < <(compgen -W '" + words + "' -- \"$current\")";
}

// A case of "COMMAND SUBCOMMAND", the latter * for a command that has none.
std::string bash_command(const CLI::App& app, const std::string& pattern,
                         const std::vector<std::string>& words) {
  std::string text = "    " + pattern + ")\n      case $previous in\n";
  std::vector<std::string> names;
  for (const Item& item : items(app)) {
    names.push_back(item.name);
    if (item.value.empty()) continue;
    text += "        " + item.name + ") " + bash_values(item) + "; return ;;\n";
  }
  return text + "      esac\n      parts='" + joined(words) + "' flags='" + joined(names) +
         "' ;;\n";
}

std::string bash_commands(const CLI::App& app) {
  const std::vector<std::string> words = first_words(app);
  std::string text;
  for (const CLI::App* part : app.get_subcommands({})) {
    text += bash_command(*part, "'" + app.get_name() + " " + part->get_name() + "'", words);
  }
  return text + bash_command(app, "'" + app.get_name() + " '*", words);
}

std::string bash_script(const CLI::App& root) {
  std::vector<std::string> commands;
  std::string cases;
  for (const CLI::App* app : root.get_subcommands({})) {
    commands.push_back(app->get_name());
    cases += bash_commands(*app);
  }
  return "# bash completion of cleave: source <(cleave completion bash)\n"
         "_cleave() {\n"
         "  local current=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD-1]} flags= "
         "parts=\n"
         "  if [[ $COMP_CWORD == 1 ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W '" +
         joined(commands) +
         " --help --version' -- \"$current\")\n"
         "    return\n"
         "  fi\n"
         "  case \"${COMP_WORDS[1]} ${COMP_WORDS[2]}\" in\n" +
         cases + "    'help '*) parts='" + joined(commands) +
         "' ;;\n"
         "  esac\n"
         "  if [[ $current == -* ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$flags\" -- \"$current\")\n"
         "  elif [[ $COMP_CWORD == 2 && -n $parts ]]; then\n"
         "    mapfile -t COMPREPLY < <(compgen -W \"$parts\" -- \"$current\")\n"
         "  else\n"
         "    mapfile -t COMPREPLY < <(compgen -f -- \"$current\")\n"
         "  fi\n"
         "}\n"
         "complete -o filenames -F _cleave cleave\n";
}

// Escapes for single quotes and brackets of zsh's _arguments.
std::string zsh_escaped(const std::string& text) {
  std::string result;
  for (const char c : text) {
    if (c == '\'') {
      result += "'\\''";
      continue;
    }
    if (c == '[' || c == ']' || c == ':' || c == '\\') result += '\\';
    result += c;
  }
  return result;
}

std::string zsh_arguments(const CLI::App& app, const std::vector<std::string>& words) {
  std::string text = "_arguments";
  if (!words.empty()) text += " '1:word:(" + joined(words) + ")'";
  for (const Item& item : items(app)) {
    text += " \\\n        '*" + item.name + "[" + zsh_escaped(item.help) + "]";
    const std::string values = joined(item.words);
    if (takes_path(item.value)) {
      // After a space, _arguments adds no words of its own.
      const std::string action = values.empty() ? "_files" : " _cleave_words_or_files " + values;
      text += ":" + zsh_escaped(item.value) + ":" + action;
    } else if (!item.value.empty()) {
      text += ":" + zsh_escaped(item.value) + ":(" + values + ")";
    }
    text += "'";
  }
  return text + " \\\n        '*:file:_files' ;;\n";
}

std::string zsh_command(const CLI::App& app) {
  const std::vector<std::string> words = first_words(app);
  std::string text = "    " + app.get_name() + ")\n      ";
  if (part_names(app).empty()) return text + zsh_arguments(app, words);
  text += "case $words[2] in\n";
  for (const CLI::App* part : app.get_subcommands({})) {
    text += "      " + part->get_name() + ") " + zsh_arguments(*part, words);
  }
  return text + "      *) " + zsh_arguments(app, words) + "      esac ;;\n";
}

std::string zsh_script(const CLI::App& root) {
  std::string commands;
  std::string cases = "    help) _arguments '1:command:(" + joined(part_names(root)) + ")' ;;\n";
  for (const CLI::App* app : root.get_subcommands({})) {
    commands += "    '" + app->get_name() + ":" + zsh_escaped(app->get_description()) + "'\n";
    cases += zsh_command(*app);
  }
  return "#compdef cleave\n# zsh completion of cleave: source <(cleave completion zsh)\n"
         "_cleave_words_or_files() {\n"
         "  _alternative \"words:word:($*)\" 'files:file:_files'\n"
         "}\n"
         "_cleave() {\n"
         "  local -a commands=(\n" +
         commands +
         "  )\n"
         "  if (( CURRENT == 2 )); then\n"
         "    _describe command commands\n"
         "    return\n"
         "  fi\n"
         "  local command=$words[2]\n"
         "  shift words\n"
         "  (( CURRENT-- ))\n"
         "  case $command in\n" +
         cases + "  esac\n}\ncompdef _cleave cleave\n";
}

// In single quotes of fish.
std::string fish_quoted(const std::string& text) {
  std::string result = "'";
  for (const char c : text) result += (c == '\'' || c == '\\' ? "\\" : "") + std::string(1, c);
  return result + "'";
}

// `words`: the command, and the subcommand if it is one.
std::string fish_flags(const CLI::App& app, const std::string& words) {
  const std::string begin = "complete -c cleave -n '__cleave_is " + words + "'";
  std::string text;
  for (const Item& item : items(app)) {
    const bool is_long = item.name.starts_with("--");
    text += begin + (is_long ? " -l " + item.name.substr(2) : " -s " + item.name.substr(1));
    if (!item.value.empty()) text += takes_path(item.value) ? " -rF" : " -x";
    const std::string values = joined(item.words);
    if (!values.empty()) text += " -a " + fish_quoted(values);
    text += " -d " + fish_quoted(item.help) + '\n';
  }
  return text;
}

// The words that may follow the command.
std::string fish_words(const std::string& command, const std::vector<std::string>& words) {
  if (words.empty()) return "";
  return "complete -c cleave -n '__cleave_after " + command + "' -f -a " +
         fish_quoted(joined(words)) + '\n';
}

std::string fish_command(const CLI::App& app) {
  const std::string& name = app.get_name();
  std::string text = fish_words(name, first_words(app)) + fish_flags(app, name);
  for (const CLI::App* part : app.get_subcommands({})) {
    text += fish_flags(*part, name + ' ' + part->get_name());
  }
  return text;
}

std::string fish_script(const CLI::App& root) {
  std::string text =
      "# fish completion of cleave: cleave completion fish | source\n"
      "function __cleave_is\n"
      "  set -l words (commandline -opc)\n"
      "  set -l last (math (count $argv) + 1)\n"
      "  test (count $words) -ge $last && test \"$words[2..$last]\" = \"$argv\"\n"
      "end\n"
      "function __cleave_after\n"
      "  set -l words (commandline -opc)\n"
      "  test (count $words) -eq 2 && test $words[2] = $argv[1]\n"
      "end\n" +
      fish_words("help", part_names(root));
  for (const CLI::App* app : root.get_subcommands({})) {
    text += "complete -c cleave -n __fish_use_subcommand -f -a " + app->get_name() + " -d " +
            fish_quoted(app->get_description()) + '\n' + fish_command(*app);
  }
  return text;
}

}  // namespace

Command completion_command() {
  return {.name = "completion",
          .summary = "print a completion script for bash, zsh or fish",
          .usage = "bash|zsh|fish",
          .define = [](Flags& flags) -> Run {
            auto shell = std::make_shared<std::string>();
            flags.positional(shell.get(), {"shell", "bash|zsh|fish",
                                           "shell; use: source <(cleave completion bash)"});
            return [shell, &flags] {
              const CLI::App& root = *flags.app().get_parent();
              CLEAVE_CHECK(!shell->empty(), Code::kUsage,
                           "no shell given; expected bash, zsh or fish");
              const bool is_bash = *shell == "bash", is_zsh = *shell == "zsh";
              CLEAVE_CHECK(is_bash || is_zsh || *shell == "fish", Code::kUsage, "shell is '",
                           *shell, "'; expected one of bash, zsh, fish");
              std::cout << (is_bash  ? bash_script(root)
                            : is_zsh ? zsh_script(root)
                                     : fish_script(root));
              return 0;
            };
          }};
}

}  // namespace cleave::cli
