// Oracle: whole weights that the test made; the unbroken run.
#include "cleave/compat/nxd_checkpoint.h"

#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/compat/nxd.h"
#include "cleave/compat/nxd_pipeline.h"
#include "cleave/file/file_lock.h"
#include "cleave/model/model.h"
#include "cleave/nn/cross_entropy.h"
#include "cleave/nn/norm.h"
#include "cleave/parallel/fsdp.h"
#include "cleave/parallel/zero1.h"
#include "tests/support/golden.h"
#include "tests/support/model_parallel.h"
#include "tests/support/temp_folder.h"
#include "tests/support/thrown.h"

namespace cleave::nxd_checkpoint_test {
namespace {

namespace fs = std::filesystem;
using test::numbers;
using test::on_model_parallel;
using test::TempFolder;
using test::thrown_by;
using testing::HasSubstr;

constexpr int64_t kIds = 11, kHidden = 6, kWide = 9;

/// The guide's kinds of layers: row-sharded, column-sharded and replicated weights; sizes that the
/// number of ranks does not divide.
struct Model : LayerGroup {
  Model() {
    add("embed", embed);
    add("up", up);
    add("down", down);
    add("norm", norm);
    nxd::move_model_to_device(*this, at::kCPU, {.seed = 3, .dtype = at::kDouble});
  }
  Tensor operator()(const Tensor& ids) { return nxd::call(norm, down(up(embed(ids)).tanh())); }
  nxd::ParallelEmbedding embed{kIds, kHidden, {.dtype = at::kDouble}};
  nxd::ColumnParallelLinear up{kHidden, kWide, {.gather_output = false, .dtype = at::kDouble}};
  nxd::RowParallelLinear down{kWide, kHidden, {.input_is_parallel = true, .dtype = at::kDouble}};
  LayerNorm norm{kHidden, 1e-5};
};

/// A model and its optimizer on this rank.
struct Training {
  Model model;
  Optimizer optimizer{model.parameters(), {}};

