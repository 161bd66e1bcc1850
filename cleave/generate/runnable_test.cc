#include "cleave/generate/runnable.h"

#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/base/str.h"
#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/save.h"
#include "cleave/torch_internals/cpu_memory.h"
#include "tests/support/golden.h"
#include "tests/support/ranks.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::runnable_test {
namespace {

// Wide enough that matrices are larger than the embedding and the padding of 8-bit rows.
constexpr std::string_view kConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "vocab_size":50,"hidden_size":192,"intermediate_size":256,"num_hidden_layers":4,
  "num_attention_heads":6,"num_key_value_heads":2,"max_position_embeddings":64})";

/// Logits of a folder's model, and the peak bytes of loading.
std::pair<Tensor, int64_t> run_model(const std::string& folder, const std::string& dtype,
                                     const Axis& tp = {}) {
  const Runnable runnable(folder, dtype, "cpu");
  const CpuMemory memory;
  const auto model = runnable.load(tp);
  const int64_t peak = memory.peak();
  const at::NoGradGuard no_grad;
  DTensor x(at::arange(8).view({1, 8}), tp, Replicate{});
  for (Layer* layer : model->sequence()) x = (*layer)(x, Context());
  return {x.full_tensor(), peak};
}

// Experts of other ranks have no memory, also in the forms that inference makes of weights.
TEST(Runnable, SharedOutExperts_GiveTheLogitsOfOneRank) {
  const std::string folder = test::golden_folder("mixtral");
  for (const char* dtype : {"fp32", "int8", "int4"}) {
    const Tensor want = run_model(folder, dtype).first;
    const double size = want.abs().max().item<double>();
    for (const int num_ranks : {2, 3}) {
      test::on_ranks(num_ranks, [&](const Axis& ep) {
        const auto model = Runnable(folder, dtype, "cpu").load(Axis(), ep);
        const at::NoGradGuard no_grad;
        const DTensor x(at::arange(8).view({1, 8}), Axis(), Replicate{});
        const Tensor got = (*model)(x, Context()).local();
        EXPECT_LE((got - want).abs().max().item<double>(), 1e-5 * size) << dtype << num_ranks;
      });
    }
  }
}

