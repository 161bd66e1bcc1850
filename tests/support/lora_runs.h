#pragma once
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/file/file.h"
#include "cleave/train/options.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/python.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {

/// Training runs of adapters of a small Llama.
class LoraRuns : public ::testing::Test {
 protected:
  void SetUp() override {
    const std::string text = read_file(test::source_file("LICENSE"));
    std::ofstream(folder_ / "text") << text.substr(0, 2000);
    base_ = test::golden_folder("llama-gqa-llama3rope");
  }

  TrainOptions options(const std::string& out) {
    TrainOptions o;
    o.model = base_;
    std::ofstream rows(folder_ / "rows.jsonl");
    for (int row = 0; row < 16; ++row) {
      std::vector<int> ids;
      for (int i = 0; i < 12; ++i) ids.push_back(4 + (row * 7 + i * i) % 60);
      rows << nlohmann::json{{"input_ids", ids}}.dump() << '\n';
    }
    o.data = {folder_ / "rows.jsonl"};
    o.out = folder_ / out;
    o.seq_len = 16;
    o.batch_size = 4;
    o.steps = 6;
    o.lr = 1e-2;
    o.lora = 4;
    o.lora_targets = {"q_proj,v_proj", "down_proj"};
    o.gemm = "mkl";
    o.threads_per_rank = 1;
    return o;
  }

  static std::vector<double> losses(const TrainOptions& options) { return test::losses(options); }

  /// Trains and compares each step's loss with one rank's.
  static void expect_losses(const TrainOptions& o, const std::vector<double>& want) {
    const std::vector<double> got = losses(o);
    ASSERT_EQ(got.size(), want.size()) << o.out;
    // fp32 rounding of sums in another order, which Adam enlarges over six steps.
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i], want[i], 2e-4 * want[i]) << o.out << i;
    }
  }

  /// Trains, saving after step 3, and goes back to that checkpoint: the options that resume there.
  static TrainOptions resumed_at_3(TrainOptions o) {
    o.save_every = 3;
    losses(o);
    std::filesystem::remove_all(o.out + "/step_00000006");
    std::ofstream(o.out + "/latest") << "step_00000003\n";
    o.resume = true;
    return o;
  }

  /// Code and message of the error.
  static std::string error_of(const TrainOptions& options) {
    try {
      cleave_train(options);
    } catch (const Error& error) {
      return str(static_cast<int>(error.code()), ' ', error.what());
    }
    return "";
  }

  /// Compares weights that were merged here with those that peft merges; skips without peft.
  void expect_merged_as_peft_does(const std::string& adapter, const std::string& merged) const {
    for (const char* package : {"peft", "torch", "transformers", "safetensors"}) {
      if (!python_has(package)) GTEST_SKIP() << "CLEAVE_PYTHON has no " << package;
    }
    const auto result = run_python(R"(
import sys, torch, peft, transformers
from safetensors.torch import load_file
base, adapter, merged = sys.argv[1:]
model = transformers.AutoModelForCausalLM.from_pretrained(base, dtype=torch.float32)
model = peft.PeftModel.from_pretrained(model, adapter).merge_and_unload()
want = load_file(merged + "/model.safetensors")
state = model.state_dict()
print(max((state[n] - v).abs().max().item() for n, v in want.items()) < 1e-6)
)",
                                   {base_, adapter, merged});
    EXPECT_EQ(result.out, "True\n") << result.err;
  }

  TempFolder folder_;
  std::string base_;
};

}  // namespace cleave::test
