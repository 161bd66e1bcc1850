// Every way to train (NxD's calls, NxDPPModel, OSLO's, the notebook's layers, a custom loop) with
// every kind of parallelism, in fp32 and bf16 with the default kernels. Oracle: the same batch on
// one rank, with libtorch's kernels, where nothing is summed over ranks. Unsupported pairs are
// refused before the first step: pairing_refusals_test.cc.
#include "tests/support/pairings.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <optional>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/compat/oslo.h"
#include "cleave/runtime/kernel_switches.h"
#include "tests/support/golden.h"
#include "tests/support/rounding.h"

namespace cleave::pairings::pairings_test {
namespace {

const Layout kLayouts[] = {
    {.name = "one rank"},
    {.name = "tp", .tp = 2},
    {.name = "sp", .tp = 2, .sequence_parallel = true},
    {.name = "pp", .pp = 2, .parts = 2},
    {.name = "pp sp", .pp = 2, .tp = 2, .sequence_parallel = true, .parts = 2},
    {.name = "dp", .dp = 2},
    {.name = "zero1", .dp = 2, .sharding = Sharding::kZero1},
    {.name = "fsdp", .dp = 2, .sharding = Sharding::kFsdp},
    {.name = "accumulation", .dp = 2, .parts = 2},
    {.name = "zero1 accumulation", .dp = 2, .sharding = Sharding::kZero1, .parts = 2},
    {.name = "fsdp accumulation", .dp = 2, .sharding = Sharding::kFsdp, .parts = 2},
    {.name = "recompute", .recompute = true},
    {.name = "sp recompute", .tp = 2, .sequence_parallel = true, .recompute = true},
    {.name = "pp recompute", .pp = 2, .parts = 2, .recompute = true},
    {.name = "fsdp recompute", .dp = 2, .sharding = Sharding::kFsdp, .recompute = true},
    {.name = "zero1 tp", .dp = 2, .tp = 2, .sharding = Sharding::kZero1},
    {.name = "fsdp sp", .dp = 2, .tp = 2, .sequence_parallel = true, .sharding = Sharding::kFsdp},
    {.name = "pp dp", .pp = 2, .dp = 2, .parts = 2},
    {.name = "pp zero1", .pp = 2, .dp = 2, .sharding = Sharding::kZero1, .parts = 2},
    {.name = "pp fsdp", .pp = 2, .dp = 2, .sharding = Sharding::kFsdp, .parts = 2},
};

/// Results of a run: means over the global batch, norms before clipping.
struct Record {
  std::vector<double> losses, norms;
  std::map<std::string, Tensor> weights;
};

/// `type` is that of weights, moments and activations, which start as numbers of the type `start`.
Record run_on_one_rank(Facade facade, double max_norm, at::ScalarType type, at::ScalarType start) {
  Record record;
  run_ranks(1, [&](World& world) {
    at::get_num_threads();
    at::set_num_threads(1);
    initialize_model_parallel(world, {});
    const Net net = net_of(facade, kLayouts[0], Axis());
    net.root->name_tree();
    for (const auto& p : net.root->parameters()) {
      p->set_leaf(p->initial_value(kSeed, start).to(type));
    }
    Optimizer optimizer(net.root->parameters(), optimizer_options());
    for (int64_t step = 0; step < kSteps; ++step) {
      const Tensor loss = net.loss_of(ids_of(step), Axis());
      loss.backward();
      record.losses.push_back(loss.item<double>());
      double squares = 0;
      for (const auto& p : net.root->parameters()) {
        squares += p->leaf().grad().to(at::kDouble).square().sum().item<double>();
      }
      record.norms.push_back(std::sqrt(squares));
      optimizer.step(kLr, std::min(1.0, max_norm / (record.norms.back() + 1e-6)));
      optimizer.zero_grad();
    }
    for (const auto& p : net.root->parameters()) record.weights[p->name()] = p->leaf().detach();
    destroy_model_parallel();
  });
  return record;
}

double largest(const std::vector<double>& a, const std::vector<double>& b) {
  double most = 0;
  for (size_t i = 0; i < a.size(); ++i) most = std::max(most, std::abs(a[i] - b[i]));
  return most;
}

/// One rank's numbers, and a bound on their difference from another order of the same sums.
///
/// Its distance from fp64 is the error of one order. In fp32 the bound is 16 times that: a gradient
/// that is counted twice or left out differs by thousands of times that. In bf16, where every
/// gradient is rounded to 8 bits, it is that of tests/support/rounding.h, for weights by the norm
/// of each tensor: the largest element's rounding is as large as a step.
struct Want {
  at::ScalarType type;
  Record record;
  double loss_tolerance = 0, norm_tolerance = 0, weight_tolerance = 0;
  std::map<std::string, double> norm_tolerances;  ///< of weights in bf16

