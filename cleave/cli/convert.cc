#include "cleave/checkpoint/convert.h"

#include <iostream>
#include <memory>
#include <nlohmann/json.hpp>

#include "cleave/base/byte_count.h"
#include "cleave/base/error.h"
#include "cleave/base/log.h"
#include "cleave/cli/check.h"
#include "cleave/cli/command.h"
#include "cleave/cli/library.h"
#include "cleave/cli/shared_flags.h"

namespace cleave::cli {
namespace {

struct Words {
  std::string format = "safetensors", dtype = "keep", max_shard_size = "5GB";
  bool json = false, quiet = false;
};

ModelFormat format_of(const std::string& word) {
  if (word == "bin") return ModelFormat::kBin;
  if (word == "oslo") return ModelFormat::kOslo;
  if (word == "gguf") return ModelFormat::kGguf;
  return word == "nxd" ? ModelFormat::kNxd : ModelFormat::kSafetensors;
}

void define(Flags& flags, ConvertOptions& options, Words& words) {
  flags.add({&options.from, "from", "DIR", "model folder in any format, run folder or GGUF file",
             "required"});
  flags.takes_word("from");
  flags.add({&options.adapter, "adapter", "DIR",
             "LoRA adapter to merge into the model: a PEFT folder or a run folder", "none"});
  flags.add({&options.ema, "ema", "",
             "take the averaged weights of a checkpoint that was trained with --ema, in fp32",
             "off"});
  flags.add(
      {&options.to, "to", "PATH", "new folder, or new GGUF file; must not exist", "required"});
  flags.add({&words.format, "format", "", "format of the new tensor files",
             "safetensors; gguf if --to ends in .gguf",
             option::Choices{"safetensors", "bin", "oslo", "nxd", "gguf"}});
  flags.add(
      {&options.tp, "tp", "N", "tensor-parallel ranks of oslo and nxd files", "", option::kRanks});
  flags.add({&options.pp, "pp", "N", "pipeline stages of oslo and nxd files", "", option::kRanks});
  flags.add({&words.dtype, "dtype", "",
             "dtype of the new tensors; q8_0 and q4_k_m are quantised, for gguf, and int4 and "
             "int4_sym for safetensors; f16 is GGUF's name of fp16",
             "",
             option::Choices{"keep", "fp32", "bf16", "fp16", "f16", "fp64", "q8_0", "q4_k_m",
                             "int4", "int4_sym"}});
  flags.add({&words.max_shard_size, "max-shard-size", "SIZE",
             "maximum size of a safetensors or bin file: 5GB, 200MiB"});
  flags.add({&words.json, "json", "", "print the summary as one JSON object", "off"});
  flags.add(quiet(&words.quiet));
  flags.exclusive({"json", "quiet"});
}

void print_json(const ConvertOptions& options, const Words& words, const ConvertReport& report) {
  const nlohmann::ordered_json summary = {{words.format == "gguf" ? "file" : "folder", options.to},
                                          {"format", words.format},
                                          {"tensors", report.num_tensors},
                                          {"bytes", report.bytes},
                                          {"files", report.num_files},
                                          {"left_state", report.left_state},
                                          {"wider", report.num_wider}};
  std::cout << summary.dump(-1, ' ', false, nlohmann::ordered_json::error_handler_t::replace)
            << '\n';
}

int run(ConvertOptions& options, Words& words, const Flags& flags) {
  if (!flags.is_given("format") && options.to.ends_with(".gguf")) words.format = "gguf";
  CLEAVE_CHECK(options.to != "gguf", Code::kUsage,
               "--to is gguf, the name of a format; give the file, as in --to model.gguf");
  require_model("--from", options.from, /*takes_presets=*/false);
  require_adapter(options.adapter);
  options.format = format_of(words.format);
  if (words.dtype == "f16") words.dtype = "fp16";
  if (words.dtype != "keep") options.dtype = words.dtype;
  const auto bytes = bytes_from_text(words.max_shard_size);
  CLEAVE_CHECK(bytes, Code::kUsage, "--max-shard-size is '", words.max_shard_size,
               "'; expected a size such as 5GB, 200MiB or 1000000");
  options.max_file_bytes = *bytes;
  const bool has_parts = words.format == "safetensors" || words.format == "bin";
  CLEAVE_CHECK(has_parts || !flags.is_given("max-shard-size"), Code::kUsage,
               "--max-shard-size applies to the formats safetensors and bin; ", words.format,
               words.format == "gguf" ? " has one file" : " has one file per rank");
  const bool is_quantized = words.dtype.starts_with("q");
  CLEAVE_CHECK(!is_quantized || words.format == "gguf", Code::kUsage, "--dtype ", words.dtype,
               " applies to the format gguf; give --format gguf, or another --dtype");
  CLEAVE_CHECK(!words.dtype.starts_with("int4") || words.format == "safetensors", Code::kUsage,
               "--dtype ", words.dtype,
               " applies to the format safetensors; give --format safetensors, or another --dtype");
  CLEAVE_CHECK(words.dtype != "fp64" || words.format != "gguf", Code::kUsage,
               "--dtype fp64 does not exist in the format gguf; choose fp32");
  CLEAVE_CHECK(words.format != "gguf" || options.to.ends_with(".gguf"), Code::kUsage, "--to is ",
               options.to, "; the name of a GGUF file ends in .gguf");
  CLEAVE_CHECK(words.format == "gguf" || !options.to.ends_with(".gguf"), Code::kUsage, "--to is ",
               options.to, ", the name of a GGUF file, and --format is ", words.format,
               "; give another name, or omit --format");
  set_quiet(words.quiet);
  ConvertReport report;
  library_function<decltype(cleave_convert)>("cleave_convert")(options, report);
  if (words.json) print_json(options, words, report);
  if (words.json || words.quiet) return 0;
  std::cout << options.to << ": " << counted(report.num_tensors, "tensor") << ", "
            << bytes_text(report.bytes) << " in " << counted(report.num_files, "file") << " ("
            << words.format << ")";
  if (report.num_wider > 0) {
    std::cout << "; " << counted(report.num_wider, "tensor")
              << " in a type with more bits, because their rows are not whole blocks of "
              << words.dtype;
  }
  std::cout << '\n';
  if (report.left_state) {
    std::cout << "the optimizer's state stays in "
              << (options.adapter.empty() ? options.from : options.adapter)
              << "; resume training from there, on any layout\n";
  }
  return 0;
}

}  // namespace

Command convert_command() {
  return {.name = "convert",
          .summary = "convert a model to another file format, layout or dtype",
          .usage = "[--from] DIR --to PATH [flags]",
          .define = [](Flags& flags) -> Run {
            auto options = std::make_shared<ConvertOptions>();
            auto words = std::make_shared<Words>();
            define(flags, *options, *words);
            return [options, words, &flags] { return run(*options, *words, flags); };
          }};
}

}  // namespace cleave::cli
