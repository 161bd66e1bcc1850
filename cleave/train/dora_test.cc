// Training of adapters with magnitudes (DoRA). The goldens of PEFT are in lora_test.cc. Oracle of
// runs: one rank; of merged models: the closed form in fp64, and PEFT if CLEAVE_PYTHON has it.
#include <cmath>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include <ATen/ATen.h>

#include "cleave/checkpoint/adapter.h"
#include "cleave/checkpoint/convert.h"
#include "cleave/nn/linear.h"
#include "cleave/nn/magnitudes.h"
#include "cleave/parallel/parallelize.h"
#include "tests/support/lora_runs.h"

namespace cleave::dora_test {
namespace {

namespace fs = std::filesystem;

class Dora : public test::LoraRuns {
 protected:
  TrainOptions dora_options(const std::string& out) {
    TrainOptions o = options(out);
    o.dora = true;
    return o;
  }
};

// Oracle: the norms of the matrix W + s B A itself.
TEST(Magnitudes, SquaresOfASum_AreThoseOfItsMatrix) {
  const auto values = [](const std::string& name, const std::vector<int64_t>& shape) {
    return test::golden_values(1, "magnitudes " + name, shape, 2, 0).to(at::kDouble);
  };
  const Tensor w = values("w", {7, 5});
  const Tensor a = values("a", {3, 5});
  const Tensor b = values("b", {7, 3});
  const Tensor got =
      squares_of_sum(w.square().sum(1), a.matmul(w.t()), {.a = a, .b = b, .scale = 1.5});
  const Tensor want = (w + 1.5 * b.matmul(a)).square().sum(1);
  EXPECT_LE(test::largest_difference(got, want), 1e-12);
}

// bf16: 16 bits would round the changes of magnitudes away.
TEST(Magnitudes, InBf16_AreReadInFp32) {
  const auto model =
      make_model(Json::parse_file(test::golden_folder("llama-6heads") + "/config.json"));
  const ParallelConfig config{.compute_type = at::kBFloat16,
                              .lora = LoraOptions{.rank = 2, .is_dora = true}};
  const Parallelized p = parallelize(*model, model->sequence(), {}, config);
  materialize(*model);
  p.gradients->refresh_weights();
  for (const auto& q : trained_of(p.parameters())) {
    const bool is_magnitude = q->name().ends_with("lora_magnitude_vector");
    EXPECT_EQ(is_magnitude, q->shape().size() == 1);
    EXPECT_EQ(q->use().scalar_type(), is_magnitude ? at::kFloat : at::kBFloat16) << q->name();
  }
}

// B starts as zeros and the magnitudes as norms, so the first loss is that of the model.
TEST_F(Dora, FirstLoss_IsThatOfTheModelOnEveryLayout) {
  TrainOptions one = options("lora");
  one.steps = 1;
  const double want = losses(one).front();
  TrainOptions tp = dora_options("tp");
  tp.tp = 2;
  TrainOptions fsdp = dora_options("fsdp");
  fsdp.tp = 2;
  fsdp.dp = 2;
  fsdp.fsdp = true;
  TrainOptions zero = dora_options("zero");
  zero.dp = 2;
  zero.zero = 1;
  for (TrainOptions o : {dora_options("one"), tp, fsdp, zero}) {
    o.steps = 1;
    EXPECT_NEAR(losses(o).front(), want, 1e-5 * want) << o.out;
  }
}

TEST_F(Dora, EveryLayoutAndAResumedRun_HaveTheLossesOfOneRank) {
  const std::vector<double> want = losses(dora_options("one"));
  const std::vector<double> plain = losses(options("plain"));
  EXPECT_NE(want.back(), plain.back());
  TrainOptions pp = dora_options("pp");
  pp.pp = 2;
  pp.tp = 2;
  pp.recompute = "full";
  TrainOptions fsdp = dora_options("fsdp");
  fsdp.tp = 2;
  fsdp.dp = 2;
  fsdp.fsdp = true;
  TrainOptions resumed = resumed_at_3(dora_options("resumed"));
  TrainOptions other = resumed;
  other.dora = false;
  EXPECT_NE(error_of(other).find("--dora; give the same values"), std::string::npos)
      << error_of(other);
  resumed.dp = 2;
  resumed.zero = 1;
  for (const TrainOptions& o : {pp, fsdp, resumed}) expect_losses(o, want);
}

TEST_F(Dora, WithDropoutAndAQuantizedBase_EveryLayoutHasTheLossesOfOneRank) {
  for (const std::string form : {"int8", "nf4"}) {
    const auto both = [&](const std::string& out) {
      TrainOptions o = dora_options(out + form);
      o.lora_dropout = 0.5;
      o.lora_base = form;
      o.rslora = true;
      return o;
    };
    const std::vector<double> want = losses(both("one"));
    TrainOptions tp = both("tp");
    tp.tp = 2;
    tp.sequence_parallel = true;
    tp.recompute = "full";
    TrainOptions fsdp = both("fsdp");
    fsdp.dp = 2;
    fsdp.fsdp = true;
    for (const TrainOptions& o : {tp, fsdp}) expect_losses(o, want);
  }
}

// 8 bits over two layers. fp16 leaves out the steps in which the scaled gradients overflow, so only
// its first loss is that of fp32.
TEST_F(Dora, In16Bits_GivesTheLossesOfFp32) {
  const std::vector<double> want = losses(dora_options("fp32"));
  for (const std::string dtype : {"bf16", "fp16"}) {
    TrainOptions o = dora_options(dtype);
    o.dtype = dtype;
    const std::vector<double> got = losses(o);
    ASSERT_EQ(got.size(), want.size());
    const size_t count = dtype == "bf16" ? want.size() : 1;
    for (size_t i = 0; i < count; ++i) EXPECT_NEAR(got[i], want[i], 0.02 * want[i]) << dtype;
    EXPECT_TRUE(std::isfinite(got.back())) << dtype;
  }
}

TEST_F(Dora, SavedAdapter_MergesIntoAPlainModelAsInPeft) {
  const TrainOptions o = dora_options("run");
  cleave_train(o);
  const fs::path adapter = fs::path(o.out) / "step_00000006";
  const auto config = nlohmann::json::parse(read_file(adapter / "adapter_config.json"));
  EXPECT_EQ(config["use_dora"], true);
  ConvertOptions c;
  c.from = o.out;
  c.to = folder_ / "merged";
  convert(c);
  const test::Tensors base = test::read_tensors(base_);
  const test::Tensors low = test::read_tensors(adapter / "adapter_model.safetensors");
  const test::Tensors merged = test::read_tensors(c.to);
  int num_changed = 0;
  for (const auto& [name, value] : base) {
    const std::string stem = adapter_name(name.substr(0, name.rfind('.') + 1));
    Tensor want = value.to(at::kDouble);
    if (low.contains(stem + "lora_A.weight")) {
      ++num_changed;
      want = want + 2 * low.at(stem + "lora_B.weight")
                            .to(at::kDouble)
                            .matmul(low.at(stem + "lora_A.weight").to(at::kDouble));
      const Tensor magnitudes = low.at(stem + "lora_magnitude_vector").to(at::kDouble);
      want = want * (magnitudes / want.square().sum(1).sqrt()).unsqueeze(1);
    }
    EXPECT_LE(test::largest_difference(merged.at(name), want), 1e-6) << name;
  }
  EXPECT_EQ(num_changed * 3, std::ssize(low));
  expect_merged_as_peft_does(adapter, c.to);
}

// A folder that says that it has magnitudes, and none that does.
TEST_F(Dora, MagnitudesThatDoNotFitTheConfig_AreRefused) {
  TrainOptions o = options("run");
  o.steps = 1;
  cleave_train(o);
  const fs::path adapter = fs::path(o.out) / "step_00000001";
  auto config = nlohmann::json::parse(read_file(adapter / "adapter_config.json"));
  config["use_dora"] = true;
  std::ofstream(adapter / "adapter_config.json") << config.dump();
  const ModelFolder folder = ModelFolder::open(base_, adapter);
  const auto model = make_model(folder.config);
  try {
    AdapterDelta(adapter, *model);
    FAIL() << "an adapter without magnitudes was opened";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFormat);
    EXPECT_NE(std::string(error.what()).find("lora_magnitude_vector"), std::string::npos)
        << error.what();
  }
}

}  // namespace
}  // namespace cleave::dora_test