TEST(Runnable, SharedOutExpertsThatAModelLacks_AreRefused) {
  const std::string folder = test::golden_folder("llama-mha");
  test::on_ranks(2, [&](const Axis& ep) {
    const Error error =
        test::thrown_by([&] { (void)Runnable(folder, "", "cpu").load(Axis(), ep); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_STREQ(error.what(), "ep=2 shares out experts, and the model has none; leave it out");
  });
}

/// Writes the model into the folder `path`, in numbers of `type`.
void save(const test::Training& training, const std::string& path,
          at::ScalarType type = at::kFloat) {
  const Axis one;
  Checkpoint checkpoint = training.checkpoint(1);
  checkpoint.optimizer = nullptr;
  checkpoint.dtype = type;
  save_checkpoint(path, checkpoint, {one, one, one});
}

// As a run with --keep-last does while another command begins to read its checkpoint.
TEST(Runnable, FolderThatIsRemovedBeforeItsWeightsAreRead_IsNamedInTheError) {
  const test::TempFolder folder;
  const std::string model = folder / "step_00000002";
  save(test::Training(Axis()), model);
  const Runnable runnable(model, "", "cpu");
  std::filesystem::remove_all(model);
  const Error error = test::thrown_by([&] { (void)runnable.load(Axis()); });
  EXPECT_EQ(error.code(), Code::kIo);
  EXPECT_THAT(error.what(),
              testing::StartsWith(model + " was removed while it was read, as a run"));
}

/// A folder below `root` with a new model of this config.
std::string saved_model(const test::TempFolder& root, const std::string& name) {
  const Axis one;
  const test::Training training(one, at::kFloat, kConfig);
  save(training, root / name);
  return root / name;
}

/// A folder with a model whose weights are so small that its attention changes smoothly.
std::string small_model(const test::TempFolder& root, std::string_view config) {
  std::string folder = root / str("small-", config.size());
  test::write_model_folder(folder, config, test::tensors_of(config), 0.05);
  return folder;
}

TEST(Runnable, Attention_IsNotCuDnns) {
  const test::TempFolder root;
  at::globalContext().setSDPUseCuDNN(true);
  const Runnable runnable(saved_model(root, "model"), "", "cpu");
  EXPECT_FALSE(at::globalContext().userEnabledCuDNNSDP());
}

// The scale of a row is computed over all ranks, so the 8-bit weights are those of one rank. Sums
// over ranks round differently, which may change a quantized activation by one.
TEST(Runnable, Int8OnAnyRanks_GivesTheLogitsOfOne) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  const Tensor want = run_model(folder, "int8").first;
  const double size = want.abs().max().item<double>();
  for (const int tp : {2, 3}) {
    test::on_ranks(tp, [&](const Axis& axis) {
      const Tensor got = run_model(folder, "int8", axis).first;
      EXPECT_LE((got - want).abs().max().item<double>(), 1e-5 * size) << "tp=" << tp;
    });
  }
}

// On 3 ranks the MLP's inputs, and on 4 the heads, divide groups of 32. GPT-2's weights are stored
// [in, out]. A group has the same scale on any layout, so only activations near the middle of two
// steps are rounded differently, by a 127th.
TEST(Runnable, Int4OnAnyRanks_GivesTheLogitsAndIdsOfOne) {
  constexpr std::string_view kGpt2 =
      R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","vocab_size":50,"n_embd":72,
      "n_layer":2,"n_head":6,"n_inner":150,"n_positions":16})";
  const test::TempFolder root;
  for (const std::string_view config : {kConfig, kGpt2}) {
    const std::string folder = small_model(root, config);
    for (const std::string dtype : {"int4", "int4_sym"}) {
      const Tensor want = run_model(folder, dtype).first;
      const double size = want.abs().max().item<double>();
      for (const int tp : {2, 3, 4}) {
        test::on_ranks(tp, [&](const Axis& axis) {
          const Tensor got = run_model(folder, dtype, axis).first;
          EXPECT_LE((got - want).abs().max().item<double>(), 2e-3 * size) << dtype << " tp=" << tp;
          EXPECT_TRUE(at::equal(got.argmax(-1), want.argmax(-1))) << dtype << " tp=" << tp;
        });
      }
    }
  }
}

// Each token and head has its own scale, so a shard of the heads has the numbers of one rank. Only
// those near the middle of two steps are rounded differently, by a 127th.
TEST(Runnable, Int8KvCacheOnAnyRanks_GivesTheLogitsOfOne) {
  const test::TempFolder root;
  RunOptions options;
  options.model = small_model(root, kConfig);
  options.dtype = "fp32";
  const auto logits = [&](const std::string& kv_cache_dtype, const Axis& tp) {
    RunOptions own = options;
    own.kv_cache_dtype = kv_cache_dtype;
    const auto model = Runnable(own, {"lm"}).load(tp);
    const at::NoGradGuard no_grad;
    const DTensor x(at::arange(8).view({1, 8}), tp, Replicate{});
    return (*model)(x, Context()).full_tensor();
  };
  const Tensor exact = logits("auto", {}), want = logits("int8", {});
  const double size = exact.abs().max().item<double>();
  const double change = (want - exact).abs().max().item<double>();
  EXPECT_GT(change, 1e-6 * size);
  // Half a step of 1/127 of the largest number, in keys and in values.
  EXPECT_LE(change, 0.01 * size);
  for (const int ranks : {2, 3}) {
    test::on_ranks(ranks, [&](const Axis& tp) {
      const Tensor got = logits("int8", tp);
      EXPECT_LE((got - want).abs().max().item<double>(), 2e-3 * size) << "tp=" << ranks;
      EXPECT_TRUE(at::equal(got.argmax(-1), want.argmax(-1))) << "tp=" << ranks;
    });
  }
}

