#include "cleave/checkpoint/save.h"

#include <map>
#include <nlohmann/json.hpp>
#include <utility>

#include <c10/core/ScalarType.h>

#include "cleave/checkpoint/adapter.h"
#include "cleave/checkpoint/names.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave::inline checkpoint {

namespace fs = std::filesystem;

TensorGroup optimizer_group(const Optimizer& optimizer, const Parameters& parameters,
                            std::optional<at::ScalarType> weights_dtype, std::string stem) {
  TensorGroup group{.stem = std::move(stem), .tensors = {}};
  group.metadata = {{std::string(kNumSteps), std::to_string(optimizer.num_steps())}};
  std::map<const Parameter*, const Optimizer::State*> mine;
  for (const auto& state : optimizer.states()) mine[state.parameter.get()] = &state;
  // A pipeline stage whose weights are all frozen has no part of the trained ones.
  const bool is_elsewhere =
      !parameters.empty() && std::none_of(parameters.begin(), parameters.end(),
                                          [](const auto& p) { return p->leaf().defined(); });
  CLEAVE_CHECK(!mine.empty() || is_elsewhere, Code::kUsage,
               "an optimizer without parameters cannot be saved");
  // The widest of the leaves' types.
  at::ScalarType leaf_type = !mine.empty() ? mine.begin()->first->leaf().scalar_type()
                             : weights_dtype == at::kDouble ? at::kDouble
                                                            : at::kFloat;
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
    const auto add_state = [&](std::string_view part, Tensor Optimizer::State::*member) {
      add(part, is_mine ? state->second->*member : Tensor());
    };
    if (optimizer.has_ema()) add_state(kEma, &Optimizer::State::ema);
    if (optimizer.has_moments()) add_state(kExpAvg, &Optimizer::State::exp_avg);
    if (optimizer.has_second_moment(*p)) add_state(kExpAvgSq, &Optimizer::State::exp_avg_sq);
    // A weight that did not require grad in some steps has fewer than the optimizer.
    const bool is_here = is_mine && p->leaf().defined();
    if (optimizer.has_second_moment(*p)) {
      group.numbers.emplace_back(state_name(kNumSteps, p->name()),
                                 is_here ? state->second->num_steps : -1);
    }
  }
  group.usual_number = optimizer.num_steps();
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
  const bool is_adapter = !checkpoint.adapter_config.empty();
  const Parameters all = checkpoint.model->parameters();
  const Parameters parameters = is_adapter ? trained_of(all) : all;
  at::ScalarType dtype = checkpoint.dtype;
  if (is_adapter && dtype != at::kDouble) dtype = at::kFloat;  // as PEFT writes them
  TensorGroup weights{.stem = std::string(is_adapter ? kAdapterStem : "model"), .tensors = {}};
  if (!is_adapter) weights.carried = checkpoint.carried;
  for (const auto& p : parameters) {
    CLEAVE_CHECK(is_adapter || !(p->is_adapter() || p->is_quantized()), Code::kUsage, p->name(),
                 " is ", p->is_quantized() ? "a quantized base of adapters" : "part of an adapter",
                 "; set Checkpoint::adapter_config, to save the adapters alone");
    const std::string name = is_adapter ? adapter_name(p->name()) : p->name();
    weights.tensors.push_back({{name, dtype_of(dtype), p->shape()}, p.get(), p->leaf()});
  }
  contents.groups.push_back(std::move(weights));
  if (checkpoint.optimizer != nullptr) {
    contents.groups.push_back(optimizer_group(*checkpoint.optimizer, trained_of(all), dtype,
                                              std::string(kOptimizerStem)));
  }
  if (is_adapter) {
    contents.files = {{std::string(kAdapterConfigName), checkpoint.adapter_config}};
  } else {
    contents.files = {{"config.json", config_with_dtype(checkpoint.model->config(), dtype)}};
  }
  contents.files.insert(contents.files.end(), checkpoint.files.begin(), checkpoint.files.end());
  if (!checkpoint.state_json.empty()) {
    contents.files.push_back({std::string(kStateName), checkpoint.state_json});
  }
  return contents;
}

void save_checkpoint(const fs::path& target, const Checkpoint& checkpoint, const Writers& writers) {
  ShardedSave save(target, contents_of(checkpoint), writers);
  save.write();
  save.commit();
}

}  // namespace cleave::inline checkpoint
