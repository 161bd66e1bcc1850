#include "cleave/cli/program.h"

#include <CLI/CLI.hpp>
#include <algorithm>
#include <deque>
#include <iostream>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/base/suggest.h"
#include "cleave/base/version.h"
#include "cleave/comm/launch/failure.h"

namespace cleave::cli {
namespace {

using Words = std::vector<std::string>;

struct Entry {
  Entry(const Command& what, CLI::App& app) : command(&what), flags(app), run(what.define(flags)) {}

  const Command* command;
  Flags flags;
  Run run;
};

Entry* chosen(std::deque<Entry>& entries) {
  for (Entry& entry : entries) {
    if (entry.flags.app().parsed()) return &entry;
  }
  return nullptr;
}

// Number of words that the flag `word` takes, itself included; 0 if `word` is not a flag.
size_t flag_length(const CLI::App& app, const std::string& word) {
  if (!word.starts_with('-') || word == "-" || word == "--") return 0;
  const CLI::Option* option = app.get_option_no_throw(word);
  return option != nullptr && option->get_items_expected_max() > 0 ? 2 : 1;
}

// Moves PROGRAM ARGS of "launch -n 2 -- PROGRAM ARGS" out of `words`.
void take_program_words(const std::deque<Entry>& entries, Words* words) {
  for (const Entry& entry : entries) {
    Words* program = entry.flags.program();
    if (program == nullptr || words->empty() || words->front() != entry.command->name) continue;
    size_t at = 1;
    while (at < words->size()) {
      const std::string& word = (*words)[at];
      const size_t length = flag_length(entry.flags.app(), word);
      if (length == 0) break;
      // "-np 2" of mpirun, which CLI11 takes for -n p.
      const bool is_long = word.size() > 2 && word[1] != '-' && word[2] >= 'a' && word[2] <= 'z';
      if (is_long) entry.flags.refuse_flag(word);
      at = std::min(at + length, words->size());
    }
    const auto begin = words->begin() + static_cast<std::ptrdiff_t>(at);
    const bool has_mark = begin != words->end() && *begin == "--";
    program->assign(begin + (has_mark ? 1 : 0), words->end());
    words->erase(begin, words->end());
  }
}

// "bench train" is the subcommand train of bench; bench alone does nothing.
CLI::App& add_command(CLI::App& app, const Command& command) {
  const size_t space = command.name.find(' ');
  if (space == std::string::npos) return *app.add_subcommand(command.name, command.summary);
  const std::string family = command.name.substr(0, space);
  const auto same =
      app.get_subcommands([&](const CLI::App* other) { return other->get_name() == family; });
  CLI::App* parent = same.empty() ? nullptr : same.front();
  if (parent == nullptr) {
    parent = app.add_subcommand(family, "needs a subcommand; see cleave --help");
    parent->allow_extras();
    parent->require_subcommand(0, 1);
  }
  return *parent->add_subcommand(command.name.substr(space + 1), command.summary);
}

// CLI11's message is "--out: 1 required DIR missing"; only the flag's name is used.
std::string sentence(const CLI::ParseError& error) {
  const std::string text = error.what();
  const bool is_missing = dynamic_cast<const CLI::ArgumentMismatch*>(&error) != nullptr;
  return is_missing ? text.substr(0, text.find(':')) + " has no value" : text;
}

[[noreturn]] void refuse_no_command(const CLI::App& app) {
  for (const CLI::App* family : app.get_subcommands()) {
    std::string parts;
    for (const CLI::App* part : family->get_subcommands({})) {
      parts += (parts.empty() ? "" : ", ") + part->get_name();
    }
    throw Error(Code::kUsage, str("cleave ", family->get_name(), " needs a subcommand: ", parts,
                                  "; see cleave --help"));
  }
  throw Error(Code::kUsage, "no command given; see cleave --help");
}

// What other programs call a command of ours; empty if none does.
std::string command_elsewhere(std::string_view word) {
  constexpr std::pair<std::string_view, std::string_view> kNames[] = {
      {"train", "finetune fine-tune pretrain sft dpo lora"},
      {"generate", "run infer inference complete"},
      {"generate --chat", "chat"},
      {"inspect", "info show"},
      {"launch", "torchrun mpirun"},
      {"convert", "export merge quantize"},
      {"eval", "evaluate test perplexity"},
      {"bench train, bench generate or bench collectives", "benchmark"}};
  for (const auto& [ours, theirs] : kNames) {
    if (str(' ', theirs, ' ').find(str(' ', word, ' ')) != std::string::npos) return str(ours);
  }
  return "";
}

// Refuses a command line without a command, or with words before it.
[[noreturn]] void refuse(const CLI::App& app, const std::vector<Command>& commands) {
  const Words words = app.remaining();
  if (words.empty()) refuse_no_command(app);
  const std::string& word = words.front();
  Words names;
  for (const Command& command : commands) names.push_back(command.name);
  if (word.starts_with('-')) {
    const std::string bare = word.substr(std::min(word.find_first_not_of('-'), word.size()));
    const bool is_command = std::find(names.begin(), names.end(), bare) != names.end();
    throw Error(Code::kUsage, str("unknown flag ", word,
                                  is_command ? "; did you mean " + bare
                                             : " before the command; see cleave --help"));
  }
  names.emplace_back("version");
  std::string meant = command_elsewhere(word);
  if (meant.empty()) meant = likely_name(word, names).value_or("");
  throw Error(Code::kUsage, str("unknown command '", word, "'; ",
                                meant.empty() ? "see cleave --help" : "did you mean " + meant));
}

class Program {
 public:
  explicit Program(const std::vector<Command>& commands) : commands_(&commands) {
    app_.set_version_flag("--version", "cleave " + std::string(version()), "print the version");
    app_.allow_extras();
    app_.require_subcommand(0, 1);
    for (const Command& command : commands) {
      entries_.emplace_back(command, add_command(app_, command));
    }
  }

