// Training on several files with weights.
#include <filesystem>
#include <fstream>

#include <gtest/gtest.h>

#include "cleave/checkpoint/names.h"
#include "cleave/train/options.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::mix_test {
namespace {

using test::losses;
using test::TempFolder;

/// A tiny run on a text and on a file whose name has a colon, with these weights.
TrainOptions mixed_run(const TempFolder& folder, const std::string& out, const std::string& first,
                       const std::string& second) {
  const std::string letters = folder / "a:0.5";
  std::ofstream(letters) << std::string(100, 'a');
  TrainOptions o = test::small_run(folder);
  o.data = {letters + first, o.data[0] + second};
  o.out = folder / out;
  o.steps = 6;
  o.dtype = "fp64";
  return o;
}

// Oracle: one rank; in fp64 only the order of sums differs.
TEST(TrainOnAMix, DataParallelRanks_DrawTheSequencesOfOneRank) {
  const TempFolder folder;
  const std::vector<double> want = losses(mixed_run(folder, "one", ":3", ":1"));
  TrainOptions o = mixed_run(folder, "two", ":3", ":1");
  o.dp = 2;
  const std::vector<double> got = losses(o);
  ASSERT_EQ(got.size(), want.size());
  for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], 1e-9) << i;
  EXPECT_NE(losses(mixed_run(folder, "other", ":1", ":3")), want);
  EXPECT_EQ(losses(mixed_run(folder, "scaled", ":0.75", ":0.25")), want);
}

// Oracle: the uninterrupted run. Another mix is reported.
TEST(TrainOnAMix, ResumedInTheMiddle_ContinuesBitForBit) {
  const TempFolder folder;
  const std::vector<double> want = losses(mixed_run(folder, "whole", ":3", ":1"));
  TrainOptions o = mixed_run(folder, "part", ":3", ":1");
  o.save_every = 4;
  losses(o);
  std::filesystem::remove_all(o.out + "/" + checkpoint_name(6));
  std::ofstream(o.out + "/latest") << checkpoint_name(4) << '\n';
  o.resume = true;
  EXPECT_EQ(losses(o), want);
  TrainOptions other = mixed_run(folder, "part", ":1", ":1");
  other.resume = true;
  testing::internal::CaptureStderr();
  cleave_train(other);
  EXPECT_NE(testing::internal::GetCapturedStderr().find("was started on other data"),
            std::string::npos);
}

TEST(TrainOnAMix, Epochs_AreRefused) {
  const TempFolder folder;
  TrainOptions o = mixed_run(folder, "run", ":1", ":1");
  o.steps.reset();
  o.epochs = 1;
  EXPECT_EQ(test::thrown_by([&] { cleave_train(o); }).code(), Code::kUsage);
}

}  // namespace
}  // namespace cleave::mix_test
