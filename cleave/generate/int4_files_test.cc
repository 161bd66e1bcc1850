// Files with 4-bit weights: those of `cleave convert --dtype int4`, and GGUF.
#include <cstring>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <string>
#include <utility>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/checkpoint/adapter.h"
#include "cleave/checkpoint/convert.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/file/file.h"
#include "cleave/format/gguf_writer.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/generate/generate.h"
#include "cleave/generate/runnable.h"
#include "cleave/torch_internals/cpu_memory.h"
#include "tests/support/ranks.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::int4_files_test {
namespace {

namespace fs = std::filesystem;
using test::TempFolder;

// On 3 ranks, the MLP's inputs divide groups of 32.
constexpr std::string_view kLlama =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "vocab_size":50,"hidden_size":256,"intermediate_size":512,"num_hidden_layers":2,
  "num_attention_heads":8,"num_key_value_heads":2,"max_position_embeddings":64})";
// Weights are stored [in, out]; the width 80 is not a multiple of 32.
constexpr std::string_view kGpt2 =
    R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","vocab_size":50,"n_embd":64,
  "n_layer":2,"n_head":4,"n_inner":80,"n_positions":16})";

Tensor logits_of(const Runnable& runnable, const Axis& tp = {}) {
  const auto model = runnable.load(tp);
  const at::NoGradGuard no_grad;
  DTensor x(at::arange(8).view({1, 8}), tp, Replicate{});
  for (Layer* layer : model->sequence()) x = (*layer)(x, Context());
  return x.full_tensor();
}

Tensor logits_of(const std::string& path, const std::string& dtype, const Axis& tp = {}) {
  return logits_of(Runnable(path, dtype, "cpu"), tp);
}

/// A model with weights in closed form, so small that its attention changes smoothly.
std::string model_in(const TempFolder& root, std::string_view config) {
  const std::string folder = root / "model";
  test::write_model_folder(folder, config, test::tensors_of(config), 0.05);
  return folder;
}

std::string converted(const TempFolder& root, const std::string& from, const std::string& dtype) {
  const std::string to = root / dtype;
  convert({.from = from, .to = to, .dtype = dtype});
  return to;
}

