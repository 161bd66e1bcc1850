// Oracle: whole tensors in closed form. They are sharded for one layout, saved, read back whole by
// name, and sharded again for every other layout.
#include <array>
#include <filesystem>
#include <fstream>
#include <map>
#include <thread>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/file/fault_hook.h"
#include "cleave/format/manifest.h"
#include "cleave/parallel/lora.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::checkpoint_test {
namespace {

namespace fs = std::filesystem;
using test::closed_form;
using test::expect_file_is_whole;
using test::kBertConfig;
using test::kGpt2Config;
using test::kLlamaConfig;
using test::Layout;
using test::on_layout;
using test::TempFolder;
using test::tensors_of;
using test::thrown_by;
using test::Training;
using test::write_model_folder;
using testing::HasSubstr;
using testing::IsEmpty;

constexpr std::array kLayouts = {Layout{1, 1}, Layout{2, 1}, Layout{3, 1}, Layout{4, 1},
                                 Layout{6, 1}, Layout{1, 2}, Layout{2, 2}};

/// Loads a run's model and optimizer and compares each slice with its closed form.
void expect_loads(const fs::path& run, const Axis& tp) {
  auto model = make_model(Json::parse_file((*newest_checkpoint(run) / "config.json").string()));
  parallelize_module(*model, tp, model->plan());
  uint64_t done = 0, total = 0;
  LoadHooks hooks;
  hooks.on_bytes = [&](uint64_t bytes, uint64_t of) {
    EXPECT_GE(bytes, done);
    done = bytes;
    total = of;
  };
  const LoadResult result = load_model(*model, ModelFolder::open(run.string()), at::kFloat, hooks);
  uint64_t held = 0;
  for (const auto& p : model->parameters()) held += p->leaf().nbytes();
  EXPECT_EQ(result.bytes_read, held) << "a rank reads only its own ranges";
  EXPECT_EQ(done, held);
  EXPECT_EQ(total, held);
  Optimizer optimizer(model->parameters(), OptimizerOptions{});
  load_optimizer(optimizer, *model, newest_checkpoint(run)->string());
  EXPECT_EQ(optimizer.num_steps(), 7);
  for (const auto& state : optimizer.states()) {
    const Parameter& p = *state.parameter;
    EXPECT_TRUE(at::equal(p.leaf(), Training::part_of(p, ""))) << p.name();
    EXPECT_TRUE(at::equal(state.exp_avg, Training::part_of(p, "exp_avg."))) << p.name();
    EXPECT_TRUE(at::equal(state.exp_avg_sq, Training::part_of(p, "exp_avg_sq."))) << p.name();
  }
}

/// Gives a tensor of a folder's model.safetensors the bytes of another one.
void copy_tensor(const fs::path& folder, const std::string& from, const std::string& to) {
  const Safetensors files = Safetensors::open(folder);
  const StoredTensor &source = files.at(from), &target = files.at(to);
  std::string bytes(source.end - source.begin, '\0');
  files.read_block(source, {}, std::as_writable_bytes(std::span(bytes)));
  std::fstream file(folder / "model.safetensors", std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(static_cast<std::streamoff>(target.begin));
  file << bytes;
}

/// Saves a model of `num_tensors` on every layout and loads it on every layout.
void expect_every_layout_to_every_layout(std::string_view config, size_t num_tensors) {
  for (const Layout& from : kLayouts) {
    SCOPED_TRACE(str("saved at tp=", from.tp, " dp=", from.dp));
    const TempFolder folder;
    on_layout(from, [&](const Writers& writers) {
      RunFolder run(folder / "run", writers);
      EXPECT_EQ(run.save(Training(writers.tp, at::kFloat, config).checkpoint(200)),
                folder / "run/step_00000200");
    });
    const fs::path saved = folder / "run/step_00000200";
    EXPECT_EQ(read_file(folder / "run/latest"), "step_00000200\n");
    EXPECT_THAT(find_damage(saved), IsEmpty());
    expect_file_is_whole(saved / "model.safetensors", num_tensors);
    expect_file_is_whole(saved / "optimizer.safetensors", 2 * num_tensors);
    EXPECT_EQ(read_file(saved / "state.json"), "{\"step\":200}\n");
    EXPECT_EQ(read_file(saved / "tokenizer.json"), "{}");
    for (const Layout& to : kLayouts) {
      SCOPED_TRACE(str("loaded at tp=", to.tp, " dp=", to.dp));
      on_layout(to, [&](const Writers& writers) {
        verify_checkpoint(saved, writers.world);
        expect_loads(folder / "run", writers.tp);
      });
    }
  }
}

TEST(Checkpoint, EveryLayoutToEveryLayout_IsBitEqual) {
  expect_every_layout_to_every_layout(kLlamaConfig, 3 + 2 * 9);
}

TEST(Checkpoint, FusedColumnsOnEveryLayout_AreBitEqual) {
  expect_every_layout_to_every_layout(kGpt2Config, 4 + 2 * 12);
}

TEST(Checkpoint, NarrowTraining_HasBf16WeightsAndFp32Masters) {
  const TempFolder folder;
  on_layout({2, 1}, [&](const Writers& writers) {
    Training training(writers.tp);
    for (const auto& p : training.model->parameters()) p->leaf().detach().add_(1.0f / 4096);
    Checkpoint checkpoint = training.checkpoint(5);
    checkpoint.dtype = at::kBFloat16;
    RunFolder(folder / "run", writers).save(checkpoint);
  });
  const fs::path saved = folder / "run/step_00000005";
  EXPECT_EQ(Json::parse_file((saved / "config.json").string()).at("torch_dtype").as_string(),
            "bfloat16");
  const auto weights = test::read_tensors(saved / "model.safetensors");
  const auto states = test::read_tensors(saved / "optimizer.safetensors");
  for (const auto& [name, weight] : weights) {
    const Tensor master = closed_form(name, weight.sizes().vec()).add(1.0f / 4096);
    EXPECT_EQ(weight.scalar_type(), at::kBFloat16);
    EXPECT_TRUE(at::equal(weight, master.to(at::kBFloat16))) << name;
    EXPECT_TRUE(at::equal(states.at("master." + name), master)) << name;
  }
  on_layout({3, 1}, [&](const Writers& writers) {
    auto model = make_model(Json::parse(kLlamaConfig, "config.json"));
    parallelize_module(*model, writers.tp, model->plan());
    load_model(*model, ModelFolder::open((folder / "run").string()), at::kFloat);
    Optimizer optimizer(model->parameters(), OptimizerOptions{});
    load_optimizer(optimizer, *model, saved.string());
    for (const auto& p : model->parameters()) {
      EXPECT_TRUE(at::equal(p->leaf(), Training::part_of(*p, "").add(1.0f / 4096))) << p->name();
    }
  });
}

TEST(Checkpoint, TiedWeights_AreStoredOnceAndADuplicateIsNoError) {
  std::string config(kLlamaConfig);
  config.replace(config.find("\"tie_word_embeddings\":false"), 27, "\"tie_word_embeddings\":true ");
  const TempFolder folder;
  const Axis one;
  const Writers writers{one, one, one};
  const Training training(one, at::kFloat, config);
  const fs::path saved = RunFolder(folder / "run", writers).save(training.checkpoint(1));
  const auto tensors = test::read_tensors(saved / "model.safetensors");
  EXPECT_EQ(tensors.size(), 2u + 2 * 9);
  EXPECT_FALSE(tensors.contains("lm_head.weight"));
  auto model = make_model(Json::parse(config, "config.json"));
  EXPECT_THAT(load_model(*model, ModelFolder::open(saved.string()), at::kFloat).carried, IsEmpty());
}

// Oracle: transformers 5.23.0, whose config.json leaves out values that are the family's default.
TEST(Checkpoint, FamiliesThatAreTiedByDefault_ReadADuplicateToo) {
  for (const char* type : {"smollm3", "gemma2", "gemma3_text"}) {
    const std::string config =
        str(R"({"model_type": ")", type, R"(", "vocab_size": 50, "hidden_size": 24,
        "intermediate_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
        "num_key_value_heads": 2, "head_dim": 12, "max_position_embeddings": 32,
        "bos_token_id": null, "eos_token_id": null, "pad_token_id": null})");
    const TempFolder folder;
    auto tensors = tensors_of(config);
    tensors.push_back({"lm_head.weight", DType::kF32, {50, 24}});
    write_model_folder(folder / "m", config, tensors);
    copy_tensor(folder / "m", "model.embed_tokens.weight", "lm_head.weight");
    auto model = make_model(Json::parse(config, "config.json"));
    const auto opened = ModelFolder::open((folder / "m").string());
    EXPECT_THAT(load_model(*model, opened, at::kFloat).carried, IsEmpty()) << type;
  }
}

// Oracle: transformers 5.19, which uses both matrices then, and says so.
TEST(LoadModel, AHeadOtherThanTheEmbeddingToWhichItIsTied_IsRefused) {
  const std::string llama = test::changed(kLlamaConfig, {{"tie_word_embeddings", true}});
  struct Case {
    std::string config, embedding, head;
  };
  for (const auto& [config, embedding, head] :
       {Case{llama, "model.embed_tokens.weight", "lm_head.weight"},
        Case{std::string(kGpt2Config), "transformer.wte.weight", "lm_head.weight"},
        Case{std::string(kBertConfig), "bert.embeddings.word_embeddings.weight",
             "cls.predictions.decoder.weight"}}) {
    const TempFolder folder;
    auto tensors = tensors_of(config);
    tensors.push_back({head, DType::kF32, {50, 24}});
    write_model_folder(folder / "m", config, tensors);
    const auto load = [&, &config = config] {
      on_layout({3, 1}, [&](const Writers& writers) {
        auto model = make_model(Json::parse(config, "config.json"));
        parallelize_module(*model, writers.tp, model->plan());
        load_model(*model, ModelFolder::open((folder / "m").string()), at::kFloat);
      });
    };
    EXPECT_THAT(thrown_by(load).what(), HasSubstr(str(head, " differs from ", embedding,
                                                      ", to which config.json ties it")));
    copy_tensor(folder / "m", embedding, head);
    EXPECT_NO_THROW(load()) << head;
  }
}

// -- files that do not fit the model --------------------------------------------------------------

Error load_error(const std::vector<TensorInfo>& tensors) {
  const TempFolder folder;
  write_model_folder(folder / "m", kLlamaConfig, tensors);
  auto model = make_model(Json::parse(kLlamaConfig, "config.json"));
  return thrown_by(
      [&] { load_model(*model, ModelFolder::open((folder / "m").string()), at::kFloat); });
}

TEST(LoadModel, MissingAndUnexpectedTensors_AreAllListed) {
  auto tensors = tensors_of(kLlamaConfig);
  tensors[0].name = "model.embed.weight";
  tensors[1].name = "other.bias";
  const Error error = load_error(tensors);
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("2 missing: model.embed_tokens.weight, model.layers.0."));
  EXPECT_THAT(error.what(), HasSubstr("2 that the model does not use: model.embed.weight, other"));
}

