#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cleave/model/model.h"

namespace cleave::inline model {

/// What a model's generation_config.json says about generated text, where Cleave uses it. Without
/// the file, what config.json says, as in transformers.
struct GenerationConfig {
  std::vector<int64_t> eos_ids{};  ///< ids that end a text; a generation_config.json may name none
  std::optional<double> repetition_penalty{}, temperature{}, top_p{}, length_penalty{};
  std::optional<int64_t> no_repeat_ngram_size{}, top_k{};
  std::optional<std::string> early_stopping{};  ///< "true", "false" or "never"
  std::string file = "generation_config.json";  ///< its name
  /// Keys without effect here that change the ids of transformers: of all texts, of sampled ones,
  /// and of beam search. Not do_sample and the maximum lengths, which only flags set.
  std::vector<std::string> unused{}, unused_in_sampling{}, unused_in_beam_search{};
};

/// The file of a model's folder, or of its adapter's base model; "" if there is none.
std::filesystem::path generation_config_path(const ModelFolder& folder);

/// Reads that file, or config.json. Ids that the vocabulary lacks are left out. Throws
/// Error(kFormat) for values that the flags of `cleave generate` refuse too.
GenerationConfig read_generation_config(const ModelFolder& folder, const ModelFacts& facts);

}  // namespace cleave::inline model
