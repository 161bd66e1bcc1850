// Oracle: weights in closed form, and the parts that the `gguf` package of llama.cpp's authors
// writes.
#include <filesystem>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/convert.h"
#include "cleave/format/gguf.h"
#include "cleave/model/model.h"
#include "tests/support/gguf_files.h"
#include "tests/support/python.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::gguf_parts_test {
namespace {

namespace fs = std::filesystem;
using test::kLlamaConfig;
using test::TempFolder;
using testing::HasSubstr;

/// Divides a file into parts of nine tensors.
constexpr const char* kSplit = R"(
import sys, gguf
reader = gguf.GGUFReader(sys.argv[1])
writer = gguf.GGUFWriter(sys.argv[2], reader.get_field('general.architecture').contents(), split_max_tensors=9)
for name, field in reader.fields.items():
    if name.startswith('GGUF.') or name == 'general.architecture': continue
    writer.add_key_value(name, field.contents(), field.types[0], field.types[-1] if len(field.types) > 1 else None)
for t in reader.tensors: writer.add_tensor(t.name, t.data, raw_dtype=t.tensor_type)
writer.write_header_to_file()
writer.write_kv_data_to_file()
writer.write_tensors_to_file()
writer.close()
)";

TEST(GgufModelInParts, PartsOfPython_AreTheSameModel) {
  if (!test::python_has("gguf")) GTEST_SKIP() << "python3 or $CLEAVE_PYTHON has no gguf";
  const TempFolder folder;
  const fs::path whole = test::write_gguf_of(folder, kLlamaConfig);
  const auto result = test::run_python(kSplit, {whole.string(), (folder / "parts.gguf").string()});
  ASSERT_EQ(result.exit_code, 0) << result.err;
  const fs::path first = folder / "parts-00001-of-00003.gguf";
  EXPECT_EQ(Gguf::open(first).file_names().size(), 3U);
  EXPECT_EQ(ModelFolder::open(first.string()).config.dump(),
            ModelFolder::open(whole.string()).config.dump());
  convert({.from = first.string(), .to = (folder / "back").string()});
  test::expect_file_is_whole(folder / "back/model.safetensors",
                             test::tensors_of(kLlamaConfig).size());

  const fs::path second = folder / "parts-00002-of-00003.gguf";
  EXPECT_THAT(test::thrown_by([&] { ModelFolder::open(second.string()); }).what(),
              HasSubstr("give the first one, parts-00001-of-00003.gguf"));
  fs::remove(second);
  EXPECT_THAT(test::thrown_by([&] { ModelFolder::open(first.string()); }).what(),
              HasSubstr("parts-00002-of-00003.gguf is not there; it is part 2 of 3"));
}

}  // namespace
}  // namespace cleave::gguf_parts_test