// GPT-2's published files have a base model's names and causal masks as tensors. Other programs
// also write a second copy of the output matrix.
TEST(LoadModel, NamesWithoutTheirFirstToken_AreFoundAndMasksLeftOut) {
  const Training training(Axis(), at::kFloat, kGpt2Config);
  std::vector<TensorInfo> tensors;
  for (const auto& p : training.model->parameters()) {
    tensors.push_back({p->name().substr(sizeof("transformer")), DType::kF32, p->shape()});
  }
  tensors.push_back({"h.0.attn.bias", DType::kF32, {1, 1, 16, 16}});
  tensors.push_back({"h.0.attn.masked_bias", DType::kF32, {}});
  tensors.push_back({"lm_head.weight", DType::kF32, {50, 24}});
  const TempFolder folder;
  write_model_folder(folder / "m", kGpt2Config, tensors);
  copy_tensor(folder / "m", "wte.weight", "lm_head.weight");
  on_layout({4, 1}, [&](const Writers& writers) {
    auto model = make_model(Json::parse(kGpt2Config, "config.json"));
    parallelize_module(*model, writers.tp, model->plan());
    const auto opened = ModelFolder::open((folder / "m").string());
    EXPECT_THAT(load_model(*model, opened, at::kFloat).carried, IsEmpty());
    for (const auto& p : model->parameters()) {
      const std::string stored = p->name().substr(sizeof("transformer"));
      EXPECT_TRUE(at::equal(p->leaf(), test::slice_of(*p, closed_form(stored, p->shape()))))
          << p->name();
    }
  });
}

