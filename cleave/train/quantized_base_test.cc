// Training of LoRA adapters beside frozen weights in fewer bits. Oracle: a run beside the weights
// that the rounding leaves, made here by torch.
#include <filesystem>
#include <functional>
#include <limits>

#include <ATen/ATen.h>

#include "cleave/file/folder_writer.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/model/model.h"
#include "cleave/parallel/lora.h"
#include "cleave/planner/forecast.h"
#include "cleave/planner/layout_options.h"
#include "cleave/report/record.h"
#include "tests/support/lora_runs.h"
#include "tests/support/quantized_values.h"

namespace cleave::quantized_base_test {
namespace {

namespace fs = std::filesystem;

class QuantizedBase : public test::LoraRuns, public testing::WithParamInterface<const char*> {
 protected:
  TrainOptions quantized_options(const std::string& out) {
    TrainOptions o = options(out);
    o.lora_base = GetParam();
    return o;
  }

  /// A copy of the base model with other matrices in its blocks.
  std::string changed_base(const std::function<Tensor(const Tensor&)>& change) {
    test::Tensors tensors = test::read_tensors(base_);
    std::vector<TensorInfo> infos;
    for (auto& [name, t] : tensors) {
      if (name.find(".layers.") != std::string::npos && t.dim() == 2) t = change(t).contiguous();
      infos.push_back({.name = name, .dtype = dtype_of(t.scalar_type()), .shape = t.sizes().vec()});
    }
    const SafetensorsPlan plan(infos);
    const fs::path folder = folder_ / "changed";
    fs::remove_all(folder);
    FolderWriter writer(folder);
    plan.create_files(writer);
    SafetensorsWriter blocks(writer.path(), plan);
    for (const auto& [name, t] : tensors) {
      blocks.write_block(name, {}, {static_cast<const std::byte*>(t.const_data_ptr()), t.nbytes()});
    }
    blocks.finish();
    writer.write_file("config.json", read_file(fs::path(base_) / "config.json"));
    writer.commit();
    return folder;
  }
};

// fp32: rounding of sums in another order, which Adam enlarges over six steps. bf16: 8 bits.
TEST_P(QuantizedBase, Losses_AreThoseOfTheRoundedWeights) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    TrainOptions plain = options("plain" + dtype);
    const bool is_int8 = GetParam() == std::string("int8");
    plain.model = changed_base([&](const Tensor& matrix) {
      return is_int8 ? test::rounded_to_int8(matrix, 0) : test::rounded_to_nf4(matrix, 0);
    });
    plain.dtype = dtype;
    const std::vector<double> want = losses(plain);
    TrainOptions quantized = quantized_options("quantized" + dtype);
    quantized.dtype = dtype;
    const std::vector<double> got = losses(quantized);
    ASSERT_EQ(got.size(), want.size());
    const double bound = dtype == "fp32" ? 2e-4 : 2e-2;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], bound * want[i]) << i;
  }
}

TEST_P(QuantizedBase, EveryLayoutAndAResumedRun_HaveTheLossesOfOneRank) {
  const std::vector<double> want = losses(quantized_options("one"));
  const std::vector<double> plain = losses(options("plain"));
  EXPECT_NE(want.front(), plain.front());
  TrainOptions tp = quantized_options("tp");
  tp.tp = 2;
  tp.sequence_parallel = true;
  TrainOptions pp = quantized_options("pp");
  pp.pp = 2;
  pp.dp = 2;
  pp.zero = 1;
  pp.recompute = "full";
  TrainOptions fsdp = quantized_options("fsdp");
  fsdp.dp = 2;
  fsdp.tp = 2;
  fsdp.fsdp = true;
  TrainOptions resumed = resumed_at_3(quantized_options("resumed"));
  TrainOptions other = resumed;
  other.lora_base = "dtype";
  EXPECT_NE(error_of(other).find(str("--lora-base ", GetParam(), "; give the same values")),
            std::string::npos)
      << error_of(other);
  resumed.lora = 0;  // the checkpoint has the values
  resumed.lora_base = "dtype";
  resumed.lora_targets.clear();
  for (const TrainOptions& o : {tp, pp, fsdp, resumed}) expect_losses(o, want);
}

