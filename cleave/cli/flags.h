#pragma once
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/base/option.h"

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
class Option;
}  // namespace CLI

namespace cleave::cli {

/// How a positional argument looks in help.
struct Positional {
  std::string name, value, help;
};

/// The flags of one command: what the command line and a config file may set, and which variables
/// receive the values. CLI11 splits the command line; resolve() reads the values, first from the
/// command line, then from the file of --config.
class Flags {
 public:
  /// One flag of a command, as it was registered.
  struct Flag {
    option::Row row;
    std::string group;
    CLI::Option* option = nullptr;    ///< --name
    CLI::Option* opposite = nullptr;  ///< --no-name of a switch
    bool is_shown_negative = false;   ///< help shows --no-name, which changes the default
    bool takes_word = false;          ///< a word without a flag is its value
  };

  explicit Flags(CLI::App& app);
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// Sets the help section of the flags that are added next.
  void group(std::string title) { group_ = std::move(title); }
  /// Adds the flag of an option.
  void add(option::Row row);
  /// Adds the flags of all options of a command.
  void add_all(const std::vector<option::Section>& sections);
  /// The next positional argument.
  void positional(std::string* target, Positional text);
  /// The rest of the positional arguments.
  void positional(std::vector<std::string>* targets, Positional text);
  /// Lets a word without a flag be the value of this flag, which was added before: "cleave eval
  /// DIR".
  void takes_word(std::string_view name);
  /// Adds --config FILE.
  void config();
  /// Allows at most one of these; resolve() throws Error(kUsage) otherwise. A flag on the command
  /// line overrides the others in the config file. They do not exclude each other if one of the
  /// flags `unless` is given.
  void exclusive(std::vector<std::string> names, std::vector<std::string> unless = {});
  /// Sets what the error about a missing flag says instead of "see cleave COMMAND --help". Called
  /// after the values were read; an empty result adds nothing.
  void when_missing(std::function<std::string()> advice) { advice_ = std::move(advice); }
  /// Words from the first positional argument, or after --, are the command line of another
  /// program.
  void program(std::vector<std::string>* target) { program_ = target; }

  /// Reads the values into the variables. Throws Error(kUsage), also if a required one is missing.
  void resolve();

  /// Throws Error(kUsage) for a flag as typed that the command does not have, with what is meant.
  [[noreturn]] void refuse_flag(const std::string& name) const;

  /// Whether the command line or the config file sets it; valid after resolve().
  [[nodiscard]] bool is_given(std::string_view name) const;
  /// Whether the program has a command of this name; of "bench train", bench is one.
  [[nodiscard]] bool is_command(const std::string& name) const;

  [[nodiscard]] const std::vector<Flag>& all() const { return flags_; }
  [[nodiscard]] std::vector<std::string>* program() const { return program_; }
  [[nodiscard]] CLI::App& app() const { return *app_; }
  /// The positional arguments, in order.
  [[nodiscard]] const std::vector<Positional>& positionals() const { return positionals_; }

 private:
  void refuse_empty_positionals() const;
  void read_word();
  void read_command_line();
  void read_config(const std::string& path);
  void check_exclusive() const;
  void require_all() const;
  [[nodiscard]] bool is_hidden_by_command_line(const std::string& name) const;
  [[nodiscard]] const Flag* find(std::string_view name) const;

  CLI::App* app_;
  std::string group_;
  std::vector<Flag> flags_;
  struct Exclusive {
    std::vector<std::string> names;
    std::vector<std::string> unless;
  };
  [[nodiscard]] bool applies(const Exclusive& each) const;
  std::vector<Exclusive> exclusive_;
  std::vector<std::string> on_command_line_;
  std::vector<std::string> in_config_;
  std::vector<std::string>* program_ = nullptr;
  std::vector<Positional> positionals_;
  std::string config_path_;
  std::string word_;  // of the flag that takes a word
  std::function<std::string()> advice_ = [] { return std::string(); };  // on a missing flag
};

}  // namespace cleave::cli
