// Oracle: the largest number of fp16 is 65504.
#include <cerrno>
#include <cstdlib>
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/clock.h"
#include "cleave/checkpoint/convert.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "cleave/file/file.h"
#include "cleave/format/manifest.h"
#include "cleave/format/tensor_source.h"
#include "tests/support/captured_stdout.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::convert_types_test {
namespace {

TEST(Convert, ValuesThatTheNewTypeDoesNotReach_AreRefusedAndNothingIsLeft) {
  const test::TempFolder folder;
  const auto tensors = test::tensors_of(test::kLlamaConfig);
  test::write_model_folder(folder / "large", test::kLlamaConfig, tensors, 1e5);   // up to 195312
  test::write_model_folder(folder / "usual", test::kLlamaConfig, tensors, 33e3);  // up to 64453
  for (const auto& [format, ending] : {std::pair(ModelFormat::kSafetensors, ""),
                                       {ModelFormat::kNxd, ""},
                                       {ModelFormat::kGguf, ".gguf"}}) {
    ConvertOptions options{.from = folder / "large",
                           .to = (folder / "out").string() + ending,
                           .format = format,
                           .dtype = "fp16"};
    const Error error = test::thrown_by([&] { convert(options); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), testing::HasSubstr("has values too large for fp16"));
    EXPECT_THAT(test::names_below(folder.path()), testing::ElementsAre("large", "usual"));
    options.from = folder / "usual";
    EXPECT_NO_THROW(convert(options));
    std::filesystem::remove_all(options.to);
    options.from = folder / "large";
    options.dtype = "bf16";
    EXPECT_NO_THROW(convert(options));
    std::filesystem::remove_all(options.to);
  }
}

// transformers writes the default chat template into a file and the others into a folder.
TEST(Convert, FolderOfChatTemplates_IsCopied) {
  const test::TempFolder folder;
  const std::filesystem::path source = folder / "model";
  test::write_model_folder(source, test::kLlamaConfig, test::tensors_of(test::kLlamaConfig));
  std::filesystem::create_directory(source / "additional_chat_templates");
  const std::string name = "additional_chat_templates/tool_use.jinja";
  write_atomic(source / "tokenizer.json", "{}");
  write_atomic(source / name, "a template");
  write_atomic(source / "additional_chat_templates/notes.bin", "notes");
  for (const ModelFormat format : {ModelFormat::kSafetensors, ModelFormat::kBin}) {
    const std::filesystem::path to = folder / str("out", static_cast<int>(format));
    convert({.from = source, .to = to, .format = format});
    EXPECT_EQ(read_file(to / name), "a template");
    EXPECT_THAT(test::names_in(to / "additional_chat_templates"),
                testing::ElementsAre("tool_use.jinja"));
    EXPECT_THAT(find_damage(to), testing::IsEmpty());
    std::filesystem::create_directory(to / "of_the_user");
    write_atomic(to / "of_the_user/notes.bin", "notes");
    EXPECT_THAT(find_damage(to), testing::IsEmpty());
    write_atomic(to / name, "A template");
    EXPECT_THAT(find_damage(to), testing::ElementsAre(name + " has changed"));
  }
}

// The first write takes more than a second.
TEST(Convert, LongConversionOnATerminal_IsShown) {
  const test::TempFolder folder;
  test::write_model_folder(folder / "model", test::kLlamaConfig,
                           test::tensors_of(test::kLlamaConfig));
  setenv("TERM", "xterm", 1);
  for (const auto& [format, name] : {std::pair(ModelFormat::kSafetensors, "new"),
                                     {ModelFormat::kBin, "bin"},
                                     {ModelFormat::kGguf, "new.gguf"}}) {
    double start = 0;  // of the first write
    const ScopedFileHook hook([&](FileCall call, const std::string& /*path*/) {
      if (call != FileCall::kWrite) return 0;
      if (start == 0) start = monotonic_s();
      while (monotonic_s() - start < 1.05) {
      }
      return 0;
    });
    test::Captured out(100);
    convert({.from = folder / "model", .to = folder / name, .format = format});
    EXPECT_THAT(out.take(), testing::HasSubstr("converted MiB 0/1 [")) << name;
  }
}

// As a run with --keep-last does with the checkpoint that is converted.
TEST(Convert, SourceThatIsRemovedMeanwhile_IsNamedInTheError) {
  const test::TempFolder folder;
  const std::string source = folder / "step_00000002";
  test::write_model_folder(source, test::kLlamaConfig, test::tensors_of(test::kLlamaConfig));
  const ScopedFileHook hook([&](FileCall call, const std::string& /*path*/) {
    if (call != FileCall::kMakeFolder) return 0;
    std::filesystem::remove_all(source);
    return EIO;
  });
  const Error error = test::thrown_by([&] { convert({.from = source, .to = folder / "out"}); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(), testing::StartsWith(source + " was removed while it was read"));
}

// Oracle: the source, whose scales belong to its numbers.
TEST(Convert, QuantisedWeightsOfAnotherProgram_KeepTheirTypes) {
  const test::TempFolder folder;
  const auto tensors = test::tensors_of(test::kLlamaConfig);
  const std::string config =
      test::changed(test::kLlamaConfig, {{"quantization_config", {{"quant_method", "gptq"}}}});
  test::write_model_folder(folder / "model", config, tensors);
  ConvertOptions options{
      .from = folder / "model", .to = folder / "out", .dtype = "bf16", .max_file_bytes = 5000};
  const Error error = test::thrown_by([&] { convert(options); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), testing::HasSubstr("(quantization_config in its config.json)"));
  EXPECT_THAT(test::names_below(folder.path()), testing::ElementsAre("model"));
  options.dtype.clear();
  convert(options);
  const auto copied = open_tensors(folder / "out");
  EXPECT_EQ(copied->list().size(), tensors.size());
  for (const TensorInfo& info : copied->list()) EXPECT_EQ(info.dtype, DType::kF32) << info.name;
}

}  // namespace
}  // namespace cleave::convert_types_test