  /// One step on rows that all data-parallel ranks have, so that dp changes no gradient.
  double step(int64_t number) {
    const auto seed = static_cast<uint64_t>(number);
    const Tensor loss =
        (model(test::ids({2, 3}, kIds, seed)) * numbers({2, 3, kHidden}, seed + 100)).sum();
    loss.backward();
    nxd::optimizer_step(optimizer, nxd::get_data_parallel_group(nxd::as_list), 1e-2);
    optimizer.zero_grad();
    return loss.item<double>();
  }
};

struct Sizes {
  int tp, dp;
};
const std::vector<Sizes> kSizes = {{1, 1}, {2, 1}, {4, 1}, {3, 1}, {1, 2}, {2, 2}};

// The guide's lines: save at the end of an epoch on tp 2 x dp 2, load by the model's key on another
// layout, resume. Adam's update depends on both moments and the number of steps.
TEST(NxdCheckpoint, SavedOnTwoByTwo_ResumesOnAnyLayoutAsTheUnbrokenRun) {
  const TempFolder folder;
  const std::string path = folder / "epoch_3";
  std::vector<double> want;
  on_model_parallel(2, 2, [&] {
    Training run;
    double loss = 0;
    for (int64_t i = 0; i < 3; ++i) loss = run.step(i);
    nxd::save({{"epoch", 3},
               {"model", nxd::state_dict(run.model)},
               {"optimizer_state_dict", nxd::state_dict(run.optimizer)},
               {"loss", loss},
               {"note", "end of an epoch"},
               {"scheduler", Json::parse(R"({"lrs": [0.1, 1e-300, 7], "on": null})", "scheduler")},
               {"is_best", true}},
              path);
    std::vector<double> losses{loss};
    for (int64_t i = 3; i < 6; ++i) losses.push_back(run.step(i));
    if (nxd::get_world_group().rank() == 0) want = losses;
  });
  for (const Sizes& sizes : kSizes) {
    on_model_parallel(sizes.tp, sizes.dp, [&] {
      Training run;
      for (int64_t i = 50; i < 52; ++i) run.step(i);  // load must replace this state
      const Json rest = nxd::load(path, run.model, "model");
      nxd::load(path, run.optimizer);
      EXPECT_EQ(rest.at("epoch").as_int(), 3);
      EXPECT_EQ(rest.at("loss").as_number(), want[0]);
      EXPECT_EQ(rest.at("note").as_string(), "end of an epoch");
      const Json lrs = rest.at("scheduler").at("lrs");
      EXPECT_EQ(lrs.size(), 3U);
      EXPECT_EQ(lrs.at(1).as_number(), 1e-300);
      EXPECT_TRUE(lrs.at(2).is_int());
      EXPECT_TRUE(rest.at("scheduler").at("on").is(Json::Type::kNull));
      EXPECT_TRUE(rest.at("is_best").as_bool());
      EXPECT_FALSE(rest.has("model"));
      EXPECT_FALSE(rest.has("optimizer_state_dict"));
      for (int64_t i = 3; i < 6; ++i) {
        EXPECT_NEAR(run.step(i), want[static_cast<size_t>(i - 2)], 1e-12)
            << "tp=" << sizes.tp << " dp=" << sizes.dp << " step " << i;
      }
    });
  }
}

// Oracle: the run that was not interrupted. ZeRO-1's forward reads gathered copies, which the loads
// must replace, whenever they were gathered before.
TEST(NxdCheckpoint, UnderZero1_ResumesAsTheUnbrokenRun) {
  const TempFolder folder;
  const std::string path = folder / "saved";
  const auto step = [](Model& model, Zero1Optimizer& optimizer, uint64_t seed) {
    const Tensor loss =
        (model(test::ids({2, 3}, kIds, seed)) * numbers({2, 3, kHidden}, seed + 100)).sum();
    loss.backward();
    optimizer.reduce_gradients();
    nxd::optimizer_step(optimizer, nxd::get_data_parallel_group(nxd::as_list), 1e-2);
    optimizer.zero_grad();
    return loss.item<double>();
  };
  const Zero1Options in_double{.precision = {.param = at::kDouble, .reduce = at::kDouble}};
  std::vector<double> want;
  for (const std::string_view run : {"unbroken", "gathered before", "not gathered"}) {
    on_model_parallel(2, 2, [&] {
      Model model;
      Zero1Optimizer optimizer(model.parameters(), nxd::get_data_parallel_group(), {}, in_double);
      if (run != "not gathered") optimizer.gather_weights();
      const bool is_first = nxd::get_world_group().rank() == 0;
      if (run == "unbroken") {
        for (uint64_t i = 0; i < 2; ++i) step(model, optimizer, i);
        nxd::save({{"model", nxd::state_dict(model)},
                   {"optimizer_state_dict", nxd::state_dict(optimizer)}},
                  path);
      } else {
        nxd::load(path, model);
        EXPECT_THAT(thrown_by([&] {
                      model(test::ids({2, 3}, kIds, 2));
                    }).what(),
                    HasSubstr("gather_weights()"));
        nxd::load(path, optimizer);
      }
      for (uint64_t i = 2; i < 4; ++i) {
        const double loss = step(model, optimizer, i);
        if (run == "unbroken" && is_first) want.push_back(loss);
        if (run != "unbroken") {
          EXPECT_NEAR(loss, want.at(i - 2), 1e-12) << run << " step " << i;
        }
      }
    });
  }
}

enum class Sharded { kNothing, kZero1, kFsdp };
struct PipelineSizes {
  int pp, virtual_size, dp, tp;
  Sharded sharded;
};

/// A pipeline of a Llama in fp64, whose first and last stage share a weight.
struct PipelineTraining {
  std::unique_ptr<cleave::Model> llama;
  std::optional<nxd::NxDPPModel> pipeline;
  std::optional<Optimizer> optimizer;

