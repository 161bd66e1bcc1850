#pragma once
#include <functional>
#include <initializer_list>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cleave/base/str.h"
#include "cleave/cli/value.h"

namespace CLI {  // NOLINT(readability-identifier-naming)
class App;
class Option;
}  // namespace CLI

namespace cleave::cli {

/// How a flag looks in help and in messages.
struct FlagText {
  std::string name;            ///< without dashes
  std::string value;           ///< placeholder of the value in help: "N", "FILE"
  std::string help;            ///< one phrase, with the unit
  std::string default_text{};  ///< default as help shows it; empty: the variable's value
};

/// How many values a flag takes.
enum class Arity {
  kSwitch,  ///< none
  kOne,     ///< one; if repeated, the last one
  kMany,    ///< several: --data A B C
  kEach,    ///< one; the flag may be repeated
  kRows,    ///< like kEach; in a config file one row of numbers or a list of rows
};

/// The flags of one command: what the command line and a config file may set, and which variables
/// receive the values. CLI11 splits the command line; resolve() reads the values, first from the
/// command line, then from the file of --config.
class Flags {
 public:
  /// Stores `values`; `from` is "--steps" or "run.json: \"steps\"".
  using Set = std::function<void(const std::string& from, const std::vector<std::string>& values)>;

  /// One flag of a command, as it was registered.
  struct Flag {
    FlagText text;
    Arity arity = Arity::kOne;
    std::string group;
    Set set;
    CLI::Option* option = nullptr;    ///< --name
    CLI::Option* opposite = nullptr;  ///< --no-name of a switch
    bool is_shown_negative = false;   ///< help shows --no-name
    bool takes_word = false;          ///< a word without a flag is its value
  };

  explicit Flags(CLI::App& app);
  Flags(const Flags&) = delete;
  Flags& operator=(const Flags&) = delete;

  /// Sets the help section of the flags that are added next.
  void group(std::string title) { group_ = std::move(title); }

  /// A flag that takes a string.
  void add(std::string* target, FlagText text);
  /// A flag that takes a number.
  template <class Number>
  void add(Number* target, FlagText text, const Range& range) {
    if (text.default_text.empty()) text.default_text = shown(*target);
    add_flag(std::move(text), Arity::kOne, [target, range](const auto& from, const auto& values) {
      read_value(Given{from, values.back()}, range, target);
    });
  }

  /// A flag that takes one of `choices`.
  void choice(std::string* target, FlagText text, std::vector<std::string> choices);
  /// --name A B C, or --name A --name B.
  void many(std::vector<std::string>* target, FlagText text);
  /// --name A --name B; takes exactly one value each time.
  void each(std::vector<std::string>* target, FlagText text);
  /// --name and --no-name; help shows the one that changes the default.
  void toggle(bool* target, FlagText text);
  /// A flag whose values `set` reads.
  void add_flag(FlagText text, Arity arity, Set set);
  /// The next positional argument.
  void positional(std::string* target, FlagText text);
  /// A word without a flag is the value of the flag that was added last: "cleave eval DIR".
  void takes_word() { flags_.back().takes_word = true; }
  /// Adds --config FILE.
  void config();
  /// Allows at most one of these; resolve() throws Error(kUsage) otherwise. A flag on the command
  /// line overrides the others in the config file.
  void exclusive(std::vector<std::string> names);
  /// Words from the first positional argument, or after --, are the command line of another
  /// program.
  void program(std::vector<std::string>* target) { program_ = target; }

  /// Reads the values into the variables. Throws Error(kUsage).
  void resolve();

  /// Whether the command line or the config file sets it; valid after resolve().
  [[nodiscard]] bool is_given(std::string_view name) const;
  /// Throws Error(kUsage) unless it is given.
  void require(std::string_view name) const;

  [[nodiscard]] const std::vector<Flag>& all() const { return flags_; }
  [[nodiscard]] std::vector<std::string>* program() const { return program_; }
  [[nodiscard]] CLI::App& app() const { return *app_; }
  /// The positional arguments, in order.
  [[nodiscard]] const std::vector<FlagText>& positionals() const { return positionals_; }

 private:
  static std::string shown(const std::optional<int64_t>& number);
  template <class Number>
  static std::string shown(Number number) {
    return str(number);
  }

  void read_word();
  [[noreturn]] void refuse_flag(const std::string& name) const;
  void read_command_line();
  void read_config(const std::string& path);
  [[nodiscard]] bool is_hidden_by_command_line(const std::string& name) const;
  [[nodiscard]] const Flag* find(std::string_view name) const;

  CLI::App* app_;
  std::string group_;
  std::vector<Flag> flags_;
  std::vector<std::vector<std::string>> exclusive_;
  std::vector<std::string> on_command_line_;
  std::vector<std::string> in_config_;
  std::vector<std::string>* program_ = nullptr;
  std::vector<FlagText> positionals_;
  std::string config_path_;
  std::string word_;  // of the flag that takes a word
};

}  // namespace cleave::cli