// Oracle: the model whose matrices of the blocks are the values that their 4-bit numbers stand for,
// with activations that are not rounded; those cost some thousandths.
TEST(Runnable, Int4_IsNearTheModelWithRoundedWeights) {
  const test::TempFolder root;
  const std::string folder = small_model(root, kConfig);
  const Runnable runnable(folder, "fp32", "cpu");
  for (const bool has_mins : {false, true}) {
    const auto model = make_model(runnable.folder().config);
    load_model(*model, runnable.folder(), at::kFloat);
    const at::NoGradGuard no_grad;
    for (const auto& p : model->parameters()) {
      if (p->name().find("_proj.") == std::string::npos) continue;
      const Tensor groups = p->leaf().detach().view({p->shape()[0], -1, 32});
      const Tensor low = groups.amin(2, true).clamp_max(0),
                   high = groups.amax(2, true).clamp_min(0);
      const Tensor largest = at::where(high.ge(-low), high, low);
      const Tensor scale = (has_mins ? (high - low) / 15 : largest / -8).to(at::kHalf);
      const Tensor min = has_mins ? (-low).to(at::kHalf).to(at::kFloat) : scale.to(at::kFloat) * 8;
      const Tensor q = ((groups + min) / scale).round().clamp(0, 15);
      p->set_leaf((q * scale - min).view_as(p->leaf()));
    }
    DTensor x(at::arange(8).view({1, 8}), Axis(), Replicate{});
    for (Layer* layer : model->sequence()) x = (*layer)(x, Context());
    const Tensor got = run_model(folder, has_mins ? "int4" : "int4_sym").first;
    EXPECT_LE((got - x.local()).norm().item<double>(), 0.03 * x.local().norm().item<double>());
  }
}

// fp16 represents these weights exactly. Only one matrix at a time is in memory as the file has it;
// all of them would take 4 or 2 bytes per weight.
TEST(Runnable, Int8_LoadsOneMatrixAtATime) {
  const test::TempFolder folder;
  const Axis one;
  const test::Training training(one, at::kFloat, kConfig);
  int64_t in_int8 = 0, largest = 0;
  for (const auto& p : training.model->parameters()) {
    const bool is_matrix = p->shape().size() == 2 && p->name() != "model.embed_tokens.weight";
    // Rows are padded to a multiple of 64 bytes, and have a scale and a sum each.
    in_int8 += is_matrix ? p->numel() * 4 / 3 + 16 * p->shape()[0] : 4 * p->numel();
    largest = std::max(largest, p->numel());
  }
  std::vector<Tensor> logits;
  for (const at::ScalarType type : {at::kFloat, at::kHalf}) {
    const std::string path = folder / c10::toString(type);
    save(training, path, type);
    const auto [got, peak] = run_model(path, "int8");
    logits.push_back(got);
    // The matrix as the file has it, in fp32, and rounded.
    EXPECT_LE(peak, in_int8 + 12 * largest) << type;
  }
  EXPECT_TRUE(at::equal(logits[0], logits[1]));
}

// Every bf16 number is an fp32 number, so that the table in bf16 has the rows of one in fp32.
TEST(Runnable, TableInInt8Models_KeepsTheTypeOfTheFile) {
  constexpr std::string_view kTied =
      R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","tie_word_embeddings":true,
      "vocab_size":1000,"hidden_size":64,"intermediate_size":64,"num_hidden_layers":1,
      "num_attention_heads":4,"max_position_embeddings":64})";
  const test::TempFolder folder;
  const Axis one;
  const test::Training training(one, at::kFloat, kTied);
  for (const auto& p : training.model->parameters()) {
    p->set_leaf(p->leaf().detach().to(at::kBFloat16).to(at::kFloat));
  }
  std::vector<Tensor> logits;
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    const std::string path = folder / c10::toString(type);
    save(training, path, type);
    logits.push_back(run_model(path, "int8").first);
    const auto model = Runnable(path, "int8", "cpu").load(one);
    for (const auto& p : model->parameters()) {
      const bool is_table = p->name() == "model.embed_tokens.weight";
      if (p->is_readable()) {
        EXPECT_EQ(p->use().scalar_type(), is_table ? type : at::kFloat) << p->name();
      }
    }
  }
  EXPECT_TRUE(at::equal(logits[0], logits[1]));
  test::on_ranks(2, [&](const Axis& axis) {
    const Tensor got = run_model(folder / "BFloat16", "int8", axis).first;
    EXPECT_TRUE(at::allclose(got, logits[0], 1e-4, 1e-5));
  });
}