TEST_P(QuantizedBase, WeightThatIsNotFinite_IsRefusedByName) {
  TrainOptions o = quantized_options("broken");
  o.model = changed_base([](const Tensor& matrix) {
    Tensor broken = matrix.clone();
    broken[0][0] = std::numeric_limits<float>::quiet_NaN();
    return broken;
  });
  const std::string error = error_of(o);
  EXPECT_NE(error.find(str("has a NaN or infinity, which ", GetParam(), " cannot represent")),
            std::string::npos)
      << error;
}

// Oracle: the forecast, whose weights are a closed form below.
TEST_P(QuantizedBase, WeightsInTheReport_HaveTheirScales) {
  const TrainOptions o = quantized_options("report");
  losses(o);
  const ParallelConfig layout{.lora = lora_from(o)};
  const Forecast planned = forecast(Json::parse_file(base_ + "/config.json"), layout,
                                    {.batch_size = 4, .micro_batch_size = 4, .seq_len = 12});
  const NamesAndBytes held = read_record(o.out).memory.at(0).bytes;
  ASSERT_EQ(held.at(0).first, "weights");
  EXPECT_EQ(held.at(0).second, planned.ranks[0].memory.weights);
}

INSTANTIATE_TEST_SUITE_P(Forms, QuantizedBase, testing::Values("int8", "nf4"),
                         [](const auto& form) { return std::string(form.param); });

// Oracle: a byte for each element of the blocks' matrices, 4 for each of their rows; in nf4 half a
// byte, and 4 for each 64 inputs of a row. 2 for each other frozen element; 4 bytes of master
// weight and 2 of its copy for each of an adapter.
TEST(QuantizedBaseForecast, Weights_AreCountedInTheirForm) {
  const Json config = Json::parse_file(test::golden_folder("llama-6heads") + "/config.json");
  for (const QuantizedForm form : {QuantizedForm::kInt8, QuantizedForm::kNf4}) {
    const bool is_int8 = form == QuantizedForm::kInt8;
    const ParallelConfig layout{.compute_type = at::kBFloat16,
                                .lora = LoraOptions{.rank = 4, .base_form = form}};
    const auto model = make_model(config);
    attach_lora(*model, model->sequence(), *layout.lora, layout.compute_type);
    int64_t bytes = 0;
    for (const auto& p : model->parameters()) {
      if (p->is_adapter() || p->name().find(".layers.") == std::string::npos ||
          p->shape().size() != 2) {
        bytes += (p->is_adapter() ? 6 : 2) * p->numel();
        continue;
      }
      const int64_t num_blocks = is_int8 ? 1 : (p->shape()[1] + 63) / 64;
      bytes += (is_int8 ? p->numel() : p->numel() / 2) + 4 * p->shape()[0] * num_blocks;
    }
    const Forecast planned =
        forecast(config, layout, {.batch_size = 2, .micro_batch_size = 2, .seq_len = 8});
    EXPECT_EQ(planned.ranks[0].memory.weights, bytes) << name(form);
  }
}

// Oracle: one token needs almost no activations, so the peak is where the largest matrix is read:
// 2048 x 64 numbers in fp32, and in int8 again divided by their scales. In nf4 forward needs as
// much as reading, and fewer than 16 activations of 2048 elements.
TEST(QuantizedBaseForecast, MatrixThatIsRead_IsCounted) {
  const Json config = Json::parse(R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 64,
      "intermediate_size": 2048, "num_hidden_layers": 1, "num_attention_heads": 2})",
                                  "config.json");
  const auto bytes_beside_weights = [&](QuantizedForm form) {
    const ParallelConfig layout{
        .lora = LoraOptions{.rank = 1, .base_form = form, .targets = {"q_proj"}}};
    const MemoryForecast m =
        forecast(config, layout, {.batch_size = 1, .micro_batch_size = 1, .seq_len = 1})
            .ranks[0]
            .memory;
    return m.total() - m.weights;
  };
  constexpr int64_t kMatrix = 4 * 2048 * 64;
  EXPECT_EQ(bytes_beside_weights(QuantizedForm::kInt8), 2 * kMatrix);
  EXPECT_GE(bytes_beside_weights(QuantizedForm::kNf4), kMatrix);
  EXPECT_LE(bytes_beside_weights(QuantizedForm::kNf4), kMatrix + 16 * 4 * 2048);
}

}  // namespace
}  // namespace cleave::quantized_base_test