  Want(Facade facade, double max_norm, at::ScalarType t) : type(t) {
    set_plain_kernels("all");
    record = run_on_one_rank(facade, max_norm, type, type);
    const bool is_narrow = type == at::kBFloat16;
    const Record exact =
        run_on_one_rank(facade, max_norm, at::kDouble, is_narrow ? type : at::kDouble);
    set_plain_kernels("");
    loss_tolerance = tolerance(largest(record.losses, exact.losses), exact.losses[0]);
    norm_tolerance = tolerance(largest(record.norms, exact.norms), exact.norms[0]);
    double error = 0;
    for (const auto& [name, weight] : record.weights) {
      const Tensor& precise = exact.weights.at(name);
      error = std::max(error, test::largest_difference(weight, precise));
      norm_tolerances[name] =
          test::norm_rounding_bound((weight - precise).norm().item<double>(),
                                    test::unit_roundoff(type) * precise.norm().item<double>());
    }
    weight_tolerance = tolerance(error, 1);
  }

 private:
  /// The distance may be small by chance, so one rounding error of the value counts too.
  [[nodiscard]] double tolerance(double error, double value) const {
    const double rounding = test::unit_roundoff(type) * value;
    return type == at::kBFloat16 ? test::rounding_bound(error, rounding)
                                 : 16 * std::max(error, rounding);
  }
};

void expect_weights(const Want& want, const Parameters& parameters) {
  for (const auto& p : parameters) {
    const Tensor part = p->part_of(want.record.weights.at(p->name()));
    if (part.numel() == 0) continue;
    EXPECT_EQ(p->leaf().scalar_type(), want.type) << p->name();
    const Tensor off = (p->leaf().detach() - part).to(at::kDouble);
    if (want.type == at::kBFloat16) {
      EXPECT_LE(off.norm().item<double>(), want.norm_tolerances.at(p->name())) << p->name();
    } else {
      EXPECT_LE(off.abs().max().item<double>(), want.weight_tolerance) << p->name();
    }
  }
}

/// Losses and norms of one rank of a run.
struct Seen {
  const Want& want;
  const Axis& dp;
  size_t step = 0;

