#pragma once
#include <cstdint>
#include <filesystem>
#include <optional>
#include <string>
#include <vector>

#include "cleave/model/model.h"

namespace cleave::inline model {

/// What a model's generation_config.json says about generated text, where Cleave uses it.
struct GenerationConfig {
  /// Ids that end a text. Without the file, those of config.json; a file may name none. As in
  /// transformers.
  std::vector<int64_t> eos_ids{};
  std::optional<double> repetition_penalty{}, temperature{}, top_p{};
  std::optional<int64_t> no_repeat_ngram_size{}, top_k{};
  /// Keys without effect here that change the ids of transformers: of all texts, and of sampled
  /// ones. Not do_sample and the maximum lengths, which only flags set.
  std::vector<std::string> unused{}, unused_in_sampling{};
};

/// The file of a model's folder, or of its adapter's base model; "" if there is none.
std::filesystem::path generation_config_path(const ModelFolder& folder);

/// Reads that file. Ids that the vocabulary lacks are left out. Throws Error(kFormat) for values
/// that the flags of `cleave generate` refuse too.
GenerationConfig read_generation_config(const ModelFolder& folder, const ModelFacts& facts);

}  // namespace cleave::inline model
