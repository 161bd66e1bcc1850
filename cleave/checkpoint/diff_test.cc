// Oracle: differences that the test makes, one at a time.
#include "cleave/checkpoint/diff.h"

#include <cmath>
#include <filesystem>
#include <limits>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/convert.h"
#include "cleave/format/tensor_source.h"
#include "cleave/mesh/scalar_type.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::diff_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;
using testing::ElementsAre;
using testing::IsEmpty;

using Tensors = std::vector<std::pair<std::string, Tensor>>;

/// One safetensors file; its path.
std::string write_file(const fs::path& path, const Tensors& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, t] : tensors) {
    infos.push_back({name, dtype_of(t.scalar_type()), t.sizes().vec()});
  }
  FolderWriter folder(path);
  const SafetensorsPlan plan(infos);
  plan.create_files(folder);
  SafetensorsWriter writer(folder.path(), plan);
  for (const auto& [name, t] : tensors) {
    const Tensor values = t.contiguous();
    writer.write_block(name, {},
                       {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  writer.finish();
  folder.commit();
  return (path / "model.safetensors").string();
}

DiffReport diff_of(const Tensors& a, const Tensors& b) {
  const TempFolder folder;
  DiffReport report;
  cleave_diff(write_file(folder / "a", a), write_file(folder / "b", b), report);
  return report;
}

TEST(Diff, OneElement_IsCountedMeasuredAndPlaced) {
  const Tensor a = at::arange(24, at::kFloat).reshape({2, 3, 4});
  Tensor b = a.clone();
  b[1][2][0] += 4;    // 20 and 24
  b[0][0][1] -= 0.5;  // 1 and 0.5
  const DiffReport report = diff_of({{"same", a}, {"t", a}}, {{"t", b}, {"same", a}});
  EXPECT_EQ(report.num_tensors, 2);
  ASSERT_EQ(report.differences.size(), 1u);
  const TensorDifference& found = report.differences[0];
  EXPECT_EQ(found.name, "t");
  EXPECT_EQ(found.num_different, 2u);
  EXPECT_EQ(found.max_absolute, 4);
  EXPECT_EQ(found.max_relative, 0.5);
  EXPECT_THAT(found.where, ElementsAre(1, 2, 0));
}

// A tensor of several chunks, and two that are not compared.
TEST(Diff, Progress_EndsWithTheBytesThatAreCompared) {
  const TempFolder folder;
  const Tensor large = at::zeros({3, int64_t{1} << 20}), small = at::zeros({4});
  const auto a = write_file(folder / "a", {{"only", small}, {"shape", small}, {"t", large}});
  const auto b = write_file(folder / "b", {{"shape", at::zeros({5})}, {"t", large.to(at::kHalf)}});
  std::vector<uint64_t> seen;
  (void)diff(a, b, [&](uint64_t done, uint64_t total) {
    seen.push_back(done);
    EXPECT_EQ(total, large.nbytes());
  });
  EXPECT_GT(seen.size(), 1U);
  EXPECT_EQ(seen.back(), large.nbytes());
}

TEST(Diff, PlaceInALaterChunk_IsThatOfTheWholeTensor) {
  constexpr int64_t kRows = 5, kColumns = int64_t{1} << 20;
  static_assert(kRows * kColumns * 4 > 2 * kTensorChunkBytes);
  const Tensor a = at::zeros({kRows, kColumns});
  Tensor b = a.clone();
  b[4][77] = -2;
  b[0][1] = 1;
  const DiffReport report = diff_of({{"t", a}}, {{"t", b}});
  ASSERT_EQ(report.differences.size(), 1u);
  EXPECT_EQ(report.differences[0].num_different, 2u);
  EXPECT_EQ(report.differences[0].max_absolute, 2);
  EXPECT_THAT(report.differences[0].where, ElementsAre(4, 77));
}

TEST(Diff, NaNs_EqualOnlyEachOther) {
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  constexpr float kInfinite = std::numeric_limits<float>::infinity();
  const Tensor a = at::tensor({kNan, kInfinite, 0.0f, 1.0f});
  EXPECT_THAT(diff_of({{"t", a}}, {{"t", at::tensor({kNan, kInfinite, -0.0f, 1.0f})}}).differences,
              IsEmpty());
  for (const Tensor& b :
       {at::tensor({1.0f, kInfinite, 0.0f, 1.0f}), at::tensor({kNan, -kInfinite, 0.0f, 1.0f}),
        at::tensor({kNan, 3.0f, 0.0f, 1.0f})}) {
    const auto differences = diff_of({{"t", a}}, {{"t", b}}).differences;
    ASSERT_EQ(differences.size(), 1u);
    EXPECT_EQ(differences[0].num_different, 1u);
    EXPECT_TRUE(std::isinf(differences[0].max_absolute));
  }
}

TEST(Diff, IntegersBeyondADouble_AreDistinguished) {
  const int64_t big = int64_t{1} << 60;
  const auto differences = diff_of({{"t", at::tensor({big, big + 1}, at::kLong)}},
                                   {{"t", at::tensor({big, big}, at::kLong)}})
                               .differences;
  ASSERT_EQ(differences.size(), 1u);
  EXPECT_EQ(differences[0].num_different, 1u);
}

TEST(Diff, NamesTypesAndShapes_AreDifferences) {
  const Tensor a = at::tensor({1.0f, 2.0f});
  const DiffReport report =
      diff_of({{"shape", a}, {"type", a}, {"left", a}},
              {{"shape", a.view({2, 1})}, {"type", a.to(at::kBFloat16)}, {"right", a}});
  std::vector<std::string> names;
  for (const TensorDifference& found : report.differences) {
    names.push_back(found.name);
    EXPECT_EQ(found.num_different, 0u) << found.name;
    EXPECT_EQ(found.in_a, found.name != "right");
    EXPECT_EQ(found.in_b, found.name != "left");
    if (found.name == "type") {
      EXPECT_EQ(found.dtype_a + " " + found.dtype_b, "F32 BF16");
    }
  }
  EXPECT_THAT(names, testing::UnorderedElementsAre("shape", "type", "left", "right"));
}

// The same run saved on two layouts, and its weights in another format.
TEST(Diff, CheckpointsOfTwoLayouts_AreEqualWithTheirStateAndAMomentIsFound) {
  const TempFolder folder;
  const auto save = [&](const std::string& name, const test::Layout& layout, float more) {
    test::on_layout(layout, [&](const Writers& writers) {
      const test::Training training(writers.tp);
      for (const auto& state : training.optimizer->states()) {
        if (state.parameter->name() == "model.norm.weight") state.exp_avg.detach().add_(more);
      }
      RunFolder(folder / name, writers).save(training.checkpoint(1));
    });
    return (folder / name).string();
  };
  const std::string one = save("one", {1, 1}, 0), four = save("four", {4, 2}, 0);
  const DiffReport equal = diff(one, four);
  EXPECT_EQ(equal.num_tensors, 3 * 21);
  EXPECT_THAT(equal.differences, IsEmpty());

  const DiffReport moved = diff(one, save("moved", {2, 1}, 0.25));
  ASSERT_EQ(moved.differences.size(), 1u);
  EXPECT_EQ(moved.differences[0].name, "optimizer.exp_avg.model.norm.weight");
  EXPECT_EQ(moved.differences[0].num_different, 24u);
  EXPECT_EQ(moved.differences[0].max_absolute, 0.25);

  convert({.from = one, .to = folder / "nxd", .format = ModelFormat::kNxd, .tp = 3});
  const DiffReport weights = diff(folder / "nxd", four);
  EXPECT_EQ(weights.num_tensors, 21);
  EXPECT_THAT(weights.differences, IsEmpty());
  EXPECT_EQ(weights.num_only_in_b, 2 * 21);  // the optimizer's state
}

TEST(Diff, FileThatIsNotThere_IsAnIoError) {
  EXPECT_EQ(test::thrown_by([] { diff("/nowhere/a", "/nowhere/b"); }).code(), Code::kIo);
}

}  // namespace
}  // namespace cleave::diff_test