  explicit PipelineTraining(const PipelineSizes& sizes) {
    llama = make_model(Json::parse(R"json({"model_type": "llama", "vocab_size": 29,
        "hidden_size": 12, "intermediate_size": 10, "num_hidden_layers": 4,
        "num_attention_heads": 3, "num_key_value_heads": 3, "head_dim": 4,
        "max_position_embeddings": 16, "tie_word_embeddings": true, "initializer_range": 0.3})json",
                                   "config.json"));
    parallelize_module(*llama, nxd::get_tensor_model_parallel_group(), llama->plan());
    if (sizes.sharded == Sharded::kFsdp) {
      const FsdpOptions in_double{.precision = {.param = at::kDouble, .reduce = at::kDouble}};
      for (Layer* layer : llama->sequence()) {
        fully_shard(*layer, nxd::get_data_parallel_group(), in_double);
      }
    }
    pipeline.emplace(
        *llama, llama->sequence(),
        nxd::NxDPPModelOptions{
            .transformer_layer_cls =
                [](const Layer& layer) {
                  return layer.path().find("layers.") != std::string::npos;
                },
            .num_microbatches = 4 / sizes.dp,
            .virtual_pipeline_size = sizes.virtual_size,
            .output_loss_value_spec =
                [](const DTensor& logits, const nxd::PipelineInputs& in) {
                  return cross_entropy(logits, next_token_labels(in.at("input_ids"))).local();
                },
            .broadcast_and_average_loss = true,
            .seed = 4,
            .dtype = at::kDouble,
            .use_zero1_optimizer = sizes.sharded == Sharded::kZero1,
            .auto_partition = true});
    optimizer.emplace(pipeline->local_parameters(), OptimizerOptions{});
  }

  /// One step on this rank's share of four sequences. Returns the loss.
  double step(int64_t number) {
    const Axis& dp = nxd::get_data_parallel_group();
    const Tensor all = test::ids({4, 6}, 29, static_cast<uint64_t>(number));
    const Tensor own = all.chunk(dp.size())[static_cast<size_t>(dp.rank())];
    const double loss = pipeline->run_train({{"input_ids", own}})[0];
    nxd::clip_grad_norm(pipeline->local_parameters(), 1.0);
    optimizer->step(1e-2);
    optimizer->zero_grad();
    return loss;
  }
};

// Oracle: the run that was not interrupted, whose layouts all have one sequence per micro-batch.
TEST(NxdCheckpoint, SavedByPipelineStages_ResumesOnAnyStagesAsTheUnbrokenRun) {
  const std::vector<PipelineSizes> layouts = {{2, 1, 1, 1, Sharded::kNothing},
                                              {1, 1, 1, 2, Sharded::kNothing},
                                              {2, 2, 2, 1, Sharded::kZero1},
                                              {2, 1, 1, 2, Sharded::kNothing},
                                              {2, 1, 2, 1, Sharded::kFsdp}};
  for (const PipelineSizes& writer : layouts) {
    const TempFolder folder;
    const std::string path = folder / "saved";
    std::vector<double> want;
    test::on_groups(writer.pp, writer.dp, writer.tp, [&] {
      PipelineTraining run(writer);
      for (int64_t i = 0; i < 2; ++i) run.step(i);
      nxd::save({{"step", 2},
                 {"model", nxd::state_dict(*run.llama)},
                 {"optimizer_state_dict", nxd::state_dict(*run.optimizer, *run.llama)}},
                path);
      for (int64_t i = 2; i < 4; ++i) {
        const double loss = run.step(i);
        if (nxd::get_world_group().rank() == 0) want.push_back(loss);
      }
    });
    for (const PipelineSizes& reader : layouts) {
      test::on_groups(reader.pp, reader.dp, reader.tp, [&] {
        PipelineTraining run(reader);
        run.step(50);  // load must replace this state
        EXPECT_EQ(nxd::load(path, *run.llama).at("step").as_int(), 2);
        nxd::load(path, *run.optimizer, *run.llama);
        for (int64_t i = 2; i < 4; ++i) {
          EXPECT_NEAR(run.step(i), want[static_cast<size_t>(i - 2)], 1e-12)
              << "pp=" << writer.pp << " x " << writer.virtual_size << " to " << reader.pp << " x "
              << reader.virtual_size << ", tp=" << reader.tp << " step " << i;
        }
      });
    }
  }
}

