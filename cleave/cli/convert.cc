#include "cleave/checkpoint/convert.h"

#include <iostream>
#include <memory>

#include "cleave/base/byte_count.h"
#include "cleave/base/error.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"

namespace cleave::cli {
namespace {

struct Words {
  std::string format = "safetensors", dtype = "keep", max_shard_size = "5GB";
};

ModelFormat format_of(const std::string& word) {
  if (word == "bin") return ModelFormat::kBin;
  if (word == "oslo") return ModelFormat::kOslo;
  return word == "nxd" ? ModelFormat::kNxd : ModelFormat::kSafetensors;
}

void define(Flags& flags, ConvertOptions& options, Words& words) {
  flags.add(&options.from,
            {"from", "DIR", "model folder in any format, or run folder", "required"});
  flags.takes_word();
  flags.add(&options.to, {"to", "DIR", "new folder; must not exist", "required"});
  flags.choice(&words.format, {"format", "", "format of the new tensor files"},
               {"safetensors", "bin", "oslo", "nxd"});
  flags.add(&options.tp, {"tp", "N", "tensor-parallel ranks of oslo and nxd files"}, kRanks);
  flags.add(&options.pp, {"pp", "N", "pipeline stages of oslo and nxd files"}, kRanks);
  flags.choice(&words.dtype, {"dtype", "", "dtype of the new tensors"},
               {"keep", "fp32", "bf16", "fp16", "fp64"});
  flags.add(&words.max_shard_size,
            {"max-shard-size", "SIZE", "maximum size of a safetensors or bin file: 5GB, 200MiB"});
}

int run(ConvertOptions& options, const Words& words, const Flags& flags) {
  flags.require("from");
  flags.require("to");
  options.format = format_of(words.format);
  if (words.dtype != "keep") options.dtype = words.dtype;
  const auto bytes = bytes_from_text(words.max_shard_size);
  CLEAVE_CHECK(bytes, Code::kUsage, "--max-shard-size is '", words.max_shard_size,
               "'; expected a size such as 5GB, 200MiB or 1000000");
  options.max_file_bytes = *bytes;
  const bool has_parts = words.format == "safetensors" || words.format == "bin";
  CLEAVE_CHECK(has_parts || !flags.is_given("max-shard-size"), Code::kUsage,
               "--max-shard-size applies to the formats safetensors and bin; ", words.format,
               " has one file per rank");
  ConvertReport report;
  library_function<decltype(cleave_convert)>("cleave_convert")(options, report);
  std::cout << options.to << ": " << report.num_tensors << " tensors, "
            << bytes_text(static_cast<double>(report.bytes)) << " in " << report.num_files
            << (report.num_files == 1 ? " file" : " files") << " (" << words.format << ")\n";
  if (report.left_state) {
    std::cout << "the optimizer's state stays in " << options.from
              << "; resume training from there, on any layout\n";
  }
  return 0;
}

}  // namespace

Command convert_command() {
  return {.name = "convert",
          .summary = "convert a model to another file format, layout or dtype",
          .usage = "[--from] DIR --to DIR [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<ConvertOptions>();
            auto words = std::make_shared<Words>();
            define(flags, *options, *words);
            return [options, words, &flags] { return run(*options, *words, flags); };
          }};
}

}  // namespace cleave::cli