TEST(LoadModel, OtherShape_NamesBoth) {
  auto tensors = tensors_of(kLlamaConfig);
  tensors[0].shape = {51, 24};
  const Error error = load_error(tensors);
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_THAT(error.what(), HasSubstr("the file has shape [51, 24]; the model needs [50, 24]"));
}

TEST(LoadModel, TablesOfOlderPrograms_AreCarriedIntoTheNextCheckpoint) {
  const TempFolder folder;
  auto tensors = tensors_of(kLlamaConfig);
  tensors.push_back({"model.layers.0.self_attn.rotary_emb.inv_freq", DType::kF32, {2}});
  write_model_folder(folder / "m", kLlamaConfig, tensors);
  on_layout({2, 1}, [&](const Writers& writers) {
    Training training(writers.tp);
    auto model = make_model(Json::parse(kLlamaConfig, "config.json"));
    parallelize_module(*model, writers.tp, model->plan());
    Checkpoint checkpoint = training.checkpoint(3);
    checkpoint.carried =
        load_model(*model, ModelFolder::open((folder / "m").string()), at::kFloat).carried;
    EXPECT_EQ(checkpoint.carried.size(), 1u);
    RunFolder(folder / "run", writers).save(checkpoint);
  });
  expect_file_is_whole(folder / "run/step_00000003/model.safetensors", tensors.size());
  EXPECT_THAT(find_damage(folder / "run/step_00000003"), IsEmpty());
}

