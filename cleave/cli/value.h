#pragma once
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace cleave::cli {

/// Which numbers a flag takes. Every flag has a limit on both sides: what is beyond it is a slip,
/// and would otherwise end in memory or time that nobody has.
struct Range {  // NOLINT(cppcoreguidelines-pro-type-member-init): both ends must be given
  double low;
  double high;
  bool takes_low = true;   ///< `low` itself is allowed
  bool takes_high = true;  ///< `high` itself is allowed
};

/// Ranks along one axis of a layout, and in all.
inline constexpr Range kRanks{.low = 1, .high = 4096};
/// Ranks that one command starts on this host.
inline constexpr Range kHostRanks{.low = 1, .high = 256};
/// Threads of a rank.
inline constexpr Range kThreads{.low = 1, .high = 1024};
/// Sequences of a batch.
inline constexpr Range kSequences{.low = 1, .high = 1e6};
/// Length of a sequence, in tokens.
inline constexpr Range kLength{.low = 1, .high = 1e7};
/// Steps, and how many of them lie between two events; 0 is "none".
inline constexpr Range kSteps{.low = 0, .high = 1e9};
/// Ids of tokens and how many of them: a vocabulary has fewer than 2^31.
inline constexpr Range kTokens{.low = 0, .high = 2147483647};
/// Seconds to wait.
inline constexpr Range kSeconds{.low = 0.001, .high = 1e7};
/// Seeds: all that 64 bits hold.
inline constexpr Range kSeeds{.low = 0, .high = 18446744073709551615.0};

/// Where a value comes from and what it is: for parsing and for the message when it is wrong.
struct Given {
  std::string where;  ///< "--steps" or "run.json: \"steps\""
  std::string text;
};

/// Reads `given` into `target`. Throws Error(kUsage): "--tp is 'x'; expected an integer from 1 to
/// 4096".
void read_value(const Given& given, const Range& range, int* target);
void read_value(const Given& given, const Range& range, int64_t* target);
void read_value(const Given& given, const Range& range, uint64_t* target);
void read_value(const Given& given, const Range& range, double* target);
void read_value(const Given& given, std::string* target);
void read_value(const Given& given, const Range& range, std::optional<int64_t>* target);

/// One of `choices`, else Error(kUsage) that lists them.
void read_choice(const Given& given, const std::vector<std::string>& choices, std::string* target);

/// Numbers between commas: "0.9,0.95"; at least one.
std::vector<double> read_numbers(const Given& given, const Range& range);
/// Ids between commas: "1,2,3", each fit for a token; at least one.
std::vector<int64_t> read_ids(const Given& given);

}  // namespace cleave::cli
