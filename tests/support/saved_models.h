#pragma once
#include <algorithm>
#include <filesystem>
#include <functional>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/hash.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/comm/api/world.h"
#include "cleave/mesh/mesh.h"
#include "tests/support/golden.h"

/// Small models with weights in closed form, and folders of them: the expected contents of files
/// are known without any reader or writer.
namespace cleave::test {

// 6 heads over 2 key/value heads: on 3 ranks, two ranks share one; 3 does not divide 50 rows.
inline constexpr std::string_view kLlamaConfig =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama",
  "vocab_size":50,"hidden_size":24,"intermediate_size":20,"num_hidden_layers":2,
  "num_attention_heads":6,"num_key_value_heads":2,"head_dim":4,"max_position_embeddings":64,
  "rms_norm_eps":1e-5,"hidden_act":"silu","tie_word_embeddings":false,"bos_token_id":1,
  "eos_token_id":2,"rope_theta":10000.0,"torch_dtype":"float32"})";

// 6 heads in a fused QKV matrix: a rank's columns are three ranges, uneven on 4 ranks.
inline constexpr std::string_view kGpt2Config =
    R"({"architectures":["GPT2LMHeadModel"],
  "model_type":"gpt2","vocab_size":50,"n_embd":24,"n_layer":2,"n_head":6,"n_inner":20,
  "n_positions":16,"torch_dtype":"float32"})";

inline constexpr std::string_view kBertConfig =
    R"({"architectures":["BertForMaskedLM"],"model_type":"bert","vocab_size":50,"hidden_size":24,
  "intermediate_size":20,"num_hidden_layers":2,"num_attention_heads":6,"hidden_act":"gelu",
  "max_position_embeddings":16,"type_vocab_size":2,"layer_norm_eps":1e-12,"pad_token_id":0,
  "tie_word_embeddings":true,"torch_dtype":"float32"})";

/// With a pooler and a next-sentence head, which are not in its sequence of layers.
inline constexpr std::string_view kBertPreTrainingConfig =
    R"({"architectures":["BertForPreTraining"],"model_type":"bert","vocab_size":50,
  "hidden_size":24,"intermediate_size":20,"num_hidden_layers":2,"num_attention_heads":6,
  "hidden_act":"gelu","max_position_embeddings":16,"type_vocab_size":2,"layer_norm_eps":1e-12,
  "pad_token_id":0,"tie_word_embeddings":true,"torch_dtype":"float32"})";

/// A config with other values.
inline std::string changed(std::string_view config, const nlohmann::json& values) {
  nlohmann::json all = nlohmann::json::parse(config);
  all.update(values);
  return all.dump();
}

struct Layout {
  int tp = 1, dp = 1;
};

/// Values that differ by tensor and position and are exact in bf16.
inline Tensor closed_form(const std::string& name, const std::vector<int64_t>& shape) {
  const auto start = static_cast<int64_t>(hash_bytes(name) % 251);
  Tensor t = at::arange(start, start + c10::multiply_integers(shape), at::kLong);
  return t.mul(37).remainder(251).sub(125).to(at::kFloat).div(64).reshape(shape);
}

inline void on_layout(const Layout& layout, const std::function<void(const Writers&)>& body) {
  run_ranks(layout.tp * layout.dp, [&](World& world) {
    const Mesh mesh = Mesh::build(world, {{"dp", layout.dp}, {"tp", layout.tp}});
    std::vector<int> all;
    for (int r = 0; r < world.size(); ++r) all.push_back(r);
    body({.world = Axis(world.group(all, "world")), .tp = mesh["tp"], .dp = mesh["dp"]});
  });
}

/// A model and its optimizer on one rank; every tensor of both from closed_form.
struct Training {
  explicit Training(const Axis& tp, at::ScalarType type = at::kFloat,
                    std::string_view config = kLlamaConfig)
      : model(make_model(Json::parse(config, "config.json"))) {
    parallelize_module(*model, tp, model->plan());
    model->name_tree();
    for (const auto& p : model->parameters()) p->set_leaf(part_of(*p, "").to(type));
    optimizer = std::make_unique<Optimizer>(model->parameters(), OptimizerOptions{});
    for (const auto& state : optimizer->states()) {
      state.exp_avg.detach().copy_(part_of(*state.parameter, "exp_avg."));
      state.exp_avg_sq.detach().copy_(part_of(*state.parameter, "exp_avg_sq."));
    }
    optimizer->set_num_steps(7);
  }

  static Tensor part_of(const Parameter& p, const std::string& prefix) {
    return slice_of(p, closed_form(prefix + p.name(), p.shape())).clone();
  }

  [[nodiscard]] Checkpoint checkpoint(int64_t step) const {
    Checkpoint c;
    c.step = step;
    c.model = model.get();
    c.optimizer = optimizer.get();
    c.state_json = str("{\"step\":", step, "}\n");
    c.files = {{"tokenizer.json", "{}"}};
    return c;
  }

  std::unique_ptr<Model> model;
  std::unique_ptr<Optimizer> optimizer;
};

/// Expects a safetensors file with this many tensors, each in closed form.
inline void expect_file_is_whole(const std::filesystem::path& path, size_t num_tensors) {
  const auto tensors = read_tensors(path);
  EXPECT_EQ(tensors.size(), num_tensors);
  for (const auto& [name, tensor] : tensors) {
    const Tensor want = closed_form(name, tensor.sizes().vec());
    EXPECT_TRUE(at::equal(tensor.to(at::kFloat), want)) << name;
  }
}

/// The tensors of a model's files.
inline std::vector<TensorInfo> tensors_of(std::string_view config) {
  const auto model = make_model(Json::parse(config, "config.json"));
  model->name_tree();
  std::vector<TensorInfo> tensors;
  for (const auto& p : model->parameters()) tensors.push_back({p->name(), DType::kF32, p->shape()});
  return tensors;
}

/// Writes a model folder with these tensors (F32) in one file, values in closed form times `scale`.
inline void write_model_folder(const std::filesystem::path& path, std::string_view config,
                               const std::vector<TensorInfo>& tensors, double scale = 1) {
  FolderWriter folder(path);
  const SafetensorsPlan plan(tensors);
  plan.create_files(folder);
  SafetensorsWriter writer(folder.path(), plan);
  for (const TensorInfo& tensor : tensors) {
    const Tensor values = closed_form(tensor.name, tensor.shape) * scale;
    writer.write_block(tensor.name, {},
                       {static_cast<const std::byte*>(values.const_data_ptr()), values.nbytes()});
  }
  writer.finish();
  folder.write_file("config.json", config);
  folder.commit();
}

/// Names of all entries of a folder, including hidden ones.
inline std::vector<std::string> names_below(const std::filesystem::path& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename().string());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace cleave::test