// Training continues while a thread reads the new checkpoint back: a later call removes the old
// one.
TEST(RunFolderAsync, OldCheckpoints_AreRemovedWithoutAWaitForTheNewOne) {
  const TempFolder folder;
  on_layout({2, 1}, [&](const Writers& writers) {
    RunFolder run(folder.path(), writers, 1);
    const Training training(writers.tp);
    run.save(training.checkpoint(1));
    run.async_save(training.checkpoint(2));
    while (run.poll_save()) std::this_thread::yield();
    EXPECT_EQ(newest_checkpoint(folder.path()), folder / "step_00000002");
    EXPECT_TRUE(fs::exists(folder / "step_00000001"));
    writers.world.barrier("the test has seen both");
    run.wait_for_save();
    writers.world.barrier("the old one is removed");
    EXPECT_FALSE(fs::exists(folder / "step_00000001"));
    run.async_save(training.checkpoint(3));
    while (fs::exists(folder / "step_00000002")) {  // as training does, without a wait
      (void)run.poll_save();
      writers.world.barrier("the next step");
    }
  });
  EXPECT_EQ(list_checkpoints(folder.path()).size(), 1U);
}

// Oracle: the byte that the test changes after everything is written.
TEST(RunFolderAsync, DamagedNewCheckpoint_RemovesNothing) {
  const TempFolder folder;
  const Axis one;
  RunFolder run(folder.path(), {one, one, one}, 1);
  const Training training(one);
  run.save(training.checkpoint(1));
  const ScopedFileHook hook([&](FileCall call, const std::string& path) {
    if (call != FileCall::kRename || !path.ends_with("latest")) return 0;
    std::fstream file(folder / "step_00000002/model.safetensors",
                      std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(-1, std::ios::end);
    file.put('x');
    return 0;
  });
  run.async_save(training.checkpoint(2));
  const Error error = thrown_by([&] { run.wait_for_save(); });
  EXPECT_EQ(error.code(), Code::kFormat);
  EXPECT_THAT(error.what(), HasSubstr("step_00000002 is damaged"));
  EXPECT_THAT(find_damage(folder / "step_00000001"), IsEmpty());
}

TEST(Checkpoint, OutsideARunFolder_IsWhole) {
  const TempFolder folder;
  on_layout({2, 2}, [&](const Writers& writers) {
    save_checkpoint(folder / "saved", Training(writers.tp).checkpoint(1), writers);
    EXPECT_THAT(find_damage(folder / "saved"), IsEmpty());
  });
  expect_file_is_whole(folder / "saved/model.safetensors", 3 + 2 * 9);
  expect_file_is_whole(folder / "saved/optimizer.safetensors", 2 * (3 + 2 * 9));
}

TEST(Checkpoint, StagesOfAPipeline_WriteWhatEachHas) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    const Axis both(world.group({0, 1}, "world")), one;
    Training training(one);
    Parameters mine;
    int number = 0;
    for (const auto& p : training.model->parameters()) {
      if (number++ % 2 == world.rank()) {
        mine.push_back(p);
      } else {
        p->drop();
        p->set_ownership(Parameter::Ownership::kNotOwned);
      }
    }
    training.optimizer = std::make_unique<Optimizer>(mine, OptimizerOptions{});
    for (const auto& state : training.optimizer->states()) {
      state.exp_avg.detach().copy_(Training::part_of(*state.parameter, "exp_avg."));
      state.exp_avg_sq.detach().copy_(Training::part_of(*state.parameter, "exp_avg_sq."));
    }
    // One weight of each stage was trained later than the others.
    training.optimizer->set_num_steps(7);
    training.optimizer->set_num_steps(*mine.front(), 3 + world.rank());
    save_checkpoint(folder / "saved", training.checkpoint(1), {both, one, one});
  });
  EXPECT_THAT(find_damage(folder / "saved"), IsEmpty());
  expect_file_is_whole(folder / "saved/model.safetensors", 3 + 2 * 9);
  expect_file_is_whole(folder / "saved/optimizer.safetensors", 2 * (3 + 2 * 9));
  Training loaded{Axis()};
  loaded.optimizer->set_num_steps(0);
  load_optimizer(*loaded.optimizer, *loaded.model, folder / "saved");
  const auto& states = loaded.optimizer->states();
  for (size_t i = 0; i < states.size(); ++i) {
    EXPECT_EQ(states[i].num_steps, i == 0 ? 3 : i == 1 ? 4 : 7) << states[i].parameter->name();
  }
  EXPECT_EQ(loaded.optimizer->num_steps(), 7);
}

