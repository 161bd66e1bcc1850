#pragma once
#include <string>

#include "cleave/generate/options.h"

namespace cleave::cli {

/// Adds the prompts of options->prompt_file: one per non-empty line; in a file named *.jsonl each
/// line is an object with "prompt", "text" or "input_ids". Throws Error(kIo), Error(kFormat).
void read_prompt_file(GenerateOptions* options);

}  // namespace cleave::cli