// The files of a run's newest checkpoint.
TEST(Runnable, TokenizerFolder_IsTheModelsOrThatOfARun) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  std::filesystem::create_directories(root / "run/step_00000001");
  std::ofstream(root / "run/latest") << "step_00000001\n";
  const Runnable runnable(folder, "", "cpu");
  EXPECT_EQ(runnable.tokenizer_folder(""), folder);
  EXPECT_EQ(runnable.tokenizer_folder("bytes"), "");
  EXPECT_EQ(runnable.tokenizer_folder(root / "run"), root / "run/step_00000001");
}

// The byte tokenizer has 257 ids.
TEST(Runnable, TokenizerWithMoreIdsThanTheModel_IsRefused) {
  const test::TempFolder root;
  const Runnable runnable(saved_model(root, "m"), "", "cpu");
  const Error error = test::thrown_by([&] { (void)runnable.tokenizer("bytes", true); });
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(error.what(),
               "the tokenizer of --tokenizer bytes has 257 ids, more than the model's "
               "vocab_size=50; give the model's tokenizer, or leave --tokenizer out if its folder "
               "has one");
}

// An adapter's run may have another chat template and other sequences than its base model's.
TEST(Runnable, TokenizerAndLengthWithAnAdapter_AreTheAdapters) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  std::ofstream(folder + "/state.json") << R"({"seq_len": 5})";
  std::filesystem::create_directories(root / "a");
  std::ofstream(root / "a/adapter_config.json") << "{}";
  RunOptions options;
  options.model = folder;
  options.device = "cpu";
  options.adapter = root / "a";
  EXPECT_EQ(Runnable(options, {"lm"}).tokenizer_folder(""), folder);
  EXPECT_EQ(Runnable(options, {"lm"}).seq_len(0, 50), 5);
  std::ofstream(root / "a/tokenizer.json") << "{}";
  std::ofstream(root / "a/state.json") << R"({"seq_len": 7})";
  EXPECT_EQ(Runnable(options, {"lm"}).tokenizer_folder(""), root / "a");
  EXPECT_EQ(Runnable(options, {"lm"}).seq_len(0, 50), 7);
}

// transformers 5.23.0: if a generation_config.json exists, only its end ids count, even if it has
// none; else those of config.json.
TEST(Runnable, EndIds_AreOnlyThoseOfTheGenerationConfig) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  auto config = nlohmann::ordered_json::parse(kConfig);
  config["eos_token_id"] = 2;
  std::ofstream(folder + "/config.json") << config;
  const auto ids_with = [&](const char* text) {
    std::ofstream(folder + "/generation_config.json") << text;
    return Runnable(folder, "", "cpu").eos_ids();
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(Runnable(folder, "", "cpu").eos_ids(), Ids{2});
  EXPECT_EQ(ids_with("{}"), Ids{});
  EXPECT_EQ(ids_with(R"({"eos_token_id": null})"), Ids{});
  EXPECT_EQ(ids_with(R"({"eos_token_id": [3, 4]})"), (Ids{3, 4}));
  // The first Llama 2 files have 32000 ids, and a pad_token_id of 32000.
  EXPECT_EQ(ids_with(R"({"eos_token_id": [3, 99], "pad_token_id": 50})"), Ids{3});
}

/// What a model's folder says about generated text, with this generation_config.json.
GenerationConfig generation_with(const std::string& folder, const char* text) {
  std::ofstream(folder + "/generation_config.json") << text;
  return Runnable(folder, "", "cpu").generation();
}

TEST(Runnable, GenerationConfig_SetsWhatNoFlagSets) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  const auto with = [&](const char* text) { return generation_with(folder, text); };
  // As Qwen2.5-1.5B-Instruct has it.
  const GenerationConfig qwen = with(R"({"bos_token_id": 3, "do_sample": true,
      "eos_token_id": [5, 3], "repetition_penalty": 1.1, "temperature": 0.7, "top_k": 20,
      "top_p": 0.8})");
  EXPECT_EQ(qwen.repetition_penalty, 1.1);
  EXPECT_EQ(qwen.temperature, 0.7);
  EXPECT_EQ(qwen.top_k, 20);
  EXPECT_EQ(qwen.top_p, 0.8);
  EXPECT_EQ(qwen.no_repeat_ngram_size, std::nullopt);
  EXPECT_EQ(qwen.length_penalty, std::nullopt);
  EXPECT_EQ(qwen.early_stopping, std::nullopt);
  const GenerationConfig beams =
      with(R"({"length_penalty": 1.2, "early_stopping": true, "top_k": -1})");
  EXPECT_EQ(beams.length_penalty, 1.2);
  EXPECT_EQ(beams.early_stopping, "true");
  EXPECT_EQ(beams.top_k, 0);
  EXPECT_EQ(with(R"({"early_stopping": "never"})").early_stopping, "never");
  const GenerationConfig zeros = with(R"({"temperature": 0.0, "top_p": null, "top_k": 0})");
  EXPECT_EQ(zeros.temperature, std::nullopt);
  EXPECT_EQ(zeros.top_p, std::nullopt);
  EXPECT_EQ(zeros.top_k, 0);
  const Error error = test::thrown_by([&] { with(R"({"repetition_penalty": -1})"); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), testing::HasSubstr("repetition_penalty"));
}

