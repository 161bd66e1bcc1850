#include "cleave/optim/muon.h"

#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/optim/optimizer.h"
#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

namespace cleave::muon_test {
namespace {

using test::largest_difference;
using test::numbers;
using Kind = OptimizerOptions::Kind;

std::shared_ptr<Parameter> parameter(const std::string& name, const Tensor& value) {
  auto p = std::make_shared<Parameter>(value.sizes().vec(), Init::constant(0));
  p->set_name(name);
  p->set_leaf(value.clone());
  return p;
}

/// Muon's polynomial, five times.
double iterated(double s) {
  for (int i = 0; i < 5; ++i) s = s * (3.4445 + s * s * (-4.7750 + s * s * 2.0315));
  return s;
}

// Oracle: the iteration on the singular values, which it changes alone. 1e-12 is a few thousand
// roundings in fp64.
TEST(Orthogonalized, Matrix_KeepsItsSingularVectors) {
  for (const auto& shape : {std::vector<int64_t>{12, 8}, {8, 12}, {5, 5}, {1, 6}}) {
    const Tensor m = numbers(shape, 3);
    const auto [u, s, vh] = at::linalg_svd(m, /*full_matrices=*/false);
    Tensor wanted = (s / m.norm()).clone();
    for (int64_t i = 0; i < s.numel(); ++i) wanted[i] = iterated(wanted[i].item<double>());
    EXPECT_LE(largest_difference(orthogonalized(m), at::mm(u * wanted, vh)), 1e-12) << s.sizes();
    EXPECT_EQ(orthogonalized(m).sizes(), m.sizes());
  }
}

TEST(Orthogonalized, ZerosAndBf16_StayWhatTheyAre) {
  const Tensor zeros = at::zeros({3, 4});
  EXPECT_TRUE(at::equal(orthogonalized(zeros), zeros));
  EXPECT_EQ(orthogonalized(numbers({3, 4}, 1).to(at::kBFloat16)).scalar_type(), at::kBFloat16);
}

/// Three steps of the golden matrices in one optimizer.
void expect_golden(at::ScalarType type, double tolerance) {
  const test::Tensors golden =
      test::read_tensors(test::source_file("tests/golden/muon.safetensors"));
  const std::vector<std::string> names = {"tall", "wide", "square"};
  OptimizerOptions options{.kind = Kind::kMuon, .weight_decay = 0.3};
  Parameters parameters;
  for (const std::string& name : names) {
    options.matrices.insert(name);
    parameters.push_back(parameter(name, golden.at(name + ".start").to(type)));
  }
  Optimizer optimizer(parameters, options);
  for (int64_t t = 0; t < 3; ++t) {
    for (const auto& p : parameters) {
      p->leaf().mutable_grad() = golden.at(p->name() + ".gradients")[t].to(type).contiguous();
    }
    optimizer.step(0.01 * static_cast<double>(t + 1));
  }
  for (const Optimizer::State& state : optimizer.states()) {
    const std::string& name = state.parameter->name();
    const Tensor leaf = state.parameter->leaf().detach().to(at::kDouble);
    EXPECT_LE(largest_difference(leaf, golden.at(name + ".end")), tolerance) << name;
    EXPECT_LE(largest_difference(state.exp_avg.to(at::kDouble), golden.at(name + ".momentum")),
              tolerance)
        << name;
    EXPECT_FALSE(state.exp_avg_sq.defined());
  }
}

// The polynomial's slope at 0 is 3.4445^5 = 485: a rounding of the update grows by that much, and
// then is multiplied by at most lr 0.2 sqrt(9) = 0.018. Of about 20 roundings of each step: 3 x 20
// x 485 x 0.018 x 2^-53 = 6e-14, and 3e-5 in fp32.
TEST(Muon, StepsOfMatrices_AreThoseOfTorch) {
  expect_golden(at::kDouble, 1e-13);
  expect_golden(at::kFloat, 3e-5);
}

// Oracle: AdamW alone, with the same bits.
TEST(Muon, OtherParameters_AreUpdatedByAdamW) {
  const auto matrix = parameter("m", numbers({3, 4}, 1)),
             table = parameter("t", numbers({5, 2}, 2));
  const auto alone = parameter("t", numbers({5, 2}, 2));
  Optimizer muon({matrix, table}, {.kind = Kind::kMuon, .weight_decay = 0.1, .matrices = {"m"}});
  Optimizer adamw({alone}, {.weight_decay = 0.1});
  for (uint64_t t = 0; t < 3; ++t) {
    matrix->leaf().mutable_grad() = numbers({3, 4}, 20 + t);
    for (const auto& p : {table, alone}) p->leaf().mutable_grad() = numbers({5, 2}, 10 + t);
    muon.step(0.1);
    adamw.step(0.1);
  }
  EXPECT_TRUE(at::equal(table->leaf(), alone->leaf()));
}

TEST(Muon, OwnSettingsScaleAndCopy_Apply) {
  const Tensor start = numbers({3, 4}, 1).to(at::kFloat), g = numbers({3, 4}, 2).to(at::kFloat);
  const auto p = parameter("m", start);
  p->set_use(p->leaf().detach().to(at::kBFloat16));
  p->leaf().mutable_grad() = g;
  OptimizerOptions options{.kind = Kind::kMuon, .weight_decay = 0.5, .matrices = {"m"}};
  options.own = {{"m", {.lr_factor = 0.25, .weight_decay = 0.1}}};
  Optimizer(Parameters{p}, options).step(0.4, 0.125);  // the size of a gradient does not matter
  const Tensor wanted = start * (1 - 0.1 * 0.1) - orthogonalized(g) * (0.1 * 0.2 * 2);
  EXPECT_LE(largest_difference(p->leaf().detach(), wanted), 20 * 485 * 0.04 * 0x1p-24);
  EXPECT_TRUE(at::equal(p->use(), p->leaf().detach().to(at::kBFloat16)));
}

// A pipeline stage may give the parameters of the whole model, as for AdamW.
TEST(Muon, ParametersOfAnotherStage_AreLeftOut) {
  const auto other = std::make_shared<Parameter>(std::vector<int64_t>{3, 4}, Init::constant(0));
  other->set_name("other");
  const auto mine = parameter("mine", numbers({3, 4}, 1)),
             alone = parameter("mine", numbers({3, 4}, 1));
  const OptimizerOptions options{.kind = Kind::kMuon, .matrices = {"mine", "other"}, .ema = 0.5};
  Optimizer both({other, mine}, options), one({alone}, options, {other});
  for (const auto& p : {mine, alone}) p->leaf().mutable_grad() = numbers({3, 4}, 2);
  for (Optimizer* optimizer : {&both, &one}) {
    optimizer->step(0.1);
    optimizer->swap_ema();
  }
  EXPECT_TRUE(at::equal(mine->leaf(), alone->leaf()));
  EXPECT_EQ(both.step_bytes(), one.step_bytes());
}

TEST(Muon, WithoutMatricesOrWithAVector_IsRefused) {
  const auto vector = parameter("v", numbers({3}, 1));
  EXPECT_EQ(test::thrown_by([&] { Optimizer({vector}, {.kind = Kind::kMuon}); }).code(),
            Code::kUsage);
  EXPECT_EQ(test::thrown_by([&] {
              Optimizer({vector}, {.kind = Kind::kMuon, .matrices = {"v"}});
            }).code(),
            Code::kUsage);
}

/// Calls for_whole_matrices on this rank's parts of `wholes`; the function is f(w) = w w^T w, which
/// no shard can compute alone.
void expect_whole(const Parameters& parameters, const std::vector<Tensor>& wholes) {
  const auto function = [](const Tensor& w) { return at::mm(at::mm(w, w.t()), w); };
  std::vector<int> taken(parameters.size(), 0);
  for_whole_matrices(
      parameters, [&](size_t i) { return parameters[i]->part_of(wholes[i]); }, function,
      [&](size_t i, const Tensor& part) {
        ++taken[i];
        const Tensor wanted = parameters[i]->part_of(function(wholes[i]));
        EXPECT_EQ(part.sizes(), wanted.sizes());
        EXPECT_TRUE(at::equal(part, wanted)) << parameters[i]->name();
      });
  for (const int times : taken) EXPECT_EQ(times, 1);
}

// Whole numbers have exact products, so that the bits must be equal.
TEST(ForWholeMatrices, ShardsOfEveryKind_GetTheirPartsOfTheWhole) {
  for (const int num_ranks : {1, 2, 3}) {
    test::on_ranks(num_ranks, [&](const Axis& axis) {
      Parameters parameters;
      std::vector<Tensor> wholes;
      const auto add = [&](const std::vector<int64_t>& shape) {
        wholes.push_back(test::whole_numbers(shape, wholes.size()));
        parameters.push_back(std::make_shared<Parameter>(shape, Init::constant(0)));
        parameters.back()->set_name(str("p", wholes.size()));
        return parameters.back();
      };
      const int n = axis.size();
      add({7, 4})->shard(axis, 0, Split::balanced(7, n));
      add({4, 7})->shard(axis, 1, Split::balanced(7, n));
      add({2, 3})->shard(axis, 0, Split::balanced(2, n));  // with three ranks one is empty
      add({5, 3})->replicate(axis);
      add({3, 3});
      std::vector<std::vector<Range>> copies(static_cast<size_t>(n), {{0, 2}, {4, 6}});
      copies.back() = std::vector<Range>{Range{0, 6}};
      add({6, 5})->shard(axis, 0, Split::intern(6, copies));  // overlapping
      expect_whole(parameters, wholes);
    });
  }
}

TEST(ForWholeMatrices, FlatShardsOfTensorParallelParts_AreJoined) {
  run_ranks(
      4,
      [&](World& world) {
        const Mesh mesh = Mesh::build(world, {{"dp", 2}, {"tp", 2}});
        Parameters parameters;
        std::vector<Tensor> wholes;
        for (int64_t i = 0; i < 7; ++i) {
          const std::vector<int64_t> shape{3 + i, 4};
          wholes.push_back(test::whole_numbers(shape, static_cast<uint64_t>(i)));
          parameters.push_back(std::make_shared<Parameter>(shape, Init::constant(0)));
          parameters.back()->set_name(str("p", i));
          parameters.back()->shard(mesh["tp"], 0, Split::balanced(3 + i, 2));
          // Uneven, and the first rank has nothing of the first matrix.
          const int64_t numel = c10::multiply_integers(parameters.back()->local_shape());
          const int64_t at = std::min<int64_t>(numel, 3 * i);
          parameters.back()->shard_flat(mesh["dp"],
                                        mesh["dp"].rank() == 0 ? Range{0, at} : Range{at, numel});
        }
        expect_whole(parameters, wholes);
      },
      RankOptions{.timeout_s = 20, .flight_log_folder = ""});
}

}  // namespace
}  // namespace cleave::muon_test
