// Oracle: weights in closed form, so the contents of every file are known without a reader or
// writer.
#include "cleave/checkpoint/convert.h"

#include <algorithm>
#include <array>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iostream>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/stop.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/checkpoint/shard_files.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/fault_hook.h"
#include "cleave/format/manifest.h"
#include "cleave/mesh/scalar_type.h"
#include "tests/support/level.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::convert_test {
namespace {

namespace fs = std::filesystem;
using test::closed_form;
using test::kBertConfig;
using test::kGpt2Config;
using test::kLlamaConfig;
using test::names_below;
using test::TempFolder;
using test::tensors_of;
using test::thrown_by;
using testing::ElementsAre;
using testing::HasSubstr;
using testing::IsEmpty;

/// A format of a model folder, with the job's size.
struct Form {
  std::string name;
  ModelFormat format;
  int tp = 1, pp = 1;
};

// Uneven sizes: 6 heads over 4 ranks, 4 layers of the sequence over 3 stages.
const std::vector<Form> kForms = {{"safetensors", ModelFormat::kSafetensors},
                                  {"bin", ModelFormat::kBin},
                                  {"oslo", ModelFormat::kOslo, 3, 2},
                                  {"nxd", ModelFormat::kNxd, 4, 3}};

ConvertOptions options_of(const fs::path& from, const fs::path& to, const Form& form) {
  return {.from = from.string(),
          .to = to.string(),
          .format = form.format,
          .tp = form.tp,
          .pp = form.pp,
          .max_file_bytes = 5000};  // so that safetensors and bin have parts
}

Tensor read_whole(const TensorSource& files, const TensorInfo& info) {
  Tensor values = at::empty(info.shape, at::dtype(scalar_type(info.dtype)));
  files.read_block(info.name, {},
                   {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

/// The folder has these tensors in closed form, as `dtype`, and is intact.
void expect_model(const fs::path& path, const std::vector<TensorInfo>& tensors,
                  at::ScalarType dtype = at::kFloat) {
  SCOPED_TRACE(path.string());
  const auto files = open_whole_tensors(ModelFolder::open(path.string()));
  EXPECT_EQ(files->list().size(), tensors.size());
  for (const TensorInfo& want : tensors) {
    const TensorInfo* info = files->find(want.name);
    ASSERT_NE(info, nullptr) << want.name;
    const Tensor values = read_whole(*files, *info);
    EXPECT_EQ(values.scalar_type(), dtype) << want.name;
    EXPECT_TRUE(at::equal(values.to(at::kFloat), closed_form(want.name, want.shape))) << want.name;
  }
  EXPECT_THAT(find_damage(path), IsEmpty());
}

class ConvertFamily : public testing::TestWithParam<std::string_view> {};

TEST_P(ConvertFamily, EveryFormatToEveryFormat_IsBitEqual) {
  const TempFolder folder;
  const auto tensors = tensors_of(GetParam());
  test::write_model_folder(folder / "model", GetParam(), tensors);
  for (const Form& from : kForms) {
    convert(options_of(folder / "model", folder / from.name, from));
    expect_model(folder / from.name, tensors);
    for (const Form& to : kForms) {
      const fs::path target = folder / (from.name + "_to_" + to.name);
      const ConvertReport report = convert(options_of(folder / from.name, target, to));
      EXPECT_GT(report.num_files, 1);
      EXPECT_FALSE(report.left_state);
      expect_model(target, tensors);
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Families, ConvertFamily,
    testing::Values(kLlamaConfig, kGpt2Config, kBertConfig, test::kBertPreTrainingConfig),
    [](const auto& family) {
      return Json::parse(family.param, "config.json").at("architectures").at(0).as_string();
    });

TEST(Convert, OsloOfAnyTpAndPp_JoinsToTheSameBits) {
  const TempFolder folder;
  const auto tensors = tensors_of(kGpt2Config);
  test::write_model_folder(folder / "model", kGpt2Config, tensors);
  fs::path last = folder / "model";
  for (const int tp : {1, 2, 3, 4, 6}) {
    for (const int pp : {1, 2, 4}) {
      const fs::path next = folder / str("tp", tp, "_pp", pp);
      convert(options_of(last, next, {"oslo", ModelFormat::kOslo, tp, pp}));
      last = next;  // each is converted from the previous one
    }
  }
  convert(options_of(last, folder / "whole", kForms[0]));
  expect_model(folder / "whole", tensors);
}

/// The tensor of that name in a rank's file.
Tensor read_of_rank(const fs::path& path, const std::string& name) {
  const TorchFile file = TorchFile::open(path);
  const SavedValue* dict = file.value().find("model");
  for (const auto& [key, tensor] :
       state_dict_tensors(dict == nullptr ? file.value() : *dict, path.string())) {
    if (key != name) continue;
    Tensor values = at::empty(tensor.shape, at::dtype(scalar_type(tensor.dtype)));
    file.read_block(tensor, {},
                    {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
    return values;
  }
  return {};
}

// Oracle: slices by hand. 6 heads of 4 over two ranks; queries, keys and values are columns of one
// matrix.
TEST(Convert, FilesOfRanks_HoldTheirColumnsAndRows) {
  const TempFolder folder;
  test::write_model_folder(folder / "gpt2", kGpt2Config, tensors_of(kGpt2Config));
  convert(options_of(folder / "gpt2", folder / "oslo", {"oslo", ModelFormat::kOslo, 2, 2}));
  EXPECT_THAT(names_below(folder / "oslo"),
              ElementsAre("config.json", "manifest.json", "pytorch_model_tp_0_pp_0.bin",
                          "pytorch_model_tp_0_pp_1.bin", "pytorch_model_tp_1_pp_0.bin",
                          "pytorch_model_tp_1_pp_1.bin"));
  const std::string fused = "transformer.h.0.attn.c_attn.weight";
  const Tensor whole = closed_form(fused, {24, 72});
  const Tensor second =
      at::cat({whole.narrow(1, 12, 12), whole.narrow(1, 36, 12), whole.narrow(1, 60, 12)}, 1);
  EXPECT_TRUE(at::equal(read_of_rank(folder / "oslo/pytorch_model_tp_1_pp_0.bin", fused), second));
  EXPECT_FALSE(read_of_rank(folder / "oslo/pytorch_model_tp_1_pp_1.bin", fused).defined());

  test::write_model_folder(folder / "llama", kLlamaConfig, tensors_of(kLlamaConfig));
  convert(options_of(folder / "llama", folder / "nxd", {"nxd", ModelFormat::kNxd, 2, 1}));
  EXPECT_THAT(names_below(folder / "nxd"),
              ElementsAre("config.json", "manifest.json", "tp_rank_00_pp_rank_00",
                          "tp_rank_01_pp_rank_00"));
  const std::string row = "model.layers.1.self_attn.o_proj.weight";
  EXPECT_TRUE(at::equal(read_of_rank(folder / "nxd/tp_rank_01_pp_rank_00/checkpoint.pt", row),
                        closed_form(row, {24, 24}).narrow(1, 12, 12)));
}

TEST(Convert, OtherType_RoundsOnlyFloatsAndIsInTheConfig) {
  const TempFolder folder;
  const auto tensors = tensors_of(kLlamaConfig);
  test::write_model_folder(folder / "model", kLlamaConfig, tensors);
  for (const Form& form : kForms) {
    ConvertOptions options = options_of(folder / "model", folder / (form.name + "_bf16"), form);
    options.dtype = "bf16";
    convert(options);
    expect_model(options.to, tensors, at::kBFloat16);
    EXPECT_EQ(Json::parse_file(options.to + "/config.json").at("torch_dtype").as_string(),
              "bfloat16");
  }
  ConvertOptions back = options_of(folder / "oslo_bf16", folder / "fp64", kForms[0]);
  back.dtype = "fp64";
  convert(back);
  expect_model(back.to, tensors, at::kDouble);
}

// A family that Cleave does not know, a type that needs rounding, and a tensor of integers.
TEST(Convert, UnknownFamily_KeepsNamesAndIntegers) {
  const TempFolder folder;
  {
    FolderWriter model(folder / "model");
    const SafetensorsPlan plan({{"a.weight", DType::kF32, {3}}, {"a.ids", DType::kI64, {2}}});
    plan.create_files(model);
    SafetensorsWriter writer(model.path(), plan);
    const std::array<float, 3> floats = {1.0f / 3, -70000, 1e-30f};
    const std::array<int64_t, 2> ids = {7, int64_t{1} << 60};
    writer.write_block("a.weight", {}, std::as_bytes(std::span(floats)));
    writer.write_block("a.ids", {}, std::as_bytes(std::span(ids)));
    writer.finish();
    model.write_file("config.json", R"({"model_type":"another","dtype":"float32"})");
    model.write_file("tokenizer.json", "{}");
    model.write_file("generation_config.json", "{\"eos_token_id\":1}");
    model.commit();
  }
  ConvertOptions options = options_of(folder / "model", folder / "half", kForms[1]);
  options.dtype = "bf16";
  convert(options);
  const auto files = open_tensors(folder / "half");
  const Tensor want = at::tensor({1.0f / 3, -70000.0f, 1e-30f}).to(at::kBFloat16);
  EXPECT_TRUE(at::equal(read_whole(*files, files->at("a.weight")), want));
  EXPECT_TRUE(at::equal(read_whole(*files, files->at("a.ids")),
                        at::tensor({int64_t{7}, int64_t{1} << 60}, at::kLong)));
  EXPECT_EQ(Json::parse_file((folder / "half/config.json").string()).at("dtype").as_string(),
            "bfloat16");
  EXPECT_EQ(read_file(folder / "half/tokenizer.json"), "{}");
  EXPECT_EQ(read_file(folder / "half/generation_config.json"), "{\"eos_token_id\":1}");
  options = options_of(folder / "model", folder / "split", kForms[2]);
  EXPECT_THAT(thrown_by([&] { convert(options); }).what(), HasSubstr("another"));
}

TEST(Convert, TablesOfOlderPrograms_AreKeptByEveryFormat) {
  const TempFolder folder;
  auto tensors = tensors_of(kLlamaConfig);
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {2}});
  test::write_model_folder(folder / "model", kLlamaConfig, tensors);
  for (const Form& form : kForms) {
    convert(options_of(folder / "model", folder / form.name, form));
    expect_model(folder / form.name, tensors);
  }
}

TEST(Convert, RunFolder_GivesItsNewestCheckpointWithoutTheState) {
  const TempFolder folder;
  test::on_layout({2, 1}, [&](const Writers& writers) {
    RunFolder(folder / "run", writers).save(test::Training(writers.tp).checkpoint(3));
  });
  const auto report = convert(options_of(folder / "run", folder / "bin", kForms[1]));
  EXPECT_TRUE(report.left_state);
  expect_model(folder / "bin", tensors_of(kLlamaConfig));
  EXPECT_EQ(read_file(folder / "bin/tokenizer.json"), "{}");
}

TEST(Convert, IndexOfParts_HasTheirBytesAndEachTensorsFile) {
  const TempFolder folder;
  const auto tensors = tensors_of(kLlamaConfig);
  test::write_model_folder(folder / "model", kLlamaConfig, tensors);
  int64_t bytes = 0;
  for (const TensorInfo& tensor : tensors) bytes += 4 * c10::multiply_integers(tensor.shape);
  for (const auto& [form, name] : {std::pair(kForms[0], "model.safetensors.index.json"),
                                   {kForms[1], "pytorch_model.bin.index.json"}}) {
    const fs::path to = folder / form.name;
    convert(options_of(folder / "model", to, form));
    const Json index = Json::parse_file((to / name).string());
    EXPECT_EQ(index.at("metadata").at("total_size").as_int(), bytes);
    EXPECT_EQ(index.at("weight_map").size(), tensors.size());
    for (const TensorInfo& tensor : tensors) {
      const std::string file = index.at("weight_map").at(tensor.name).as_string();
      EXPECT_TRUE(fs::exists(to / file)) << file;
    }
  }
}

TEST(Convert, Config_HasTheTypeThatMostOfTheModelHas) {
  for (const auto& [most, name] :
       {std::pair(DType::kF32, "float32"), {DType::kBf16, "bfloat16"}, {DType::kF64, "float64"}}) {
    const TempFolder folder;
    FolderWriter model(folder / "model");
    std::vector<TensorInfo> infos = {{"ids", DType::kI64, {100}}};
    for (const DType dtype : {DType::kF32, DType::kBf16, DType::kF64}) {
      infos.push_back({std::string(file_name(dtype)), dtype, {dtype == most ? 40 : 3}});
    }
    SafetensorsPlan(infos).create_files(model);
    model.write_file("config.json", R"({"model_type":"another"})");
    model.commit();
    convert(options_of(folder / "model", folder / "out", kForms[1]));
    const Json config = Json::parse_file((folder / "out/config.json").string());
    EXPECT_EQ(config.at("torch_dtype").as_string(), name);
  }
}

/// The number of tensors in all files of a folder, and the bytes of its weights.
std::pair<int64_t, uint64_t> counted(const fs::path& path, const Form& form) {
  int64_t num_tensors = 0;
  uint64_t bytes = 0;
  for (const auto& entry : fs::recursive_directory_iterator(path)) {
    const std::string name = entry.path().filename().string();
    if (name.find(".json") != std::string::npos || entry.is_directory()) continue;
    bytes += entry.file_size();
    if (form.format == ModelFormat::kSafetensors) {
      num_tensors += static_cast<int64_t>(open_tensors(entry.path())->list().size());
      continue;
    }
    const TorchFile file = TorchFile::open(entry.path());
    const SavedValue* inner = file.value().find("model");
    const SavedValue& dict = inner == nullptr ? file.value() : *inner;
    num_tensors += static_cast<int64_t>(state_dict_tensors(dict, name).size());
  }
  return {num_tensors, bytes};
}

TEST(Convert, Report_CountsWhatWasWritten) {
  const TempFolder folder;
  test::write_model_folder(folder / "model", kGpt2Config, tensors_of(kGpt2Config));
  for (const Form& form : kForms) {
    SCOPED_TRACE(form.name);
    const ConvertReport report = convert(options_of(folder / "model", folder / form.name, form));
    const auto [num_tensors, bytes] = counted(folder / form.name, form);
    EXPECT_EQ(report.num_tensors, num_tensors);
    EXPECT_EQ(report.bytes, bytes);
  }
}

TEST(Convert, UnnormalizedTarget_IsNormalized) {
  const TempFolder folder;
  const auto tensors = tensors_of(kLlamaConfig);
  test::write_model_folder(folder / "model", kLlamaConfig, tensors);
  for (const char* target :
       {"out", "out/", "out//", "out/.", "./out", "nowhere/../out", "model/../out/"}) {
    SCOPED_TRACE(target);
    convert(options_of(folder / "model", folder / target, kForms[0]));
    EXPECT_THAT(names_below(folder.path()), ElementsAre("model", "out"));
    expect_model(folder / "out", tensors);
    fs::remove_all(folder / "out");
  }
}

// -- refused --------------------------------------------------------------------------------------

struct Refused {
  std::string why;
  Code code;
  std::string text;
  std::function<void(ConvertOptions&)> change;
};

TEST(Convert, InvalidOptions_AreRefusedAndNothingIsLeft) {
  const TempFolder folder;
  test::write_model_folder(folder / "model", kLlamaConfig, tensors_of(kLlamaConfig));
  const std::vector<Refused> cases = {
      {"tp of whole files", Code::kUsage, "formats oslo and nxd",
       [](auto& o) { o.format = ModelFormat::kBin; }},
      {"no rank", Code::kUsage, "tp=0", [](auto& o) { o.tp = 0; }},
      {"more ranks than heads", Code::kShape, "tp", [](auto& o) { o.tp = 7; }},
      {"more stages than layers", Code::kShape, "pp=9 is more than the ",
       [](auto& o) { o.pp = 9; }},
      {"unknown type", Code::kUsage, "dtype 'int8'", [](auto& o) { o.dtype = "int8"; }},
      {"no parent", Code::kIo, "make it first", [&](auto& o) { o.to = folder / "none/out"; }},
      {"exists", Code::kIo, "already exists", [&](auto& o) { o.to = folder / "model"; }},
      {"no source", Code::kIo, "nowhere", [&](auto& o) { o.from = folder / "nowhere"; }},
  };
  for (const Refused& c : cases) {
    ConvertOptions options =
        options_of(folder / "model", folder / "out", {"oslo", ModelFormat::kOslo, 2, 1});
    c.change(options);
    const Error error = thrown_by([&] { convert(options); });
    EXPECT_EQ(error.code(), c.code) << c.why << ": " << error.what();
    EXPECT_THAT(error.what(), HasSubstr(c.text)) << c.why;
    EXPECT_THAT(names_below(folder.path()), ElementsAre("model")) << c.why;
  }
}

void flip(const fs::path& path, int64_t from_end) {
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  file.seekg(-from_end, std::ios::end);
  const int byte = file.get() ^ 1;
  file.seekp(-from_end, std::ios::end);
  file.put(static_cast<char>(byte));
}

TEST(Convert, DamagedSource_IsNamedAndGetsNoNewManifest) {
  const TempFolder folder;
  test::write_model_folder(folder / "model", kLlamaConfig, tensors_of(kLlamaConfig));
  for (const Form& form : kForms) {
    const fs::path from = folder / form.name;
    convert(options_of(folder / "model", from, form));
    fs::path damaged;
    for (const auto& entry : fs::recursive_directory_iterator(from)) {
      const auto extension = entry.path().extension();
      const bool is_weights =
          extension == ".safetensors" || extension == ".bin" || extension == ".pt";
      if (is_weights) damaged = entry.path();
    }
    flip(damaged, static_cast<int64_t>(fs::file_size(damaged) / 2));
    const Error error = thrown_by([&] { convert(options_of(from, folder / "out", kForms[0])); });
    EXPECT_EQ(error.code(), Code::kFormat) << form.name;
    EXPECT_THAT(error.what(), HasSubstr(damaged.filename().string()));
    EXPECT_FALSE(fs::exists(folder / "out"));
  }
}

/// A fault in the files of a job of tp=2 x pp=2, and a part of its message.
struct FileFault {
  std::string text;
  bool has_manifest;  ///< false: the files alone must show it
  std::function<void(const fs::path&)> change;
};

void swap_files(const fs::path& a, const fs::path& b) {
  fs::rename(a, a.string() + "x");
  fs::rename(b, a);
  fs::rename(a.string() + "x", b);
}

/// `wider` has the files of the same model on tp=4 x pp=2.
std::vector<FileFault> file_faults(const fs::path& wider) {
  const auto name = [](int tp, int pp) { return oslo_file_name(tp, pp); };
  const auto take = [wider](const fs::path& at, const std::string& from, const std::string& to) {
    fs::copy_file(wider / from, at / to, fs::copy_options::overwrite_existing);
  };
  return {
      {"missing are those of (tp, pp) = (1, 0)", false,
       [=](auto& at) { fs::remove(at / name(1, 0)); }},
      {"missing are those of (tp, pp) = (1, 1)", true,
       [=](auto& at) { fs::remove(at / name(1, 1)); }},
      {"missing are those of (tp, pp) = (2, 0)", false,
       [=](auto& at) { take(at, name(2, 1), name(2, 1)); }},
      {"they do not add up to", false,
       [=](auto& at) {
         for (int pp : {0, 1}) take(at, name(2, pp), name(2, pp));
       }},
      {"they do not add up to", false, [=](auto& at) { take(at, name(1, 0), name(1, 0)); }},
      {"is in 1 of the 2 files of stage 0", false,
       [=](auto& at) { swap_files(at / name(1, 0), at / name(1, 1)); }},
      {name(0, 0) + " has changed", true,
       [=](auto& at) { swap_files(at / name(0, 0), at / name(1, 0)); }},
      {name(1, 0), false, [=](auto& at) { fs::resize_file(at / name(1, 0), 1000); }},
      {name(1, 0), false, [=](auto& at) { fs::resize_file(at / name(1, 0), 0); }},
      {"of the same rank", false,
       [=](auto& at) { take(at, name(1, 0), "pytorch_model_tp_1_pp_0_ep_0.bin"); }},
      {"expected the files of one job", false,
       [](auto& at) { fs::create_directory(at / nxd_folder_name(0, 0)); }},
  };
}

TEST(Convert, MissingExtraSwappedAndMixedRankFiles_AreNamed) {
  const TempFolder folder;
  test::write_model_folder(folder / "model", kLlamaConfig, tensors_of(kLlamaConfig));
  convert(options_of(folder / "model", folder / "good", {"oslo", ModelFormat::kOslo, 2, 2}));
  convert(options_of(folder / "model", folder / "wider", {"oslo", ModelFormat::kOslo, 4, 2}));
  for (const FileFault& fault : file_faults(folder / "wider")) {
    SCOPED_TRACE(fault.text);
    const fs::path copy = folder / "copy";
    fs::copy(folder / "good", copy);
    if (!fault.has_manifest) fs::remove(copy / kManifestName);
    fault.change(copy);
    const Error error = thrown_by([&] { convert(options_of(copy, folder / "out", kForms[0])); });
    EXPECT_THAT(error.what(), HasSubstr(fault.text));
    EXPECT_FALSE(fs::exists(folder / "out"));
    fs::remove_all(copy);
  }
}

// -- interrupted ----------------------------------------------------------------------------------

/// Fails the first ten file calls and then every `every`-th one, one in each conversion.
void expect_failures_leave_nothing(int every) {
  const TempFolder folder;
  test::write_model_folder(folder / "model", kGpt2Config, tensors_of(kGpt2Config));
  for (const Form& form : {kForms[0], kForms[1], Form{"nxd", ModelFormat::kNxd, 2, 2}}) {
    int num_calls = 0;
    for (int failing = 0; failing == 0 || failing <= num_calls;
         failing += failing < 10 ? 1 : every) {
      int calls = 0;
      std::string message;
      {
        const ScopedFileHook hook(
            [&](FileCall, const std::string&) { return ++calls == failing ? ENOSPC : 0; });
        try {
          convert(options_of(folder / "model", folder / "out", form));
        } catch (const Error& error) {
          EXPECT_EQ(error.code(), Code::kIo);
          message = error.what();
        }
      }
      if (failing == 0) num_calls = calls;
      SCOPED_TRACE(str(form.name, ", call ", failing));
      EXPECT_THAT(message, HasSubstr(failing == 0 ? "" : "No space left on device"));
      EXPECT_EQ(message.empty(), failing == 0);
      if (fs::exists(folder / "out")) {  // the last call syncs the renamed folder
        EXPECT_TRUE(failing == 0 || failing == num_calls);
        expect_model(folder / "out", tensors_of(kGpt2Config));
        fs::remove_all(folder / "out");
      }
      EXPECT_THAT(names_below(folder.path()), ElementsAre("model"));
    }
    EXPECT_GT(num_calls, 30);
  }
}

TEST(Convert, FailureAtManyFileCalls_LeavesNothing) {
  expect_failures_leave_nothing(9);
}

TEST(ConvertFull, FailureAtEveryFileCall_LeavesNothing) {
  expect_failures_leave_nothing(1);
}

TEST(Convert, SignalWhileItWrites_LeavesNothing) {
  const TempFolder folder;
  test::write_model_folder(folder / "model", kLlamaConfig, tensors_of(kLlamaConfig));
  for (const int signal : {SIGINT, SIGTERM}) {
    int calls = 0;
    const ScopedFileHook hook(
        [&](FileCall, const std::string&) { return ++calls == 20 ? ::raise(signal) : 0; });
    ConvertReport report;
    int got = 0;
    try {
      cleave_convert(options_of(folder / "model", folder / "out", kForms[0]), report);
    } catch (const Stopped& stopped) {
      got = stopped.signal;
    }
    EXPECT_EQ(got, signal);
    EXPECT_THAT(names_below(folder.path()), ElementsAre("model"));
  }
}

// -- memory ---------------------------------------------------------------------------------------

/// Anonymous memory of this process, in bytes.
int64_t anonymous_bytes() {
  std::ifstream status("/proc/self/status");
  for (std::string word; status >> word;) {
    if (word != "RssAnon:") continue;
    int64_t kib = 0;
    status >> kib;
    return kib * 1024;
  }
  return -1;
}

/// A Llama of zeros, in sparse files.
void write_wide_llama(const fs::path& path, int64_t hidden, int64_t layers) {
  const std::string config =
      str(R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":)", 2 * hidden,
          R"(,"hidden_size":)", hidden, R"(,"intermediate_size":)", 4 * hidden,
          R"(,"num_hidden_layers":)", layers,
          R"(,"num_attention_heads":16,"max_position_embeddings":64,"torch_dtype":"float32"})");
  FolderWriter folder(path);
  SafetensorsPlan(tensors_of(config)).create_files(folder);
  folder.write_file("config.json", config);
  folder.commit();
}

/// The most anonymous memory above the start, read before every write (of 64 KiB).
int64_t most_anonymous_bytes(const ConvertOptions& options) {
  const int64_t before = anonymous_bytes();
  int64_t most = before;
  const ScopedFileHook hook([&](FileCall, const std::string&) {
    most = std::max(most, anonymous_bytes());
    return 0;
  });
  convert(options);
  return most - before;
}

/// Converts a Llama through all formats and to another type, in bounded memory.
void expect_little_memory(int64_t hidden, int64_t layers) {
  const TempFolder folder;
  fs::path last = folder / "model";
  write_wide_llama(last, hidden, layers);
  const int64_t largest = 4 * hidden * hidden * 4;
  for (Form form : {kForms[2], kForms[3], kForms[1], kForms[0]}) {
    ConvertOptions options = options_of(last, folder / form.name, form);
    options.max_file_bytes = 5'000'000'000;
    if (form.format == ModelFormat::kSafetensors) options.dtype = "bf16";
    const int64_t most = most_anonymous_bytes(options);
    std::cout << "to " << form.name << ": largest tensor " << (largest >> 20)
              << " MiB, anonymous memory at most " << (most >> 20) << " MiB above the start\n";
    EXPECT_LE(most, largest + (int64_t{64} << 20));
    fs::remove_all(last);
    last = options.to;
  }
}

TEST(Convert, Memory_IsAtMostTheLargestTensorAnd64MiB) {
  if (test::kIsInstrumented) GTEST_SKIP() << "sanitizers keep freed memory";
  expect_little_memory(1024, 2);  // 150 MB in fp32, the largest tensor 16 MiB
}

TEST(ConvertFull, MemoryOf2GiB_IsAtMostTheLargestTensorAnd64MiB) {
  expect_little_memory(2048, 8);  // 2.2 GB in fp32, the largest tensor 64 MiB
}

}  // namespace
}  // namespace cleave::convert_test
