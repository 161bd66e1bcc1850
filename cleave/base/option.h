#pragma once
#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

/// How the options of commands are declared: each once, as a Row next to the struct that holds it.
/// The rows give the flags, the keys of config files, the help, the shell completion, what the
/// ranks of a job compare, and what resuming a run checks.
namespace cleave::option {

/// Numbers that an option accepts. Every number has both limits: a value beyond them is a mistake
/// that would exhaust memory or never finish.
struct Limits {  // NOLINT(cppcoreguidelines-pro-type-member-init): both ends must be given
  double low;
  double high;
  bool takes_low = true;   ///< `low` itself is allowed
  bool takes_high = true;  ///< `high` itself is allowed
};

/// Ranks along one axis of a layout, and in total.
inline constexpr Limits kRanks{.low = 1, .high = 4096};
/// Ranks that one command starts on this host.
inline constexpr Limits kHostRanks{.low = 1, .high = 256};
/// Threads of a rank.
inline constexpr Limits kThreads{.low = 1, .high = 1024};
/// Sequences of a batch.
inline constexpr Limits kSequences{.low = 1, .high = 1e6};
/// Length of a sequence, in tokens.
inline constexpr Limits kLength{.low = 1, .high = 1e7};
/// Steps, and steps between two events; 0 is "none".
inline constexpr Limits kSteps{.low = 0, .high = 1e9};
/// Token ids and token counts: a vocabulary has fewer than 2^31.
inline constexpr Limits kTokens{.low = 0, .high = 2147483647};
/// Seconds to wait.
inline constexpr Limits kSeconds{.low = 0.001, .high = 1e7};
/// Seeds: any unsigned 64-bit integer.
inline constexpr Limits kSeeds{.low = 0, .high = 18446744073709551615.0};

/// The words that an option accepts.
using Choices = std::vector<std::string>;

/// For a list: the flag takes one value and may be repeated. Otherwise it takes several.
struct Each {};

/// The variable of an option. Its type decides what the flag takes: a bool is a switch (--x and
/// --no-x), an array two numbers, a list several values, rows of ids a list of lists.
using Target = std::variant<bool*, int*, int64_t*, uint64_t*, double*, std::optional<int64_t>*,
                            std::optional<double>*, std::array<double, 2>*, std::string*,
                            std::vector<std::string>*, std::vector<std::vector<int64_t>>*>;

/// Whether all ranks of a job must have the same value.
enum class Across { kMayDiffer, kMustMatch };
using enum Across;

/// What a run that resumes from a checkpoint does if the value differs from the run's first one.
struct OnResume {
  enum Kind { kIgnore, kWarn, kRefuse } kind = kIgnore;
  const char* consequence = "";  ///< of a change, for the warning
};
/// The position in the data depends on it.
inline constexpr OnResume kFixed{.kind = OnResume::kRefuse};
/// It decides which sequences come next.
inline constexpr OnResume kReordersData{
    .kind = OnResume::kWarn,
    .consequence = "the order of the data changes; some sequences repeat, others are skipped"};

/// One option of a command.
struct Row {
  Target target;
  std::string name;            ///< without dashes
  std::string value;           ///< placeholder of the value in help: "N", "FILE"
  std::string help;            ///< one phrase, with the unit
  std::string default_text{};  ///< default as help shows it; empty: the variable's value. An option
                               ///< with the default "required" must be given
  std::variant<std::monostate, Limits, Choices, Each> values{};
  Across across = kMayDiffer;
  OnResume on_resume{};
};

/// Options under one title of the help.
struct Section {
  std::string title;
  std::vector<Row> rows;
};

/// The value as text: true as "on", a number in the fewest digits that read back as it, numbers of
/// a list between commas, texts in quotes.
std::string text_of(const Target& target);

/// The options that must match on all ranks, as (flag, value): {"--lr", "0.001"}.
std::vector<std::pair<std::string, std::string>> matching(const std::vector<Section>& sections);

/// --tokenizer; `default_text` is its default in help.
Row tokenizer(std::string* target, std::string default_text = "the model's");
/// --chat-template.
Row chat_template(std::string* target);
/// --train-on.
Row train_on(std::string* target);

}  // namespace cleave::option