// Oracle: the types of the layers. The stages do not know each other's.
TEST(NxdCheckpoint, StagesOfOtherTypes_AreSavedInTheirTypes) {
  struct Part : nxd::PlainLayer {
    explicit Part(at::ScalarType type) : up(4, 6, {.dtype = type}) { add("up", up); }
    Tensor compute(const Tensor& x, const Context& /*context*/) override {
      return up(x.to(up.weight()->leaf().scalar_type()));
    }
    nxd::ColumnParallelLinear up;
  };
  struct Both : LayerGroup {
    Both() {
      add("wide", wide);
      add("narrow", narrow);
    }
    Part wide{at::kDouble}, narrow{at::kBFloat16};
  };
  const TempFolder folder;
  test::on_groups(2, 1, 2, [&] {
    Both model;
    nxd::NxDPPModel pipeline(
        model, {&model.wide, &model.narrow},
        {.transformer_layer_cls = nxd::classes<Part>()[0], .auto_partition = true});
    nxd::save({{"model", nxd::state_dict(model)}}, folder / "saved");
  });
  const auto tensors = test::read_tensors(folder / "saved/model.safetensors");
  ASSERT_EQ(tensors.size(), 4U);
  for (const auto& [name, tensor] : tensors) {
    EXPECT_EQ(tensor.scalar_type(), name.starts_with("wide") ? at::kDouble : at::kBFloat16) << name;
  }
}

TEST(NxdCheckpoint, OptimizerOfAStageWithoutItsModel_IsRefusedWithTheRemedy) {
  const TempFolder folder;
  test::on_groups(2, 1, 1, [&] {
    PipelineTraining run({2, 1, 1, 1, Sharded::kNothing});
    Optimizer& optimizer = *run.optimizer;
    for (const auto& call : std::vector<std::function<void()>>{
             [&] {
               nxd::save({{"optimizer", nxd::state_dict(optimizer)}}, folder / "none");
             },
             [&] { nxd::load(folder / "none", optimizer); }}) {
      const Error error = thrown_by(call);
      EXPECT_EQ(error.code(), Code::kUsage);
      EXPECT_THAT(error.what(), HasSubstr("state_dict(optimizer, model)"));
    }
  });
}