/// A tensor of a folder in fp32, as every reader sees it.
Tensor tensor_of(const std::string& folder, const std::string& name) {
  const auto files = open_model_files(ModelFolder::open(folder));
  const TensorInfo& info = files->at(name);
  Tensor values = at::empty(info.shape, at::kFloat);
  files->read_block(name, {},
                    {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

// Oracle: the same weights, rounded when they are loaded. --dtype is that of the files.
TEST(Int4Files, ConvertedModel_GivesTheLogitsOfTheOneRoundedAtLoad) {
  for (const std::string_view config : {kLlama, kGpt2}) {
    const TempFolder root;
    const std::string from = model_in(root, config);
    for (const std::string dtype : {"int4", "int4_sym"}) {
      const std::string folder = converted(root, from, dtype);
      EXPECT_TRUE(at::equal(logits_of(folder, ""), logits_of(from, dtype))) << dtype;
      for (const int tp : {2, 3, 4}) {
        test::on_ranks(tp, [&](const Axis& axis) {
          EXPECT_TRUE(at::equal(logits_of(folder, "", axis), logits_of(from, dtype, axis)))
              << dtype << " tp=" << tp;
        });
      }
    }
  }
}

/// An adapter in PEFT's form that adds `change` to every eighth input of kLlama's down_proj.
std::string adapter_in(const TempFolder& root, double change) {
  std::map<std::string, Tensor> tensors;
  for (const int layer : {0, 1}) {
    const std::string stem = str("base_model.model.model.layers.", layer, ".mlp.down_proj.lora_");
    tensors[stem + "A.weight"] = (at::arange(512) % 8).eq(0).to(at::kFloat).view({1, 512});
    tensors[stem + "B.weight"] = at::full({256, 1}, change, at::kFloat);
  }
  std::vector<TensorInfo> infos;
  for (const auto& [name, values] : tensors) {
    infos.push_back({name, DType::kF32, values.sizes().vec()});
  }
  const std::string path = root / "adapter";
  FolderWriter folder(path);
  const SafetensorsPlan plan(infos, {.stem = std::string(kAdapterStem)});
  plan.create_files(folder);
  SafetensorsWriter writer(folder.path(), plan);
  for (const auto& [name, values] : tensors) {
    writer.write_block(name, {},
                       {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  writer.finish();
  folder.write_file("adapter_config.json", R"({"peft_type": "LORA", "r": 1, "lora_alpha": 1})");
  folder.commit();
  return path;
}

// The adapter changes weights by a third of the distance between two numbers of 4 bits. Oracle: the
// model that convert merges in fp32.
TEST(Int4Files, Adapter_IsNotRoundedAway) {
  const TempFolder root;
  const std::string folder = converted(root, model_in(root, kLlama), "int4");
  RunOptions options;
  options.model = folder;
  options.adapter = adapter_in(root, 0.004);
  options.device = "cpu";
  const std::string merged = root / "merged";
  convert({.from = folder, .to = merged, .adapter = options.adapter});
  EXPECT_TRUE(at::equal(logits_of(Runnable(options, {"lm"})), logits_of(merged, "int8")));

  const auto warning_of = [](const std::function<void()>& work) {
    testing::internal::CaptureStderr();
    work();
    return testing::internal::GetCapturedStderr();
  };
  const auto warns =
      testing::HasSubstr("4 bits, and --dtype int4 rounds their sums with the adapter");
  options.dtype = "int4";
  EXPECT_THAT(warning_of([&] { (void)Runnable(options, {"lm"}); }), warns);
  const std::string again = root / "again";
  EXPECT_THAT(warning_of([&] {
                convert({.from = folder, .to = again, .dtype = "int4", .adapter = options.adapter});
              }),
              warns);
  EXPECT_EQ(warning_of([&] { (void)Runnable(folder, "int4", "cpu"); }), "");
  // The reason: more of the change is lost than is kept.
  const std::string name = "model.layers.0.mlp.down_proj.weight";
  const Tensor want = tensor_of(merged, name);
  EXPECT_GT((tensor_of(again, name) - want).abs().mean().item<double>(),
            (tensor_of(folder, name) - want).abs().mean().item<double>() / 2);
}

// Rounding changes an element by half a scale at most, and the fp16 scale and minimum add 2^-11 of
// the group's span; without minimums the bound of smaller magnitude may lie beyond the largest
// number, by up to one scale.
TEST(Int4Files, Matrices_AreNearTheirOriginalsAndOthersEqual) {
  const TempFolder root;
  const std::string from = model_in(root, kGpt2);
  for (const std::string dtype : {"int4", "int4_sym"}) {
    const std::string folder = converted(root, from, dtype);
    const std::string name = "transformer.h.1.mlp.c_fc.weight";  // [64, 80]
    const Tensor want = tensor_of(from, name).t().reshape({80, 2, 32});
    const Tensor got = tensor_of(folder, name).t().reshape({80, 2, 32});
    const Tensor high = want.amax(2, true).clamp_min(0), low = want.amin(2, true).clamp_max(0);
    const Tensor bound = dtype == "int4" ? (high - low) * (0.5 / 15 + 0x1p-9)
                                         : at::maximum(high, -low) * (1.0 / 8 + 0x1p-9);
    EXPECT_TRUE((got - want).abs().le(bound).all().item<bool>()) << dtype;
    EXPECT_FALSE(at::equal(got, want));
    for (const std::string same : {"transformer.wte.weight", "transformer.h.0.ln_1.weight",
                                   "transformer.h.0.mlp.c_proj.weight"}) {  // 80 inputs
      EXPECT_TRUE(at::equal(tensor_of(folder, same), tensor_of(from, same))) << same;
    }
  }
}

// Parts of a matrix in 4 bits are those of the whole one, also across groups.
TEST(Int4Files, Slices_AreThoseOfTheWhole) {
  const TempFolder root;
  const std::string folder = converted(root, model_in(root, kGpt2), "int4");
  const std::string name = "transformer.h.1.mlp.c_fc.weight";  // [64, 80]
  const Tensor whole = tensor_of(folder, name);
  const auto files = open_model_files(ModelFolder::open(folder));
  Tensor part = at::empty({13, 7}, at::kFloat);
  const std::vector<Slice> slices = {{0, {{3, 5}, {30, 41}}}, {1, {{1, 4}, {76, 80}}}};
  files->read_block(name, slices,
                    {static_cast<std::byte*>(part.mutable_data_ptr()), part.nbytes()});
  const Tensor rows = at::cat({whole.narrow(0, 3, 2), whole.narrow(0, 30, 11)});
  EXPECT_TRUE(at::equal(part, at::cat({rows.narrow(1, 1, 3), rows.narrow(1, 76, 4)}, 1)));
}

TEST(Int4Files, WeightThatIsNoNumber_IsRefusedAndLeavesNothing) {
  const TempFolder root;
  const std::string from = model_in(root, kLlama);
  const std::string path = from + "/model.safetensors";
  std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
  uint64_t head = 0;
  file.read(reinterpret_cast<char*>(&head), sizeof head);
  const auto size = static_cast<int64_t>(fs::file_size(path)) - 8 - static_cast<int64_t>(head);
  const std::vector<float> bad(static_cast<size_t>(size / 4), NAN);
  file.seekp(static_cast<std::streamoff>(8 + head));
  file.write(reinterpret_cast<const char*>(bad.data()), size);
  file.close();
  const Error error = test::thrown_by([&] { converted(root, from, "int4"); });
  EXPECT_EQ(error.code(), Code::kNumerics);
  EXPECT_THAT(error.what(), testing::HasSubstr("has a NaN or infinity, which int4 cannot"));
  EXPECT_FALSE(fs::exists(root / "int4"));
  EXPECT_FALSE(fs::exists(root / "int4.partial"));
}

TEST(Int4Files, OtherFormats_AreRefused) {
  const TempFolder root;
  const std::string from = model_in(root, kLlama);
  const Error error = test::thrown_by([&] {
    convert({.from = from, .to = root / "bin", .format = ModelFormat::kBin, .dtype = "int4"});
  });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), testing::HasSubstr("dtype int4 is possible only in the format"));
}

/// Writes safetensors with one matrix whose parts have these shapes, all zeros.
void write_parts(const std::string& folder, const std::vector<TensorInfo>& tensors) {
  FolderWriter out(folder);
  const SafetensorsPlan plan(tensors);
  plan.create_files(out);
  SafetensorsWriter writer(out.path(), plan);
  for (const TensorInfo& info : tensors) {
    const std::vector<std::byte> zeros(block_bytes(info, {}));
    writer.write_block(info.name, {}, zeros);
  }
  writer.finish();
  out.write_file("config.json", kLlama);
  out.commit();
}

TEST(Int4Files, PartsThatDoNotFit_AreNamed) {
  const TempFolder root;
  const TensorInfo scales = {"w.int4_scales", DType::kF16, {4, 2}};
  const std::vector<std::pair<std::vector<TensorInfo>, std::string>> cases = {
      {{{"w.int4", DType::kU8, {4, 31}}, scales}, "'w.int4' is U8 of shape [4, 31]"},
      {{{"w.int4", DType::kI8, {4, 32}}, scales}, "'w.int4' is I8"},
      {{{"w.int4", DType::kU8, {4, 48}}, scales}, "expected F16 of shape [4, 3]"},
      {{{"v.int4", DType::kU8, {4, 32}}, {"w.int4", DType::kU8, {4, 32}}, scales},
       "there is no tensor 'v.int4_scales'"},
      {{{"w.int4", DType::kU8, {4, 32}}, scales, {"w.int4_mins", DType::kF16, {4, 1}}},
       "'w.int4_mins' is F16 of shape [4, 1]"},
      {{{"w.int4", DType::kU8, {4, 32}}, scales, {"w", DType::kF32, {4, 64}}},
       "is in the file twice"}};
  for (size_t i = 0; i < cases.size(); ++i) {
    const std::string folder = root / std::to_string(i);
    write_parts(folder, cases[i].first);
    const Error error = test::thrown_by([&] { open_model_files(ModelFolder::open(folder)); });
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_THAT(error.what(), testing::HasSubstr(cases[i].second));
  }
}

TEST(Int4Files, ModelWithoutAMatrixForFourBits_IsRefused) {
  constexpr std::string_view kNarrow =
      R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","vocab_size":50,"n_embd":24,
      "n_layer":1,"n_head":4,"n_inner":40,"n_positions":16})";
  const TempFolder root;
  const std::string from = model_in(root, kNarrow);
  const Error error = test::thrown_by([&] { converted(root, from, "int4"); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), testing::HasSubstr("has no matrix that int4 applies to"));
  EXPECT_FALSE(fs::exists(root / "int4"));
}

/// The elements of a matrix as blocks of Q4_0: an fp16 scale and 16 bytes for each 32.
Tensor q4_0_blocks(const Tensor& values) {
  const Tensor groups = values.reshape({-1, 32});
  const Tensor high = groups.amax(1, true), low = groups.amin(1, true);
  const Tensor scales = (at::where(high.ge(-low), high, low) / -8).to(at::kHalf);
  const Tensor codes = (groups / scales.to(at::kFloat)).round().add(8).clamp(0, 15).to(at::kByte);
  const Tensor pairs = codes.narrow(1, 0, 16) + codes.narrow(1, 16, 16) * 16;
  return at::cat({scales.contiguous().view(at::kByte), pairs}, 1).contiguous();
}

/// Writes a GGUF file again, with the matrices of its blocks in Q4_0.
void write_q4_0(const std::string& from, const std::string& to) {
  const Gguf source = Gguf::open(from);
  std::vector<GgufTensor> tensors = source.tensors();
  for (GgufTensor& tensor : tensors) {
    const bool is_matrix = tensor.shape.size() == 2 && tensor.name.starts_with("blk.");
    if (is_matrix) tensor.type = GgufType::kQ4_0;
  }
  const GgufPlan plan(source.metadata(), tensors);
  File file = File::create(to);
  file.allocate(plan.total_bytes());
  file.write_at(0, std::as_bytes(std::span(plan.head())));
  for (const GgufTensor& tensor : plan.tensors()) {
    Tensor values = at::empty(tensor.shape, at::kFloat);
    source.read_block(tensor.name, {},
                      {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
    const Tensor stored = tensor.type == GgufType::kQ4_0 ? q4_0_blocks(values) : values;
    file.write_at(tensor.begin,
                  {static_cast<const std::byte*>(stored.const_data_ptr()), stored.nbytes()});
  }
  file.close();
}

std::vector<Ids> ids_of(const std::string& path, const std::string& dtype) {
  const auto model = Runnable(path, dtype, "cpu").load({});
  std::vector<Ids> ids;
  for (const auto& sequences :
       generate(*model, {}, {{1, 2, 3}, {40, 7}}, {.max_new_tokens = 12}).prompts) {
    ids.push_back(sequences.front().ids);
  }
  return ids;
}

// Oracle: a folder with the decoded elements. Rounding those to 4 bits again gives the same numbers
// and scales: the largest magnitude of a group is 8 scales.
TEST(Int4Files, GgufOfQ4_0_GivesTheIdsAndLogitsOfItsDecodedWeights) {
  const TempFolder root;
  const std::string plain = root / "plain.gguf", file = root / "q4_0.gguf";
  convert({.from = model_in(root, kLlama), .to = plain, .format = ModelFormat::kGguf});
  write_q4_0(plain, file);
  const std::string decoded = converted(root, file, "fp32");
  EXPECT_EQ(ids_of(file, "int4_sym"), ids_of(decoded, "int4_sym"));
  EXPECT_EQ(ids_of(file, "fp32"), ids_of(decoded, "fp32"));
  const Tensor got = logits_of(file, "int4_sym"), want = logits_of(decoded, "fp32");
  EXPECT_TRUE(at::equal(got, logits_of(decoded, "int4_sym")));
  // Activations and the head are rounded to 8 bits, which costs some thousandths.
  EXPECT_LE((got - want).norm().item<double>(), 0.03 * want.norm().item<double>());
  for (const int tp : {2, 3}) {
    test::on_ranks(tp, [&](const Axis& axis) {
      EXPECT_TRUE(
          at::equal(logits_of(file, "int4_sym", axis), logits_of(decoded, "int4_sym", axis)))
          << "tp=" << tp;
    });
  }
}

// Q4_K's scales are rounded to fp16, and activations and the head to 8 bits, which cost some
// thousandths. Heads of q and k are stored with interleaved rows.
TEST(Int4Files, GgufOfQ4K_IsReadWithoutAnFp32Copy) {
  const TempFolder root;
  const std::string from = model_in(root, kLlama), file = root / "m.gguf";
  convert({.from = from, .to = file, .format = ModelFormat::kGguf, .dtype = "q4_k_m"});
  const Tensor want = logits_of(file, "fp32");
  const Tensor got = logits_of(file, "int4");
  EXPECT_LE((got - want).norm().item<double>(), 0.03 * want.norm().item<double>());
  const auto peak_of = [&](const std::string& dtype) {
    const Runnable runnable(file, dtype, "cpu");
    const CpuMemory memory;
    (void)runnable.load({});
    return memory.peak();
  };
  EXPECT_LT(2 * peak_of("int4"), peak_of("fp32"));
}

}  // namespace
}  // namespace cleave::int4_files_test
