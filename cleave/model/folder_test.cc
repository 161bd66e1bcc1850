#include <cstdlib>
#include <filesystem>
#include <string_view>
#include <sys/stat.h>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/load.h"
#include "cleave/comm/api/world.h"
#include "cleave/file/atomic_write.h"
#include "cleave/mesh/mesh.h"
#include "cleave/model/model.h"
#include "tests/support/golden.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::folder_test {
namespace {

using testing::EndsWith;
using testing::HasSubstr;

Tensor logits_of(const std::string& folder, const Axis& tp, const Tensor& ids) {
  const ModelFolder opened = ModelFolder::open(folder);
  auto model = make_model(opened.config);
  parallelize_module(*model, tp, model->plan());
  load_model(*model, opened, at::kFloat);
  const at::NoGradGuard no_grad;
  return (*model)(DTensor(ids, tp, Replicate{}), Context()).full_tensor();
}

// Oracle: recorded logits of transformers for the same trained model. Meta's files have other names
// and another order of rotary rows.
TEST(RealModelFolder, MetasNamesAndRowOrder_GiveTheRecordedLogits) {
  CLEAVE_NEEDS_DATA();
  const std::string data = test::data_folder();
  const auto golden = test::read_tensors(data + "/goldens/real-stories260K/logits.safetensors");
  const Tensor ids = golden.at("prompt0.ids").view({1, -1});
  for (const int tp : {1, 2, 4}) {
    run_ranks(tp, [&](World& world) {
      const Mesh mesh = Mesh::build(world, {{"tp", tp}});
      for (const char* folder : {"/models/stories260K-meta", "/models/stories260K"}) {
        const Tensor logits = logits_of(data + folder, mesh["tp"], ids);
        EXPECT_LE(test::largest_difference(logits.view({ids.size(1), -1}),
                                           golden.at("prompt0.logits").view({ids.size(1), -1})),
                  5e-5)
            << folder << " tp " << tp;
      }
    });
  }
}

TEST(ModelFolder, UnknownFamily_IsRefusedWithByteAndTheFamilies) {
  const test::TempFolder folder;
  write_atomic(folder / "config.json", R"({"model_type": "lama"})");
  const Error error =
      test::thrown_by([&] { (void)make_model(ModelFolder::open(folder.path().string()).config); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("config.json: \"model_type\" is \"lama\""));
  EXPECT_THAT(error.what(), HasSubstr("; expected one of "));
  for (const char* family : {"bert", "gpt2", "llama"}) {
    EXPECT_THAT(error.what(), HasSubstr(family));
  }
  EXPECT_THAT(error.what(), HasSubstr("(byte 15)"));
}

TEST(ModelFolder, LatestThatIsNotACheckpointName_IsRefusedWithoutWaiting) {
  const test::TempFolder folder;
  for (const std::string_view name : {"../other", "/etc", "", ".hidden", "a/b", "a\nb", "a\rb"}) {
    write_atomic(folder / "latest", name);
    EXPECT_EQ(test::thrown_by([&] { ModelFolder::open(folder.path().string()); }).code(),
              Code::kFormat)
        << name;
  }
  write_atomic(folder / "latest", "step_00000009\n");
  const Error missing = test::thrown_by([&] { ModelFolder::open(folder.path().string()); });
  EXPECT_EQ(missing.code(), Code::kIo);
  EXPECT_THAT(missing.what(), HasSubstr("latest names step_00000009, which is not there"));
  std::filesystem::remove(folder / "latest");
  ASSERT_EQ(::mkfifo((folder / "latest").c_str(), 0600), 0);
  EXPECT_THROW(ModelFolder::open(folder.path().string()), Error);
}

TEST(ModelFolder, FileOfAnotherKind_IsRefusedAsAFile) {
  const test::TempFolder folder;
  write_atomic(folder / "a.txt", "a");
  EXPECT_THAT(test::thrown_by([&] { ModelFolder::open(folder / "a.txt"); }).what(),
              HasSubstr("a.txt is a file; give a folder with config.json"));
}

// As after `hf download` that was interrupted, or of a repository of llama.cpp.
TEST(ModelFolder, CachedModelWithoutAConfig_NamesTheCommandOrItsGgufFile) {
  const test::TempFolder folder;
  const std::filesystem::path snapshot = folder / "models--org--name/snapshots/abc";
  std::filesystem::create_directories(snapshot);
  const auto message = [&] {
    const Error error = test::thrown_by([&] { ModelFolder::open(snapshot); });
    EXPECT_EQ(error.code(), Code::kIo);
    return std::string(error.what());
  };
  EXPECT_THAT(message(), EndsWith(" is there; download it with: hf download org/name"));
  write_atomic(snapshot / "name.Q8_0.gguf", "");
  write_atomic(snapshot / "name.Q4_0.gguf", "");
  EXPECT_THAT(message(), EndsWith("; give the path of a GGUF file in it: " +
                                  (snapshot / "name.Q4_0.gguf").string()));
}

TEST(ModelFolder, AdapterWhoseBaseIsNoName_IsRefused) {
  const test::TempFolder folder;
  for (const std::string& name :
       {std::string(5000, 'a'), std::string("a\\u001b[2J"), std::string("a\\n"),
        std::string("org/") + std::string(255, 'b')}) {
    write_atomic(folder / "adapter_config.json", R"({"base_model_name_or_path": ")" + name + "\"}");
    const Error error = test::thrown_by([&] { ModelFolder::open(folder.path().string()); });
    EXPECT_TRUE(error.code() == Code::kFormat || error.code() == Code::kIo) << error.what();
    EXPECT_EQ(std::string(error.what()).find_first_of("\n\x1b"), std::string::npos);
  }
}

TEST(ModelFolder, AdapterOfACachedModelThatIsARunOfAdapters_IsRefused) {
  const test::TempFolder folder;
  const std::filesystem::path model = folder / "models--org--loop";
  std::filesystem::create_directories(model / "refs");
  std::filesystem::create_directories(model / "snapshots/abc/step_00000001");
  write_atomic(model / "refs/main", "abc");
  write_atomic(model / "snapshots/abc/latest", "step_00000001\n");
  write_atomic(model / "snapshots/abc/step_00000001/adapter_config.json",
               R"({"base_model_name_or_path": "org/loop"})");
  const char* value = std::getenv("HF_HUB_CACHE");           // NOLINT(concurrency-mt-unsafe)
  const std::string before = value == nullptr ? "" : value;  // empty is not set
  ::setenv("HF_HUB_CACHE", folder.path().c_str(), 1);        // NOLINT(concurrency-mt-unsafe)
  const Error error = test::thrown_by([] { ModelFolder::open("org/loop"); });
  ::setenv("HF_HUB_CACHE", before.c_str(), 1);  // NOLINT(concurrency-mt-unsafe)
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("is an adapter itself"));
}

