#pragma once
#include <algorithm>
#include <functional>
#include <memory>
#include <utility>

#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"
#include "cleave/generate/options.h"

// What generate, eval and predict have in common: they run a model's folder on --tp x --ep ranks.
namespace cleave::cli {

/// Throws Error(kIo) unless model, adapter and tokenizer are there, Error(kShape) unless --tp and
/// --ep match the launcher's world.
template <class Options>
void check_inference(const Options& options) {
  require_model("--model", options.model, /*takes_presets=*/false);
  require_adapter(options.adapter);
  require_tokenizer(options.tokenizer);
  check_world(options.tp, {{"--ep", options.ep}});
}

/// Adds the flags of Options and the launcher's. The run applies them, calls `prepare`, which also
/// checks the options, and then the library's function `name` of the type Function, by itself or in
/// the processes that ranks on GPUs need.
template <class Function, class Options>
Run define_inference(Flags& flags, const char* name, std::function<void(Options&)> prepare) {
  auto options = std::make_shared<Options>();
  flags.add_all(option::sections(*options));
  flags.takes_word("model");
  auto launcher = std::make_shared<LauncherFlags>(flags);
  return [options, launcher, name, prepare = std::move(prepare)] {
    launcher->apply();
    prepare(*options);
    if (const auto code = run_as_processes(options->device, std::max(1, options->tp) * options->ep))
      return *code;
    library_function<Function>(name)(*options);
    return 0;
  };
}

}  // namespace cleave::cli