// The guide saves its loss as the tensor that the loss function returned.
TEST(NxdCheckpoint, TensorsOfOneElement_AreSavedAsNumbers) {
  const TempFolder folder;
  on_model_parallel(1, 1, [&] {
    Model model;
    nxd::save({{"model", nxd::state_dict(model)},
               {"loss", at::scalar_tensor(1.5, at::kFloat).requires_grad_()},
               {"count", at::full({1}, 7, at::kLong)},
               {"is_best", at::scalar_tensor(true, at::kBool)}},
              folder / "saved");
    const Json rest = nxd::load(folder / "saved", model);
    EXPECT_EQ(rest.at("loss").as_number(), 1.5);
    EXPECT_EQ(rest.at("count").as_int(), 7);
    EXPECT_TRUE(rest.at("is_best").as_bool());
  });
  const Error error = thrown_by([] { nxd::DictItem("mean", at::zeros({2, 3})); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_THAT(error.what(), HasSubstr("key 'mean' is a tensor of sizes [2, 3]"));
}

TEST(NxdCheckpoint, File_HoldsWholeTensorsUnderTheModelsNames) {
  const TempFolder folder;
  std::map<std::string, Tensor> whole;
  on_model_parallel(1, 1, [&] {
    Model model;
    for (const auto& p : model.parameters()) whole[p->name()] = p->leaf().detach();
  });
  on_model_parallel(3, 2, [&] {
    Model model;  // has the same initial values on every layout
    nxd::save({{"weights", nxd::state_dict(model)}}, folder / "saved");
  });
  const auto tensors = test::read_tensors(folder / "saved/weights.safetensors");
  ASSERT_EQ(tensors.size(), 7u);
  for (const auto& [name, tensor] : tensors) EXPECT_TRUE(at::equal(tensor, whole.at(name))) << name;
  on_model_parallel(2, 1, [&] {
    Model model;
    for (const auto& p : model.parameters()) p->leaf().detach().zero_();
    nxd::load(folder / "saved", model, "weights");
    for (const auto& p : model.parameters()) {
      EXPECT_TRUE(at::equal(p->leaf(), test::slice_of(*p, whole.at(p->name())))) << p->name();
    }
  });
}

// Oracle: the folder. A save after hours of training must not fail for want of a mkdir.
TEST(NxdCheckpoint, FoldersAboveThePath_AreMade) {
  const TempFolder folder;
  on_model_parallel(2, 1, [&] {
    Model model;
    nxd::save({{"model", nxd::state_dict(model)}}, folder / "run/epochs/0");
    nxd::load(folder / "run/epochs/0", model);
    // Another job that writes in the same folder, and a slash at the end.
    std::optional<FileLock> other;
    if (nxd::get_tensor_model_parallel_rank() == 0) other.emplace(folder / "run/epochs");
    nxd::save({{"model", nxd::state_dict(model)}}, folder / "run/epochs/1/");
    nxd::load(folder / "run/epochs/1", model);
  });
}

/// What `action` throws on one rank after a dict was saved under `path`.
Error thrown_after_save(const std::string& path,
                        const std::function<void(Model&, Optimizer&)>& action) {
  return thrown_by([&] {
    on_model_parallel(1, 1, [&] {
      Training run;
      nxd::save({{"model", nxd::state_dict(run.model)}, {"loss", 1.5}}, path);
      action(run.model, run.optimizer);
    });
  });
}

TEST(NxdCheckpoint, InvalidSavesAndLoads_AreRefusedByName) {
  const TempFolder folder;
  int number = 0;
  const auto path = [&] { return (folder / str("saved", ++number)).string(); };
  const auto expect = [](const Error& error, Code code, const std::string& text) {
    EXPECT_EQ(error.code(), code) << error.what();
    EXPECT_THAT(error.what(), HasSubstr(text));
  };
  std::string at = path();
  expect(thrown_after_save(at, [&](Model& m, Optimizer&) { nxd::load(at, m, "weights"); }),
         Code::kFormat, "no state under the key 'weights'; it has model");
  at = path();
  expect(thrown_after_save(at, [&](Model&, Optimizer& o) { nxd::load(at, o, "model"); }),
         Code::kFormat, "another optimizer");
  at = path();
  expect(thrown_after_save(at,
                           [&](Model& m, Optimizer&) {
                             nxd::save({{"model", nxd::state_dict(m)}}, at);
                           }),
         Code::kIo, "already exists");
  at = path();
  expect(thrown_after_save(at,
                           [&](Model& m, Optimizer&) {
                             std::ofstream(at + "/values.json") << "{\"loss\":2.5}";
                             nxd::load(at, m);
                           }),
         Code::kFormat, "values.json");
  const auto save_error = [&](const std::vector<nxd::DictItem>& dict) {
    return thrown_by([&] { on_model_parallel(1, 1, [&] { nxd::save(dict, path()); }); });
  };
  expect(save_error({{"loss", std::numeric_limits<double>::quiet_NaN()}}), Code::kUsage,
         "key 'loss' is nan");
  expect(save_error({{"epoch", 1}, {"epoch", 2}}), Code::kUsage, "'epoch' is in the dict twice");
  expect(thrown_by([&] {
           on_model_parallel(1, 1, [&] {
             Model model;
             nxd::save({{"../model", nxd::state_dict(model)}}, path());
           });
         }),
         Code::kUsage, "key '../model' cannot be a file name");
  expect(thrown_by([] {
           nxd::save({{"epoch", 1}}, "nowhere");
         }),
         Code::kUsage, "initialize_model_parallel");
}

TEST(NxdCheckpoint, ModelWithOtherNames_IsUnchangedAndAllNamesAreListed) {
  struct Other : LayerGroup {
    Other() {
      add("embedding", embed);
      nxd::move_model_to_device(*this, at::kCPU, {.seed = 4});
    }
    nxd::ParallelEmbedding embed{kIds, kHidden};
  };
  const TempFolder folder;
  const std::string path = folder / "saved";
  const Error error = thrown_after_save(path, [&](Model&, Optimizer&) {
    Other other;
    const Tensor before = other.embed.parameters()[0]->leaf().detach().clone();
    try {
      nxd::load(path, other);
    } catch (const Error&) {
      EXPECT_TRUE(at::equal(other.embed.parameters()[0]->leaf(), before));
      throw;
    }
  });
  EXPECT_THAT(error.what(),
              HasSubstr("1 missing: embedding.weight; 7 that the model does not use"));
}

}  // namespace
}  // namespace cleave::nxd_checkpoint_test
