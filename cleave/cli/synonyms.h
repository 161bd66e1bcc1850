#pragma once
#include <cstddef>
#include <functional>
#include <optional>
#include <span>
#include <string_view>
#include <vector>

#include "cleave/base/option.h"

namespace cleave::cli {

/// What other programs call one of our flags.
struct Synonym {
  std::string_view flag;    ///< ours, without dashes
  std::string_view names;   ///< theirs, without dashes, separated by spaces
  std::string_view rest{};  ///< what follows our flag in the message: " bf16", "; it counts steps"
};

/// Names that Hugging Face's Trainer, torchtitan, Megatron-LM, DeepSpeed, vLLM and llama.cpp use.
std::span<const Synonym> synonyms();

/// The synonyms of a flag as typed, "--learning_rate" or "training.steps" (of which the last part
/// counts). A command may lack some of their flags.
std::vector<Synonym> synonyms_of(std::string_view typed);

/// A synonym of which the flag as typed is a misspelling ("--lerning-rate"): at most one letter in
/// five differs, and fewer than `limit`. Of flags that `has_flag` knows.
std::optional<Synonym> misspelled_synonym(
    std::string_view typed, size_t limit,
    const std::function<bool(std::string_view flag)>& has_flag);

/// What to do instead of a flag of other programs that has no counterpart here; empty if the flag
/// is not known. `has_flag` says whether the command has a flag of ours: advice names no others.
std::string_view advice_on(std::string_view typed,
                           const std::function<bool(std::string_view flag)>& has_flag);

/// What is meant by a value of other programs that an option does not accept, "bf16" by "bfloat16";
/// empty if the value is not known.
std::string_view meant_value(const option::Row& row, std::string_view value);

}  // namespace cleave::cli
