#pragma once
#include <string>

#include "cleave/generate/options.h"

namespace cleave::cli {

/// Adds the prompts of options->prompt_file, of stdin if it is "-": one per non-empty line; in a
/// file named *.jsonl each line is an object with "prompt", "text" or "input_ids". Throws
/// Error(kIo), Error(kFormat), and Error(kUsage) for stdin under a launcher.
void read_prompt_file(GenerateOptions* options);

}  // namespace cleave::cli
