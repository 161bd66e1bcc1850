// Combinations that the facades do not support are refused, with the remedy, before training on
// wrong gradients. pairings_test.cc tests the supported ones.
#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/compat/oslo.h"
#include "tests/support/model_parallel.h"
#include "tests/support/pairings.h"
#include "tests/support/thrown.h"

namespace cleave::pairings::pairing_refusals_test {
namespace {

const Layout kOneRank{.name = "one rank"};

using test::on_groups;
using test::thrown_by;

void expect_refused(const std::function<void()>& action, const std::string& remedy) {
  const Error error = thrown_by(action);
  EXPECT_EQ(error.code(), Code::kUsage) << error.what();
  EXPECT_NE(std::string(error.what()).find(remedy), std::string::npos) << error.what();
}

nxd::NxDPPModelOptions pipeline_options(const Net& net) {
  return {.transformer_layer_cls = [](const Layer&) { return true; },
          .num_microbatches = 2,
          .output_loss_value_spec =
              [&net](const DTensor& output, const nxd::PipelineInputs& inputs) {
                return net.loss(output, inputs.at("input_ids"));
              },
          .auto_partition = true};
}

TEST(NxdPairings, Zero1BeforeItsGradientsAreReduced_IsRefused) {
  const Layout zero1{.name = "", .sharding = Sharding::kZero1};
  on_groups(1, 2, 1, [&] {
    const Net net = net_of(Facade::kNxd, zero1, get_tensor_model_parallel_group());
    nxd::move_model_to_device(*net.root, at::kCPU);
    const Parameters parameters = net.root->parameters();
    const auto optimizer = optimizer_of(parameters, zero1, get_data_parallel_group());
    backward(net, ids_of(0), 1, 1, Axis());
    const auto clip = [&] { nxd::clip_grad_norm(parameters, 1); };
    expect_refused(clip, "call reduce_gradients()");
    expect_refused([&] { clip_grad_norm(parameters, 1); }, "call reduce_gradients()");
    const auto step = [&] {
      nxd::optimizer_step(*optimizer, get_data_parallel_group(as_list), kLr);
    };
    expect_refused(step, "call reduce_gradients()");
    reduce(*optimizer);
    backward(net, ids_of(1), 1, 1, Axis());
    expect_refused([&] { reduce(*optimizer); }, "backward ran after the gradients were reduced");
  });
}

TEST(NxdPairings, SecondRunTrainBeforeZeroGrad_IsRefused) {
  for (const int pp : {1, 2}) {
    on_groups(pp, 1, 1, [&] {
      const Net net = net_of(Facade::kNxd, kOneRank, Axis());
      nxd::NxDPPModel model(*net.root, net.sequence, pipeline_options(net));
      Optimizer optimizer(model.local_parameters(), {});
      const auto run = [&] { (void)model.run_train({{"input_ids", ids_of(0)}}); };
      run();
      optimizer.step(kLr);
      expect_refused(run, "zero_grad()");
      optimizer.zero_grad();
      run();
    });
  }
}

TEST(NxdPairings, FsdpOnPartOfAPipelineOrAfterIt_IsRefused) {
  on_groups(1, 2, 1, [&] {
    const Net part = net_of(Facade::kNxd, kOneRank, Axis());
    fully_shard(*part.sequence[1], get_data_parallel_group());
    expect_refused([&] { nxd::NxDPPModel(*part.root, part.sequence, pipeline_options(part)); },
                   "call fully_shard on each layer");
    // After NxDPPModel, the layers report their gradients to it: fully_shard refuses if it cannot
    // be outermost, otherwise the first step refuses.
    const Net net = net_of(Facade::kNxd, kOneRank, Axis());
    nxd::NxDPPModel model(*net.root, net.sequence, pipeline_options(net));
    const Error error = thrown_by([&] {
      for (Layer* layer : net.sequence) fully_shard(*layer, get_data_parallel_group());
      (void)model.run_train({{"input_ids", ids_of(0)}});
    });
    EXPECT_EQ(error.code(), Code::kUsage) << error.what();
  });
}

// Otherwise each stage would clip by its own norm.
TEST(NxdPairings, StagesWithoutAPipeline_AreRefused) {
  on_groups(2, 1, 1, [&] {
    const Net net = net_of(Facade::kNxd, kOneRank, Axis());
    nxd::move_model_to_device(*net.root, at::kCPU);
    backward(net, ids_of(0), 1, 1, Axis());
    expect_refused([&] { nxd::clip_grad_norm(net.root->parameters(), 1); },
                   "NxDPPModel::run_train");
  });
}

TEST(CustomLoopPairings, PartialGradients_AreRefusedByNormAndStep) {
  Layout layout{.name = "", .tp = 2, .sequence_parallel = true};
  on_groups(1, 1, 2, [&] {
    const Net net = net_of(Facade::kCustomLoop, layout, get_tensor_model_parallel_group());
    materialize(*net.root, {.seed = kSeed});
    const Parameters parameters = net.root->parameters();
    Optimizer optimizer(parameters, {});
    backward(net, ids_of(0), 1, 1, get_tensor_model_parallel_group());
    expect_refused([&] { clip_grad_norm(parameters, 1); }, "call finish_gradients");
    expect_refused([&] { optimizer.step(kLr); }, "call finish_gradients");
    finish_gradients(parameters, get_tensor_model_parallel_group());
    clip_grad_norm(parameters, 1);
    optimizer.step(kLr);
    backward(net, ids_of(1), 1, 1, get_tensor_model_parallel_group());
    expect_refused([&] { finish_gradients(parameters, get_tensor_model_parallel_group()); },
                   "zero_grad()");
  });
  on_groups(2, 1, 1, [&] {
    const Net net = net_of(Facade::kCustomLoop, kOneRank, Axis());
    net.root->name_tree();
    PipelineModel pipeline(net.sequence, get_pipeline_model_parallel_group());
    for (Layer* layer : pipeline.local_layers()) materialize(*layer, {.seed = kSeed});
    const std::vector<MicroBatch> batch{{.input = DTensor(ids_of(0), Axis(), Replicate{})}};
    (void)pipeline.run_train(batch,
                             [&](const DTensor& y, size_t) { return net.loss(y, ids_of(0)); });
    finish_gradients(pipeline.parameters(), Axis());
    expect_refused([&] { clip_grad_norm(pipeline.parameters(), 1); }, "call sum_tied_gradients()");
  });
}

// Every rank names the parameter that is not finite, whichever stage holds it.
TEST(CustomLoopPairings, NotFiniteGradientOfAnotherStage_IsNamedOnEveryRank) {
  on_groups(2, 1, 1, [&] {
    const Net net = net_of(Facade::kCustomLoop, kOneRank, Axis());
    nxd::NxDPPModel model(*net.root, net.sequence, pipeline_options(net));
    (void)model.run_train({{"input_ids", ids_of(0)}});
    const std::string name = "model.layers.2.mlp.up_proj.weight";  // of the last stage
    for (const auto& p : model.local_parameters()) {
      if (p->name() == name) p->leaf().mutable_grad().fill_(std::nan(""));
    }
    EXPECT_EQ(clip_grad_norm(model.local_parameters(), 1).not_finite, name);
  });
}

TEST(OsloPairings, PipelineAndSequenceParallel_AreRefusedWithTheConfiguration) {
  const auto refused = [](const std::string& member) {
    const std::string text =
        R"({"model_parallelism": {"tensor_parallel_size": 2, )" + member + "}}";
    return thrown_by([&] { oslo::Config(Json::parse(text, "config")); });
  };
  EXPECT_EQ(refused(R"("pipeline_parallel_size": 2)").code(), Code::kFormat);
  EXPECT_EQ(refused(R"("sequence_parallel": true)").code(), Code::kFormat);
}

}  // namespace
}  // namespace cleave::pairings::pairing_refusals_test
