#pragma once
#include <filesystem>
#include <string>

namespace cleave::inline checkpoint {

/// Makes a run folder a model folder for other programs, such as `from_pretrained` of transformers:
/// each file of the checkpoint that belongs to the model (config, weights or adapter, tokenizer)
/// gets a relative symbolic link of the same name in `run`. It replaces such a link of another
/// checkpoint, or a copy of a checkpoint's file, but nothing else. Links to files that only another
/// checkpoint has are removed. Each link changes atomically. Returns what could not be linked and
/// why; empty if all links are there.
std::string link_model_files(const std::filesystem::path& run,
                             const std::filesystem::path& checkpoint);

}  // namespace cleave::inline checkpoint
