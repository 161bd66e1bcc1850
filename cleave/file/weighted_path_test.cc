#include "cleave/file/weighted_path.h"

#include <fstream>

#include <gtest/gtest.h>

#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::weighted_path_test {
namespace {

TEST(WeightedPath, NumberBehindTheLastColon_IsTheWeight) {
  EXPECT_EQ(weighted_path("a.jsonl:0.7").path, "a.jsonl");
  EXPECT_EQ(weighted_path("a.jsonl:0.7").weight, 0.7);
  EXPECT_EQ(weighted_path("a:b:2e1").path, "a:b");
  EXPECT_EQ(weighted_path("a:b:2e1").weight, 20);
}

TEST(WeightedPath, OtherTexts_AreNames) {
  for (const char* name : {"a.jsonl", "a:", "a:b", "a:1x", ""}) {
    EXPECT_EQ(weighted_path(name).path, name);
    EXPECT_FALSE(weighted_path(name).weight) << name;
  }
}

TEST(WeightedPath, ExistingFileWithAColon_IsNotDivided) {
  const test::TempFolder folder;
  const std::string name = folder / "a:0.5";
  EXPECT_EQ(weighted_path(name).path, folder / "a");
  std::ofstream(name) << "x";
  EXPECT_EQ(weighted_path(name).path, name);
  EXPECT_FALSE(weighted_path(name).weight);
  EXPECT_EQ(weighted_path(name + ":3").path, name);
  EXPECT_EQ(weighted_path(name + ":3").weight, 3);
}

TEST(WeightedPath, WeightThatIsNotAboveZero_IsRefused) {
  for (const char* weight : {"0", "-1", "inf", "nan", "1e999"}) {
    const Error error = test::thrown_by([&] { (void)weighted_path(std::string("a:") + weight); });
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_EQ(error.what(), std::string("a:") + weight + ": the weight is " + weight +
                                "; expected a number above 0");
  }
}

TEST(WeightedPath, WeightsOfSomeFilesOnly_AreRefusedWithTwoFiles) {
  EXPECT_EQ(weighted_paths({"a:1", "b:2"}).size(), 2U);
  EXPECT_EQ(weighted_paths({"a", "b"}).size(), 2U);
  EXPECT_STREQ(test::thrown_by([] {
                 (void)weighted_paths({"a:1", "b"});
               }).what(),
               "b has no weight, a:1 has one; give all files a weight (FILE:WEIGHT), or none");
  EXPECT_STREQ(test::thrown_by([] {
                 (void)weighted_paths({"a", "b:1"});
               }).what(),
               "a has no weight, b:1 has one; give all files a weight (FILE:WEIGHT), or none");
}

}  // namespace
}  // namespace cleave::weighted_path_test