// Oracle: whether the processed scores of transformers 5.19's generate() change with the key.
TEST(Runnable, GenerationConfig_NamesTheKeysThatAreNotUsed) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  const auto with = [&](const char* text) { return generation_with(folder, text); };
  const GenerationConfig all = with(R"({"suppress_tokens": [1], "min_new_tokens": 2,
      "guidance_scale": 1.5, "num_beams": 4, "min_p": 0.05, "typical_p": 0.9, "top_k": 3})");
  EXPECT_THAT(all.unused, testing::ElementsAre("suppress_tokens", "min_new_tokens",
                                               "guidance_scale", "num_beams"));
  EXPECT_THAT(all.unused_in_sampling, testing::ElementsAre("min_p", "typical_p"));
  EXPECT_THAT(with(R"({"renormalize_logits": true})").unused_in_beam_search,
              testing::ElementsAre("renormalize_logits"));
  const GenerationConfig none = with(R"({"suppress_tokens": [], "min_new_tokens": null,
      "min_length": 0, "guidance_scale": 1.0, "num_beams": 1, "min_p": 0.0, "typical_p": 1.0,
      "renormalize_logits": false, "do_sample": true, "max_length": 20, "use_cache": true, "pad_token_id": 0})");
  EXPECT_THAT(none.unused, testing::IsEmpty());
  EXPECT_THAT(none.unused_in_sampling, testing::IsEmpty());
  EXPECT_THAT(none.unused_in_beam_search, testing::IsEmpty());
}

// Oracle: the ids of transformers 5.19's generate() change with these keys of config.json, unless
// there is a generation_config.json.
TEST(Runnable, SettingsOfGeneration_AreInConfigJsonOfOlderFiles) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  auto config = nlohmann::ordered_json::parse(kConfig);
  config.update({{"repetition_penalty", 1.3}, {"no_repeat_ngram_size", 2}, {"min_length", 4}});
  std::ofstream(folder + "/config.json") << config;
  const GenerationConfig older = Runnable(folder, "", "cpu").generation();
  EXPECT_EQ(older.repetition_penalty, 1.3);
  EXPECT_EQ(older.no_repeat_ngram_size, 2);
  EXPECT_THAT(older.unused, testing::ElementsAre("min_length"));
  EXPECT_EQ(older.file, "config.json");
  const GenerationConfig newer = generation_with(folder, "{}");
  EXPECT_EQ(newer.repetition_penalty, std::nullopt);
  EXPECT_THAT(newer.unused, testing::IsEmpty());
}

// LlamaConfig of transformers 5.23.0 has eos_token_id = 2 if config.json lacks the key.
TEST(Runnable, EndIdsWithoutTheKey_AreTheFamilysDefault) {
  const test::TempFolder root;
  const std::string folder = saved_model(root, "m");
  const auto ids_with = [&](const nlohmann::ordered_json& change) {
    auto config = nlohmann::ordered_json::parse(kConfig);
    config.erase("eos_token_id");
    config.update(change);
    std::ofstream(folder + "/config.json") << config;
    return Runnable(folder, "", "cpu").eos_ids();
  };
  using Ids = std::vector<int64_t>;
  EXPECT_EQ(ids_with(nlohmann::ordered_json::object()), Ids{2});
  EXPECT_EQ(ids_with({{"eos_token_id", nullptr}}), Ids{});
}

}  // namespace
}  // namespace cleave::runnable_test
