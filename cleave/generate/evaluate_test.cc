#include "cleave/generate/evaluate.h"

#include <cmath>
#include <filesystem>
#include <fstream>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/generate/options.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::evaluate_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

/// Copies a folder and makes the last number of its safetensors file NaN.
std::string with_nan(const fs::path& from, const fs::path& to, const std::string& file) {
  fs::copy(from, to);
  const float nan = NAN;
  std::fstream out(to / file, std::ios::in | std::ios::out | std::ios::binary);
  out.seekp(-static_cast<std::streamoff>(sizeof nan), std::ios::end);
  out.write(reinterpret_cast<const char*>(&nan), sizeof nan);
  return to;
}

// The program ends with 9, as generate, train and eval --task dpo do.
TEST(Evaluate, ModelOrAdapterThatHoldsNaN_EndsWithTheSameNumericsError) {
  const TempFolder folder;
  const std::string model = test::golden_folder("llama-6heads");
  const std::string adapter = test::source_file("tests/golden/lora/llama-6heads");
  std::ofstream(folder / "rows.jsonl") << R"({"input_ids": [4, 5, 6, 7]})" << '\n';
  EvalOptions o;
  o.data = {folder / "rows.jsonl"};
  const auto expect_refused = [&] {
    for (const int tp : {1, 2}) {
      o.tp = tp;
      const Error error = test::thrown_by([&] { cleave_eval(o); });
      EXPECT_EQ(error.code(), Code::kNumerics);
      EXPECT_STREQ(error.what(), "the loss is not finite; check the weights of the model");
    }
  };
  o.model = model;
  o.adapter = with_nan(adapter, folder / "adapter", "adapter_model.safetensors");
  expect_refused();
  o.adapter = adapter;
  EXPECT_NO_THROW(cleave_eval(o));
  o.adapter.clear();
  o.model = with_nan(model, folder / "model", "model.safetensors");
  expect_refused();
}

}  // namespace
}  // namespace cleave::evaluate_test