TEST(ModelFolder, AdapterFolderWithoutOne_IsRefusedWithWhatToGive) {
  const test::TempFolder folder;
  const Error error = test::thrown_by([&] { ModelFolder::open("any", folder.path().string()); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_EQ(error.what(), folder.path().string() +
                              " holds no adapter: adapter_config.json is not there; give a PEFT "
                              "folder, or the --out folder of a run with --lora");
}

// Their matrices can have the same names and shapes.
TEST(ModelFolder, AdapterOfAModelOfAnotherFamily_IsRefused) {
  const test::TempFolder folder;
  for (const std::string model : {"llama", "other", "mistral"}) {
    std::filesystem::create_directories(folder / model);
    const std::string family = model == "mistral" ? model : "llama";
    write_atomic(folder / model / "config.json", R"({"model_type": ")" + family + "\"}");
  }
  std::filesystem::create_directories(folder / "adapter");
  const auto adapter_of = [&](const std::string& base) {
    write_atomic(folder / "adapter" / "adapter_config.json",
                 R"({"base_model_name_or_path": ")" + base + "\"}");
  };
  const auto open = [&](const char* model) {
    return ModelFolder::open(folder / model, folder / "adapter").adapter;
  };
  adapter_of(folder / "llama");
  EXPECT_EQ(open("other"), (folder / "adapter").string());
  const Error error = test::thrown_by([&] { open("mistral"); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("a model of the family llama; "));
  EXPECT_THAT(error.what(), EndsWith("mistral is of the family mistral"));
  adapter_of(folder / "moved");  // nothing is known of a base model that is not there
  EXPECT_EQ(open("mistral"), (folder / "adapter").string());
}

TEST(ModelFolder, MetasEmbeddingThatIsNotAMatrix_IsRefused) {
  const test::TempFolder folder;
  write_atomic(folder / "params.json", R"({"dim": 64, "n_layers": 1, "n_heads": 4})");
  const std::string header =
      R"({"tok_embeddings.weight":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})";
  std::string file(8, '\0');
  file[0] = static_cast<char>(header.size());
  write_atomic(folder / "consolidated.safetensors", file + header + "x");
  EXPECT_THAT(test::thrown_by([&] { ModelFolder::open(folder.path().string()); }).what(),
              HasSubstr("tok_embeddings.weight has 0 dims; expected [vocab, dim]"));
}

}  // namespace
}  // namespace cleave::folder_test