TEST(Checkpoint, StageOfFrozenWeights_HasNoPartOfTheOptimizersFile) {
  const TempFolder folder;
  run_ranks(2, [&](World& world) {
    const Axis both(world.group({0, 1}, "world")), one;
    const auto model = make_model(Json::parse(kLlamaConfig, "config.json"));
    parallelize_module(*model, one, model->plan());
    const Parameters all = model->parameters();
    Parameters mine;
    for (const auto& p : all) {
      const bool is_trained = p == all.back();
      if (!is_trained) p->freeze(at::kFloat);
      if (is_trained != (world.rank() == 1)) {
        p->set_ownership(Parameter::Ownership::kNotOwned);
        continue;
      }
      p->set_leaf(Training::part_of(*p, ""));
      mine.push_back(p);
    }
    Optimizer optimizer(mine, OptimizerOptions{});
    EXPECT_EQ(optimizer.states().size(), world.rank() == 1 ? 1U : 0U);
    for (const auto& state : optimizer.states()) {
      state.exp_avg.detach().copy_(Training::part_of(*state.parameter, "exp_avg."));
      state.exp_avg_sq.detach().copy_(Training::part_of(*state.parameter, "exp_avg_sq."));
    }
    optimizer.set_num_steps(7);
    Checkpoint checkpoint;
    checkpoint.model = model.get();
    checkpoint.optimizer = &optimizer;
    checkpoint.state_json = "{}";
    save_checkpoint(folder / "saved", checkpoint, {both, one, one});
    optimizer.set_num_steps(0);
    load_optimizer(optimizer, *model, folder / "saved");
    EXPECT_EQ(optimizer.num_steps(), 7);
  });
  EXPECT_THAT(find_damage(folder / "saved"), IsEmpty());
  expect_file_is_whole(folder / "saved/model.safetensors", 3 + 2 * 9);
  expect_file_is_whole(folder / "saved/optimizer.safetensors", 2);
}

// An empty file would be no JSON, which `cleave inspect` and `cleave eval` read.
TEST(Checkpoint, WithoutState_HasNoFileOfIt) {
  const TempFolder folder;
  on_layout({1, 1}, [&](const Writers& writers) {
    const Training training(writers.tp);
    Checkpoint checkpoint = training.checkpoint(1);
    checkpoint.state_json.clear();
    save_checkpoint(folder / "saved", checkpoint, writers);
  });
  EXPECT_FALSE(fs::exists(folder / "saved/state.json"));
  EXPECT_THAT(find_damage(folder / "saved"), IsEmpty());
}

