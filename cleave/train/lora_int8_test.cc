// Training of LoRA adapters beside frozen weights in int8. Oracle: a run beside the weights that
// the rounding to int8 leaves, made here by torch.
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
#include "tests/support/lora_runs.h"

namespace cleave::lora_int8_test {
namespace {

namespace fs = std::filesystem;

class LoraInt8 : public test::LoraRuns {
 protected:
  TrainOptions int8_options(const std::string& out) {
    TrainOptions o = options(out);
    o.lora_base = "int8";
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

Tensor rounded_to_int8(const Tensor& matrix) {
  const Tensor scale = matrix.abs().amax(1, true) / 127;
  return (matrix / scale).round() * scale;
}

// fp32: rounding of sums in another order, which Adam enlarges over six steps. bf16: 8 bits.
TEST_F(LoraInt8, Losses_AreThoseOfTheRoundedWeights) {
  for (const std::string dtype : {"fp32", "bf16"}) {
    TrainOptions plain = options("plain" + dtype);
    plain.model = changed_base(rounded_to_int8);
    plain.dtype = dtype;
    const std::vector<double> want = losses(plain);
    TrainOptions int8 = int8_options("int8" + dtype);
    int8.dtype = dtype;
    const std::vector<double> got = losses(int8);
    ASSERT_EQ(got.size(), want.size());
    const double bound = dtype == "fp32" ? 2e-4 : 2e-2;
    for (size_t i = 0; i < want.size(); ++i) EXPECT_NEAR(got[i], want[i], bound * want[i]) << i;
  }
}

TEST_F(LoraInt8, EveryLayoutAndAResumedRun_HaveTheLossesOfOneRank) {
  const std::vector<double> want = losses(int8_options("one"));
  const std::vector<double> plain = losses(options("plain"));
  EXPECT_NE(want.front(), plain.front());
  TrainOptions tp = int8_options("tp");
  tp.tp = 2;
  tp.sequence_parallel = true;
  TrainOptions pp = int8_options("pp");
  pp.pp = 2;
  pp.dp = 2;
  pp.zero = 1;
  pp.recompute = "full";
  TrainOptions fsdp = int8_options("fsdp");
  fsdp.dp = 2;
  fsdp.tp = 2;
  fsdp.fsdp = true;
  TrainOptions resumed = resumed_at_3(int8_options("resumed"));
  TrainOptions other = resumed;
  other.lora_base = "dtype";
  EXPECT_NE(error_of(other).find("--lora-base int8; give the same values"), std::string::npos)
      << error_of(other);
  resumed.lora = 0;  // the checkpoint has the values
  resumed.lora_base = "dtype";
  resumed.lora_targets.clear();
  for (const TrainOptions& o : {tp, pp, fsdp, resumed}) expect_losses(o, want);
}

TEST_F(LoraInt8, WeightThatIsNotFinite_IsRefusedByName) {
  TrainOptions o = int8_options("broken");
  o.model = changed_base([](const Tensor& matrix) {
    Tensor broken = matrix.clone();
    broken[0][0] = std::numeric_limits<float>::quiet_NaN();
    return broken;
  });
  const std::string error = error_of(o);
  EXPECT_NE(error.find("has a NaN or infinity, which int8 cannot represent"), std::string::npos)
      << error;
}

// Oracle: a byte for each element of the blocks' matrices, 4 for each of their rows; 2 for each
// other frozen element; 4 bytes of master weight and 2 of its copy for each of an adapter.
TEST(LoraInt8Forecast, Weights_AreCountedInInt8) {
  const Json config = Json::parse_file(test::golden_folder("llama-6heads") + "/config.json");
  const ParallelConfig layout{.compute_type = at::kBFloat16,
                              .lora = LoraOptions{.rank = 4, .has_int8_base = true}};
  const auto model = make_model(config);
  attach_lora(*model, model->sequence(), *layout.lora, layout.compute_type);
  int64_t bytes = 0;
  for (const auto& p : model->parameters()) {
    const bool is_matrix =
        p->name().find(".layers.") != std::string::npos && p->shape().size() == 2;
    const int64_t each = p->is_adapter() ? 6 : is_matrix ? 1 : 2;
    bytes += each * p->numel();
    if (is_matrix && !p->is_adapter()) bytes += 4 * p->shape()[0];
  }
  const Forecast planned =
      forecast(config, layout, {.batch_size = 2, .micro_batch_size = 2, .seq_len = 8});
  EXPECT_EQ(planned.ranks[0].memory.weights, bytes);
}

// Oracle: one token needs almost no activations, so the peak is where the largest matrix is read:
// 2048 x 64 numbers in fp32, and again divided by their scales.
TEST(LoraInt8Forecast, MatrixThatIsRead_IsCounted) {
  const Json config = Json::parse(R"({"model_type": "llama", "vocab_size": 8, "hidden_size": 64,
      "intermediate_size": 2048, "num_hidden_layers": 1, "num_attention_heads": 2})",
                                  "config.json");
  const ParallelConfig layout{
      .lora = LoraOptions{.rank = 1, .has_int8_base = true, .targets = {"q_proj"}}};
  const MemoryForecast m =
      forecast(config, layout, {.batch_size = 1, .micro_batch_size = 1, .seq_len = 1})
          .ranks[0]
          .memory;
  EXPECT_EQ(m.total() - m.weights, int64_t{8} * 2048 * 64);
}

}  // namespace
}  // namespace cleave::lora_int8_test
