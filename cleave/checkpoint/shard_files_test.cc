// Oracle: rank files made tensor by tensor from whole tensors in closed form.
#include "cleave/checkpoint/shard_files.h"

#include <filesystem>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/clock.h"
#include "cleave/file/atomic_write.h"
#include "cleave/format/torch_writer.h"
#include "cleave/mesh/scalar_type.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::shard_files_test {
namespace {

namespace fs = std::filesystem;
using test::closed_form;
using test::TempFolder;
using test::thrown_by;
using testing::ElementsAre;
using testing::HasSubstr;

using Tensors = std::vector<std::pair<std::string, Tensor>>;

/// The file of a rank in OSLO's form.
void write_rank(const fs::path& folder, int tp, const Tensors& tensors) {
  std::vector<TensorInfo> infos;
  for (const auto& [name, t] : tensors) {
    infos.push_back({name, dtype_of(t.scalar_type()), t.sizes().vec()});
  }
  const TorchPlan plan(state_dict_of(infos));
  TorchWriter writer(File::create(folder / oslo_file_name(tp, 0)), plan);
  for (size_t i = 0; i < tensors.size(); ++i) {
    const Tensor values = tensors[i].second.contiguous();
    writer.write(i, {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  writer.finish();
}

ShardedTensors opened(const fs::path& folder) {
  return {find_shard_files(folder).value(), Json::parse(test::kLlamaConfig, "config.json")};
}

/// The tensors of the files of two ranks.
ShardedTensors joined(const TempFolder& folder, const Tensors& first, const Tensors& second) {
  write_rank(folder.path(), 0, first);
  write_rank(folder.path(), 1, second);
  return opened(folder.path());
}

Tensor read(const TensorSource& files, const std::string& name, const std::vector<Slice>& slices,
            const std::vector<int64_t>& shape) {
  Tensor out = at::full(shape, -99, at::kFloat);
  files.read_block(name, slices, {static_cast<std::byte*>(out.mutable_data_ptr()), out.nbytes()});
  return out;
}

/// The error of two ranks' parts of one tensor.
Error join_error(const std::string& name, const Tensor& first, const Tensor& second) {
  const TempFolder folder;
  return thrown_by([&] { joined(folder, {{name, first}}, {{name, second}}); });
}

TEST(ShardedTensors, BlocksOverTheBorderOfTwoFiles_AreThoseOfTheWhole) {
  const std::string name = "model.layers.0.self_attn.o_proj.weight";
  const Tensor whole = closed_form(name, {24, 24});
  // Sharded as the model's own plan does, and unevenly: then in rank order.
  for (const int64_t border : {12, 7}) {
    const TempFolder folder;
    const ShardedTensors files = joined(folder, {{name, whole.narrow(1, 0, border)}},
                                        {{name, whole.narrow(1, border, 24 - border)}});
    EXPECT_TRUE(at::equal(read(files, name, {}, {24, 24}), whole));
    const std::vector<Slice> slices = {{0, {{1, 2}, {20, 24}}}, {1, {{0, 1}, {5, 15}, {23, 24}}}};
    const Tensor rows = at::cat({whole.narrow(0, 1, 1), whole.narrow(0, 20, 4)});
    const Tensor want =
        at::cat({rows.narrow(1, 0, 1), rows.narrow(1, 5, 10), rows.narrow(1, 23, 1)}, 1);
    EXPECT_TRUE(at::equal(read(files, name, slices, {5, 12}), want));
    const std::vector<Slice> columns = {{1, {{8, 9}}}};
    EXPECT_TRUE(at::equal(read(files, name, columns, {24, 1}), whole.narrow(1, 8, 1)));
    const std::vector<Slice> none = {{1, {{8, 8}}}};
    EXPECT_NO_THROW(files.read_block(name, none, {}));
    for (const size_t bytes : {size_t{8}, size_t{24} * 24 * 4 + 4}) {
      std::vector<std::byte> memory(bytes);
      const Error error = thrown_by([&] { files.read_block(name, {}, memory); });
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_STREQ(error.what(),
                   str(name, ": the block has 2304 bytes; the memory for it ", bytes).c_str());
    }
  }
  // Sharded along rows, which no plan does: slices of the other dim do not change.
  const TempFolder folder;
  const ShardedTensors files =
      joined(folder, {{name, whole.narrow(0, 0, 6)}}, {{name, whole.narrow(0, 6, 18)}});
  const std::vector<Slice> slices = {{0, {{3, 9}}}, {1, {{2, 4}, {9, 10}}}};
  const Tensor rows = whole.narrow(0, 3, 6);
  EXPECT_TRUE(at::equal(read(files, name, slices, {6, 3}),
                        at::cat({rows.narrow(1, 2, 2), rows.narrow(1, 9, 1)}, 1)));
}

TEST(ShardedTensors, TensorsThatTheModelDoesNotHave_AreJoinedWhereTheirSizesDiffer) {
  const TempFolder folder;
  const Tensor parts = closed_form("parts", {5, 3}), copy = closed_form("copy", {4, 3});
  const Tensor number = closed_form("number", {});
  const ShardedTensors files =
      joined(folder, {{"parts", parts.narrow(0, 0, 2)}, {"copy", copy}, {"number", number}},
             {{"parts", parts.narrow(0, 2, 3)}, {"copy", copy}, {"number", number}});
  std::vector<std::string> names;
  for (const TensorInfo& info : files.list()) names.push_back(info.name);
  EXPECT_THAT(names, ElementsAre("parts", "copy", "number"));
  EXPECT_THAT(files.at("parts").shape, ElementsAre(5, 3));
  EXPECT_TRUE(at::equal(read(files, "parts", {}, {5, 3}), parts));
  EXPECT_TRUE(at::equal(read(files, "copy", {}, {4, 3}), copy));
  EXPECT_TRUE(at::equal(read(files, "number", {}, {}), number));
  EXPECT_EQ(files.find("other"), nullptr);
  EXPECT_EQ(files.path(), folder.path().string());
  EXPECT_THAT(files.file_names(),
              ElementsAre("pytorch_model_tp_0_pp_0.bin", "pytorch_model_tp_1_pp_0.bin"));
}

TEST(ShardedTensors, PartsThatDoNotAddUpToTheWhole_AreNamed) {
  const std::string name = "model.norm.weight";  // [24]
  const Tensor half = at::zeros({12});
  EXPECT_THAT(
      join_error(name, half, at::zeros({12}, at::kBFloat16)).what(),
      HasSubstr("tensor 'model.norm.weight' is fp32 in pytorch_model_tp_0_pp_0.bin and bf16 "
                "in pytorch_model_tp_1_pp_0.bin"));
  const Error dims = join_error(name, half, at::zeros({12, 1}));
  EXPECT_EQ(dims.code(), Code::kFormat);
  EXPECT_THAT(dims.what(),
              HasSubstr("'model.norm.weight' has the shapes [12], [12, 1] in the files "
                        "of its ranks; they do not add up to [24], as config.json says"));
  EXPECT_THAT(join_error(name, half, at::zeros({11})).what(),
              HasSubstr("they do not add up to [24]"));
  // Sharded along both dims: the order of the parts is unknown.
  EXPECT_THAT(
      join_error("model.layers.0.self_attn.o_proj.weight", at::zeros({12, 12}), at::zeros({12, 12}))
          .what(),
      HasSubstr("they do not add up to [24, 24]"));
  EXPECT_THAT(join_error("other", at::zeros({2, 3}), at::zeros({3})).what(),
              HasSubstr("'other' has the shapes [2, 3], [3] in"));
}

TEST(FindShardFiles, OtherNames_AreIgnored) {
  const TempFolder folder;
  for (const char* name :
       {"pytorch_model.bin", "pytorch_model_tp_0.bin", "pytorch_model_tp_x_pp_0.bin",
        "pytorch_model_tp_-1_pp_0.bin", "pytorch_model_tp_0_pp_65536.bin",
        "pytorch_model_tp_0_pp_0.bin.part", "tp_rank_00", "tp_rank_00_pp_rank_",
        "tp_rank_00_pp_rank_00x", "tp_rank_00_pp_rank_00_dp_rank_01", "atp_rank_00_pp_rank_00"}) {
    write_atomic(folder / name, "");
  }
  EXPECT_FALSE(find_shard_files(folder.path()).has_value());
  fs::create_directory(folder / "tp_rank_00_pp_rank_00_dp_rank_00");
  fs::create_directory(folder / "tp_rank_01_pp_rank_00");
  const auto files = find_shard_files(folder.path());
  ASSERT_TRUE(files.has_value());
  EXPECT_EQ(files->tp, 2);
  EXPECT_EQ(files->pp, 1);
  EXPECT_TRUE(files->has_model_key);
  EXPECT_THAT(files->paths, ElementsAre("tp_rank_00_pp_rank_00_dp_rank_00/checkpoint.pt",
                                        "tp_rank_01_pp_rank_00/checkpoint.pt"));
}

TEST(FindShardFiles, ManyMissingFiles_GiveAShortMessage) {
  const TempFolder folder;
  write_atomic(folder / oslo_file_name(65535, 0), "");
  const Error error = thrown_by([&] { (void)find_shard_files(folder.path()); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(),
              HasSubstr(" has the files of 1 ranks of a job of tp=65536 x pp=1; missing "
                        "are those of (tp, pp) = (0, 0), (1, 0), "));
  EXPECT_LT(std::string_view(error.what()).size(), 500U);
  // Does not loop over 2^32 ranks.
  write_atomic(folder / oslo_file_name(65535, 65535), "");
  const double start = monotonic_s();
  EXPECT_EQ(thrown_by([&] { (void)find_shard_files(folder.path()); }).code(), Code::kIo);
  EXPECT_LT(monotonic_s() - start, 10);
}

TEST(ShardFileNames, OfAnyRank_AreThoseOfOsloAndNxd) {
  EXPECT_EQ(oslo_file_name(10, 2), "pytorch_model_tp_10_pp_2.bin");
  EXPECT_EQ(nxd_folder_name(9, 0), "tp_rank_09_pp_rank_00");
  EXPECT_EQ(nxd_folder_name(10, 123), "tp_rank_10_pp_rank_123");
}

}  // namespace
}  // namespace cleave::shard_files_test