// The codes of a quantized base would be stored as if they were weights.
TEST(Checkpoint, ModelWithAdaptersButNoConfigOfThem_IsRefused) {
  const TempFolder folder;
  on_layout({1, 1}, [&](const Writers& writers) {
    const LoraOptions plain{.rank = 1};
    LoraOptions int8 = plain, nf4 = plain;
    int8.base_form = QuantizedForm::kInt8;
    nf4.base_form = QuantizedForm::kNf4;
    for (const LoraOptions& lora : {plain, int8, nf4}) {
      const auto model = make_model(Json::parse(kLlamaConfig, "config.json"));
      attach_lora(*model, model->sequence(), lora, at::kFloat);
      Checkpoint checkpoint;
      checkpoint.model = model.get();
      EXPECT_EQ(thrown_by([&] { save_checkpoint(folder / "saved", checkpoint, writers); }).code(),
                Code::kUsage);
    }
  });
  EXPECT_FALSE(fs::exists(folder / "saved"));
}

TEST(Checkpoint, ConfigOfEveryType_IsNamedUnderTheConfigsOwnKeys) {
  for (const auto& [dtype, name] : {std::pair(at::kFloat, "float32"),
                                    {at::kDouble, "float64"},
                                    {at::kHalf, "float16"},
                                    {at::kBFloat16, "bfloat16"}}) {
    for (const std::string before :
         {R"({"a":[1]})", R"({"a":[1],"torch_dtype":"x"})", R"({"a":[1],"dtype":"x"})",
          R"({"a":[1],"dtype":"x","torch_dtype":"y"})"}) {
      const bool is_newer = before.find("\"dtype") != std::string::npos;
      const bool is_older = !is_newer || before.find("torch_dtype") != std::string::npos;
      const std::string text = config_with_dtype(Json::parse(before, "config.json"), dtype);
      EXPECT_EQ(text.back(), '\n');
      const Json after = Json::parse(text, "config.json");
      EXPECT_EQ(after.at("a").at(0).as_int(), 1);
      EXPECT_EQ(after.has("dtype"), is_newer) << text;
      EXPECT_EQ(after.has("torch_dtype"), is_older) << text;
      EXPECT_EQ(after.string_or("dtype", name), name);
      EXPECT_EQ(after.string_or("torch_dtype", name), name);
    }
  }
}

TEST(Checkpoint, OptimizerWithoutParameters_IsNotSaved) {
  const Training training{Axis()};
  const Optimizer none(Parameters{}, OptimizerOptions{});
  const Error error = thrown_by(
      [&] { optimizer_group(none, training.model->parameters(), at::kFloat, "optimizer"); });
  EXPECT_EQ(error.code(), Code::kUsage);
}

TEST(LoadOptimizer, OtherOptimizer_IsRefused) {
  const TempFolder folder;
  const Axis one;
  Training training(one);
  const fs::path saved = RunFolder(folder / "run", {one, one, one}).save(training.checkpoint(1));
  OptimizerOptions sgd;
  sgd.kind = OptimizerOptions::Kind::kSgd;
  Optimizer other(training.model->parameters(), sgd);
  const Error sgd_on_adam =
      thrown_by([&] { load_optimizer(other, *training.model, saved.string()); });
  EXPECT_EQ(sgd_on_adam.code(), Code::kUsage);
  EXPECT_THAT(sgd_on_adam.what(), HasSubstr("give --optimizer adamw or adam"));
  fs::remove(saved / "optimizer.safetensors");
  EXPECT_EQ(thrown_by([&] {
              load_optimizer(*training.optimizer, *training.model, saved.string());
            }).code(),
            Code::kIo);
}

// Oracle: Meta's rows 2i and 2i+1 of a head are rows i and i + half here.
TEST(RealLoadModel, MetaNames_UndoTheOrderOfRotaryRowsOnEveryLayout) {
  const auto data = test::data_folder();
  CLEAVE_NEEDS_DATA();
  const auto want = test::read_tensors(data + "/models/stories260K");
  for (const Layout& layout : {Layout{1, 1}, Layout{2, 1}, Layout{3, 1}}) {
    on_layout(layout, [&](const Writers& writers) {
      const ModelFolder folder = ModelFolder::open(data + "/models/stories260K-meta");
      auto model = make_model(folder.config);
      parallelize_module(*model, writers.tp, model->plan());
      load_model(*model, folder, at::kFloat);
      for (const auto& p : model->parameters()) {
        const auto at =
            want.find(p->name() == "lm_head.weight" ? "model.embed_tokens.weight" : p->name());
        ASSERT_NE(at, want.end()) << p->name();
        EXPECT_TRUE(at::equal(p->leaf(), test::slice_of(*p, at->second))) << p->name();
      }
    });
  }
}

}  // namespace
}  // namespace cleave::checkpoint_test
