#include "t5.h"

#include <cmath>

#include <gtest/gtest.h>

#include "tests/support/golden.h"
#include "tests/support/paths.h"
#include "tests/support/ranks.h"

namespace encoder_decoder {
namespace {

std::vector<double> losses_on(const ParallelConfig& layout, uint64_t num_steps) {
  std::vector<double> out;
  run_ranks(
      layout.num_ranks(),
      [&](World& world) {
        at::get_num_threads();
        at::set_num_threads(1);
        const std::vector<double> losses = train(world, layout, num_steps);
        if (world.rank() == 0) out = losses;
      },
      RankOptions{.timeout_s = 20, .flight_log_folder = ""});
  return out;
}

// Oracle: one rank, in fp64. Adam divides by the root of a gradient's mean square, or by 1e-8, so
// the rounding of a gradient, about 1e-16, changes a weight by at most about 1e-10.
TEST(EncoderDecoder, EveryLayout_GivesTheLossesOfOneRank) {
  const std::vector<double> want = losses_on({.compute_type = at::kDouble}, 2);
  const std::vector<ParallelConfig> layouts = {
      {.pp = 2, .tp = 2},
      {.pp = 2, .tp = 2, .sequence_parallel = true, .recompute = RecomputeKind::kFull},
      {.pp = 2, .tp = 2, .schedule = ScheduleKind::kZeroBubble, .sequence_parallel = true},
      {.pp = 2,
       .stages_per_rank = 2,
       .schedule = ScheduleKind::kInterleaved,
       .recompute = RecomputeKind::kSelective},
      {.pp = 4, .schedule = ScheduleKind::kGpipe, .recompute = RecomputeKind::kFull},
      {.tp = 4, .sequence_parallel = true, .recompute = RecomputeKind::kSelective},
      {.dp = 2, .tp = 2, .sharding = DataSharding::kZero1},
      {.pp = 2, .dp = 2, .sharding = DataSharding::kZero1, .recompute = RecomputeKind::kFull},
      {.dp = 2, .tp = 2, .sequence_parallel = true, .sharding = DataSharding::kFsdp},
      {.pp = 2, .dp = 2, .sharding = DataSharding::kFsdp, .recompute = RecomputeKind::kFull},
  };
  for (ParallelConfig layout : layouts) {
    layout.compute_type = at::kDouble;
    const std::vector<double> got = losses_on(layout, 2);
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got.at(i), want[i], 1e-9) << layout.describe() << ", step " << i;
    }
  }
}

// bf16 has 8 bits: a loss of weights and activations rounded to it is off by a few 2^-8.
TEST(EncoderDecoder, Bf16OverStagesAndTensorParallelRanks_IsNearFp32) {
  const double want = losses_on({}, 1).front();
  const ParallelConfig layout{.pp = 2, .tp = 2, .compute_type = at::kBFloat16};
  EXPECT_NEAR(losses_on(layout, 1).front(), want, want * 4 / 256);
}

// Without the encoder's states, the best loss is that of guessing among six ids.
TEST(EncoderDecoder, Training_LearnsToReadTheEncoder) {
  EXPECT_LT(losses_on({}, 80).back(), 0.8 * std::log(6.0));
}

/// One rank's part of a golden pass: "full", or "pad" with masks.
void expect_golden(const test::Tensors& golden, const std::string& pass, const Axis& tp,
                   bool sequence_parallel) {
  SCOPED_TRACE(pass + " tp=" + std::to_string(tp.size()));
  T5 model(Json::parse(R"({"vocab_size": 19, "hidden_size": 12, "num_attention_heads": 3,
                           "num_hidden_layers": 2})",
                       ""));
  parallelize_module(model, tp, model.plan(sequence_parallel));
  test::Tensors weights;
  for (const auto& p : model.parameters()) {
    const bool is_norm = p->shape().size() == 1;
    weights[p->name()] =
        test::golden_values(5, p->name(), p->shape(), is_norm ? 0.5F : 1.0F, is_norm ? 1.0F : 0.0F);
  }
  test::fill(model, weights, at::kFloat);
  const auto input = [&](const std::string& name, at::ScalarType type) {
    return DTensor(golden.at(pass + "." + name).to(type), tp, Replicate{});
  };
  Context context;
  context.values = NamedValues().with("decoder_ids", input("decoder_input_ids", at::kLong));
  if (pass == "pad") {
    context.values = context.values.with("encoder_mask", input("attention_mask", at::kBool))
                         .with("decoder_mask", input("decoder_attention_mask", at::kBool));
  }
  const DTensor logits = model(input("input_ids", at::kLong), context);
  const Tensor labels = golden.at(pass + ".labels").to(at::kLong);
  const Tensor loss = cross_entropy(logits, labels).local();
  EXPECT_NEAR(loss.item<float>(), golden.at(pass + ".loss").item<float>(), 1e-5);
  loss.backward();
  finish_gradients(model.parameters(), tp);
  const at::NoGradGuard no_grad;
  const Tensor real = labels.ne(-100).unsqueeze(-1);
  EXPECT_LE(
      test::largest_difference(logits.full_tensor() * real, golden.at(pass + ".logits") * real),
      5e-5);
  for (const auto& p : model.parameters()) {
    const Tensor& want = golden.at(pass + ".grad." + p->name());
    const double scale = std::max(1.0, want.abs().max().item<double>());
    EXPECT_LE(test::largest_difference(p->leaf().grad(), test::slice_of(*p, want)), 1e-5 * scale)
        << p->name();
  }
}

// Oracle: transformers' T5ForConditionalGeneration (tests/golden/make_t5.py), whose README has the
// tolerances.
TEST(EncoderDecoder, LogitsLossAndGradients_AreThoseOfTransformers) {
  const test::Tensors golden = test::read_tensors(test::source_file("tests/golden/t5.safetensors"));
  for (const int tp : {1, 2, 3}) {
    for (const bool sequence_parallel : {false, true}) {
      if (tp == 1 && sequence_parallel) continue;
      test::on_ranks(tp, [&](const Axis& axis) {
        expect_golden(golden, "full", axis, sequence_parallel);
        expect_golden(golden, "pad", axis, sequence_parallel);
      });
    }
  }
}

}  // namespace
}  // namespace encoder_decoder