  int run(Words words) {
    if (!words.empty() && words.front() == "help") {  // "help train" is "train --help"
      words.erase(words.begin());
      words.emplace_back("--help");
    }
    const bool wants_version =
        words == Words{"version"} || words == Words{"-v"} || words == Words{"-V"};
    if (wants_version) words = {"--version"};
    take_program_words(entries_, &words);
    std::reverse(words.begin(), words.end());  // CLI11 expects the last word first
    try {
      app_.parse(words);
    } catch (const CLI::CallForHelp&) {
      const Entry* entry = chosen(entries_);
      if (entry == nullptr && !app_.remaining().empty()) refuse(app_, *commands_);
      std::cout << (entry == nullptr ? program_help(*commands_)
                                     : command_help(*entry->command, entry->flags));
      return 0;
    } catch (const CLI::CallForVersion& call) {
      std::cout << call.what() << '\n';
      return 0;
    } catch (const CLI::ParseError& error) {
      throw Error(Code::kUsage, sentence(error));
    }
    Entry* entry = chosen(entries_);
    if (entry == nullptr || !app_.remaining().empty()) refuse(app_, *commands_);
    entry->flags.resolve();
    return entry->run();
  }

 private:
  const std::vector<Command>* commands_;
  CLI::App app_{"Trains and runs transformers on parallel ranks.", "cleave"};
  std::deque<Entry> entries_;
};

// A full disk or a closed stdout is detected at the last flush.
void check_stdout() {
  std::cout.flush();
  CLEAVE_CHECK(std::cout.good() && !is_stdout_lost(), Code::kIo,
               "stdout: cannot be written; the output is incomplete");
}

}  // namespace

int run_program(const std::vector<std::string>& words, const std::vector<Command>& commands) {
  try {
    const int code = Program(commands).run(words);
    check_stdout();
    return code;
  } catch (...) {
    std::cout.flush();
    return report_failure(kBugAdvice);
  }
}

}  // namespace cleave::cli
