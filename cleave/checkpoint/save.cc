#include "cleave/checkpoint/save.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include <c10/core/ScalarType.h>

#include "cleave/checkpoint/names.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave {

namespace fs = std::filesystem;

TensorGroup optimizer_group(const Optimizer& optimizer, const Parameters& parameters,
                            std::optional<at::ScalarType> weights_dtype, std::string stem) {
  TensorGroup group{.stem = std::move(stem), .tensors = {}};
  group.metadata = {{std::string(kNumSteps), std::to_string(optimizer.num_steps())}};
  std::map<const Parameter*, const Optimizer::State*> mine;
  for (const auto& state : optimizer.states()) mine[state.parameter.get()] = &state;
  CLEAVE_CHECK(!mine.empty(), Code::kUsage, "an optimizer without parameters cannot be saved");
  at::ScalarType leaf_type = mine.begin()->first->leaf().scalar_type();  // the widest
  for (const auto& [p, state] : mine) {
    leaf_type = c10::promoteTypes(leaf_type, p->leaf().scalar_type());
  }
  for (const auto& p : parameters) {
    const auto add = [&](std::string_view part, const Tensor& local) {
      group.tensors.push_back(
          {{state_name(part, p->name()), dtype_of(leaf_type), p->shape()}, p.get(), local});
    };
    const auto state = mine.find(p.get());
    const bool is_mine = state != mine.end();
    // If the files have the leaves' type, the weight is the master.
    if (weights_dtype && leaf_type != *weights_dtype) add(kMaster, p->leaf());
    if (!optimizer.has_moments()) continue;
    add(kExpAvg, is_mine ? state->second->exp_avg : Tensor());
    add(kExpAvgSq, is_mine ? state->second->exp_avg_sq : Tensor());
  }
  return group;
}

std::string config_with_dtype(const Json& config, at::ScalarType dtype) {
  auto json = nlohmann::ordered_json::parse(config.dump());
  const std::string value = dtype == at::kBFloat16 ? "bfloat16"
                            : dtype == at::kHalf   ? "float16"
                            : dtype == at::kDouble ? "float64"
                                                   : "float32";
  const bool is_newer_form = json.contains("dtype");
  if (is_newer_form) json["dtype"] = value;
  if (!is_newer_form || json.contains("torch_dtype")) json["torch_dtype"] = value;
  return json.dump(2) + "\n";
}

FolderContents contents_of(const Checkpoint& checkpoint) {
  FolderContents contents;
  const Parameters parameters = checkpoint.model->parameters();
  TensorGroup weights{.stem = "model", .tensors = {}, .carried = checkpoint.carried};
  for (const auto& p : parameters) {
    weights.tensors.push_back(
        {{p->name(), dtype_of(checkpoint.dtype), p->shape()}, p.get(), p->leaf()});
  }
  contents.groups.push_back(std::move(weights));
  if (checkpoint.optimizer != nullptr) {
    contents.groups.push_back(optimizer_group(*checkpoint.optimizer, parameters, checkpoint.dtype,
                                              std::string(kOptimizerStem)));
  }
  contents.files = {
      {"config.json", config_with_dtype(checkpoint.model->config(), checkpoint.dtype)}};
  contents.files.insert(contents.files.end(), checkpoint.files.begin(), checkpoint.files.end());
  contents.files.push_back({std::string(kStateName), checkpoint.state_json});
  return contents;
}

void save_checkpoint(const fs::path& target, const Checkpoint& checkpoint, const Writers& writers) {
  ShardedSave save(target, contents_of(checkpoint), writers);
  save.write();
  save.commit();
}

}  // namespace cleave