  /// `loss` is that of this data-parallel rank's sequences.
  void note(double loss, std::optional<double> norm) {
    const Tensor sum = dp.all_reduce(at::scalar_tensor(loss, at::kDouble), "loss");
    note_mean(sum.item<double>() / dp.size(), norm);
  }
  void note_mean(double loss, std::optional<double> norm) {
    EXPECT_NEAR(loss, want.record.losses[step], want.loss_tolerance) << "step " << step;
    if (norm) {
      EXPECT_NEAR(*norm, want.record.norms[step], want.norm_tolerance) << "step " << step;
    }
    ++step;
  }
};

/// Without a limit, every second step is optimizer_step() alone, which completes gradients too.
std::optional<double> nxd_norm(const Parameters& parameters, double max_norm, int64_t step) {
  if (std::isinf(max_norm) && step % 2 == 1) return std::nullopt;
  return nxd::clip_grad_norm(parameters, max_norm);
}

void train_with_nxd(Facade facade, const Layout& layout, double max_norm, const Want& want) {
  const Axis& tp = get_tensor_model_parallel_group();
  const Axis& dp = get_data_parallel_group();
  const Net net = net_of(facade, layout, tp);
  shard(net, layout, dp);
  nxd::move_model_to_device(*net.root, at::kCPU, {.seed = kSeed, .dtype = want.type});
  const Parameters parameters = net.root->parameters();
  const auto optimizer = optimizer_of(parameters, layout, dp);
  Seen seen{want, dp};
  for (int64_t step = 0; step < kSteps; ++step) {
    const Tensor rows = part_of(ids_of(step), dp.rank(), dp.size());
    const double loss = backward(net, rows, layout.parts, 1.0 / layout.parts, tp);
    reduce(*optimizer);
    seen.note(loss, nxd_norm(parameters, max_norm, step));
    nxd::optimizer_step(*optimizer, get_data_parallel_group(as_list), kLr);
    optimizer->zero_grad();
  }
  expect_weights(want, parameters);
}

void train_with_nxd_pipeline(Facade facade, const Layout& layout, double max_norm,
                             const Want& want) {
  const Axis& dp = get_data_parallel_group();
  const Net net = net_of(facade, layout, get_tensor_model_parallel_group());
  shard(net, layout, dp);
  nxd::NxDPPModel model(*net.root, net.sequence,
                        {.transformer_layer_cls = [](const Layer&) { return true; },
                         .num_microbatches = layout.parts,
                         .output_loss_value_spec =
                             [&](const DTensor& output, const nxd::PipelineInputs& inputs) {
                               return net.loss(output, inputs.at("input_ids"));
                             },
                         .broadcast_and_average_loss = true,
                         .seed = kSeed,
                         .dtype = want.type,
                         .use_zero1_optimizer = layout.sharding == Sharding::kZero1,
                         .auto_partition = true});
  const Parameters parameters = model.local_parameters();
  Optimizer optimizer(parameters, optimizer_options());
  Seen seen{want, dp};
  for (int64_t step = 0; step < kSteps; ++step) {
    const Tensor rows = part_of(ids_of(step), dp.rank(), dp.size());
    const double loss = model.run_train({{"input_ids", rows}})[0];
    seen.note_mean(loss, nxd_norm(parameters, max_norm, step));
    nxd::optimizer_step(optimizer, get_data_parallel_group(as_list), kLr);
    optimizer.zero_grad();
  }
  expect_weights(want, parameters);
}

void train_with_oslo(const Layout& layout, double max_norm, const Want& want, World& world) {
  const std::string config = str(R"({"model_parallelism": {"tensor_parallel_size": )", layout.tp,
                                 R"(}, "activation_checkpointing": {"enable": )",
                                 layout.recompute ? "true" : "false", "}}");
  auto model = oslo::initialize(llama(), Json::parse(config, "config"), world);
  const Axis& dp = model.data_parallel();
  if (layout.sharding == Sharding::kFsdp) {
    for (Layer* layer : model.model().sequence()) fully_shard(*layer, dp);
  }
  materialize(model.model(), {.seed = kSeed, .dtype = want.type});
  const auto optimizer = optimizer_of(model.parameters(), layout, dp);
  Seen seen{want, dp};
  for (int64_t step = 0; step < kSteps; ++step) {
    const Tensor rows = part_of(ids_of(step), dp.rank(), dp.size());
    double loss = 0;
    for (int i = 0; i < layout.parts; ++i) {
      Batch batch;
      batch.ids = part_of(rows, i, layout.parts);
      batch.labels = batch.ids;
      const Tensor part = model(batch).loss / layout.parts;
      part.backward();
      loss += part.item<double>();
    }
    reduce(*optimizer);
    seen.note(loss, model.step(*optimizer, kLr, max_norm));
    optimizer->zero_grad();
  }
  expect_weights(want, model.parameters());
}

// Calls every reduction, also where FSDP or ZeRO-1 has already reduced: the second call does
// nothing.
void train_by_hand(const Layout& layout, double max_norm, const Want& want, World& world) {
  const Mesh mesh = Mesh::build(world, {{"pp", layout.pp}, {"dp", layout.dp}, {"tp", layout.tp}});
  const Axis tp = mesh["tp"], dp = mesh["dp"];
  const Net net = net_of(Facade::kCustomLoop, layout, tp);
  net.root->name_tree();
  PipelineModel pipeline(net.sequence, mesh["pp"]);
  shard(net, layout, dp);
  for (Layer* layer : pipeline.local_layers())
    materialize(*layer, {.seed = kSeed, .dtype = want.type});
  const Parameters& parameters = pipeline.parameters();
  const auto optimizer = optimizer_of(parameters, layout, dp, &pipeline);
  const double share = 1.0 / (layout.parts * dp.size());
  Seen seen{want, dp};
  for (int64_t step = 0; step < kSteps; ++step) {
    const Tensor rows = part_of(ids_of(step), dp.rank(), dp.size());
    double loss = 0;
    if (layout.pp == 1) {
      loss = backward(net, rows, layout.parts, share, tp);
    } else {
      std::vector<MicroBatch> parts;
      for (int i = 0; i < layout.parts; ++i) {
        parts.push_back({.input = DTensor(part_of(rows, i, layout.parts), tp, Replicate{})});
      }
      const auto loss_of = [&](const DTensor& output, size_t i) {
        return net.loss(output, parts[i].input.local()) * share;
      };
      for (const double part : pipeline.run_train(parts, loss_of)) loss += part * dp.size();
    }
    reduce(*optimizer);
    for (int twice = 0; twice < 2; ++twice) {
      reduce(*optimizer);
      finish_gradients(parameters, tp);
      sum_gradients(parameters, dp);
      pipeline.sum_tied_gradients();
    }
    seen.note(loss, clip_grad_norm(parameters, max_norm).value);
    optimizer->step(kLr);
    optimizer->zero_grad();
  }
  expect_weights(want, parameters);
}

class Pairings : public testing::TestWithParam<std::tuple<Facade, double, at::ScalarType>> {};

TEST_P(Pairings, OnEveryLayout_GiveLossNormAndWeightsOfOneRank) {
  const auto [facade, max_norm, type] = GetParam();
  const Want want(facade, max_norm, type);
  for (const Layout& layout : kLayouts) {
    // OSLO's configuration supports neither.
    if (facade == Facade::kOslo && (layout.pp > 1 || layout.sequence_parallel)) continue;
    run_ranks(
        layout.pp * layout.dp * layout.tp,
        [&](World& world) {
          SCOPED_TRACE(layout.name);
          at::get_num_threads();
          at::set_num_threads(1);
          if (facade == Facade::kOslo) return train_with_oslo(layout, max_norm, want, world);
          initialize_model_parallel(world, {.tensor_model_parallel_size = layout.tp,
                                            .pipeline_model_parallel_size = layout.pp});
          if (facade == Facade::kCustomLoop) {
            train_by_hand(layout, max_norm, want, world);
          } else {
            if (layout.pp == 1) train_with_nxd(facade, layout, max_norm, want);
            train_with_nxd_pipeline(facade, layout, max_norm, want);
          }
          destroy_model_parallel();
        },
        RankOptions{.timeout_s = 20, .flight_log_folder = ""});
  }
}

std::string name_of(const testing::TestParamInfo<Pairings::ParamType>& info) {
  const char* const facades[] = {"Nxd", "Oslo", "Notebook", "OwnLoop"};
  const auto [facade, max_norm, type] = info.param;
  return str(facades[static_cast<size_t>(facade)], std::isinf(max_norm) ? "" : "_Clipped",
             type == at::kBFloat16 ? "_Bf16" : "");
}

// The norms are between 0.5 and 10, so 0.25 always clips.
const auto kLimits = testing::Values(std::numeric_limits<double>::infinity(), 0.25);

INSTANTIATE_TEST_SUITE_P(Facades, Pairings,
                         testing::Combine(testing::Values(Facade::kNxd, Facade::kOslo,
                                                          Facade::kNotebook, Facade::kCustomLoop),
                                          kLimits, testing::Values(at::kFloat)),
                         &name_of);

// The notebook's layers choose their own dtype, fp32.
INSTANTIATE_TEST_SUITE_P(Narrow, Pairings,
                         testing::Combine(testing::Values(Facade::kNxd, Facade::kOslo,
                                                          Facade::kCustomLoop),
                                          kLimits, testing::Values(at::kBFloat16)),
                         &name_of);

}  // namespace
}  // namespace cleave::pairings::pairings_test
