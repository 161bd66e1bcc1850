#include "cleave/compat/nxd_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include "cleave/checkpoint/load.h"
#include "cleave/checkpoint/run_folder.h"
#include "cleave/checkpoint/save.h"
#include "cleave/compat/parallel_state.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/file_lock.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/parallel/zero1.h"

namespace cleave::nxd {
namespace {

namespace fs = std::filesystem;

constexpr const char* kValuesName = "values.json";

void require_one_stage() {
  CLEAVE_CHECK(get_pipeline_model_parallel_size() == 1, Code::kUsage, "a dict of ",
               get_pipeline_model_parallel_size(),
               " pipeline stages cannot be saved or loaded; save each rank's "
               "NxDPPModel::local_state_dict(), or a Model by save_checkpoint");
}

/// `parameters`, checked to be on the tensor-parallel group.
Parameters saved_parameters(Parameters parameters) {
  const Axis& tp = get_tensor_model_parallel_group();
  for (const auto& p : parameters) {
    CLEAVE_CHECK(p->leaf().defined() && p->axis() == tp, Code::kUsage, p->name(),
                 " is not on the tensor-parallel group; call move_model_to_device(model, device) "
                 "before the optimizer is made, and give its layer no other group");
  }
  return parameters;
}

Parameters parameters_of(const Optimizer& optimizer) {
  Parameters parameters;
  for (const Optimizer::State& state : optimizer.states()) parameters.push_back(state.parameter);
  return parameters;
}

TensorGroup group_of(const std::string& key, const StateDict& state) {
  const Parameters parameters = saved_parameters(
      state.model != nullptr ? state.model->parameters() : parameters_of(*state.optimizer));
  CLEAVE_CHECK(!parameters.empty(), Code::kUsage, "key '", key, "' has no parameters to save");
  if (state.model == nullptr) {
    return optimizer_group(*state.optimizer, parameters, std::nullopt, key);
  }
  TensorGroup group{.stem = key, .tensors = {}};
  for (const auto& p : parameters) {
    const DType dtype = dtype_of(p->leaf().scalar_type());
    group.tensors.push_back({{p->name(), dtype, p->shape()}, p.get(), p->leaf()});
  }
  return group;
}

void add_value(nlohmann::ordered_json& values, const DictItem& item) {
  std::visit(
      [&](const auto& value) {
        using T = std::decay_t<decltype(value)>;
        if constexpr (std::is_same_v<T, Json>) {
          values[item.key] = nlohmann::ordered_json::parse(value.dump());
        } else if constexpr (!std::is_same_v<T, StateDict>) {
          values[item.key] = value;
        }
      },
      item.value);
}

FolderContents contents_of(const std::vector<DictItem>& dict) {
  FolderContents contents;
  auto values = nlohmann::ordered_json::object();
  std::set<std::string> keys;
  for (const DictItem& item : dict) {
    CLEAVE_CHECK(keys.insert(item.key).second, Code::kUsage, "key '", item.key,
                 "' is in the dict twice");
    if (const auto* number = std::get_if<double>(&item.value)) {
      CLEAVE_CHECK(std::isfinite(*number), Code::kUsage, "key '", item.key, "' is ", *number,
                   "; save needs finite numbers");
    }
    const auto* state = std::get_if<StateDict>(&item.value);
    if (state == nullptr) {
      add_value(values, item);
      continue;
    }
    CLEAVE_CHECK(is_file_name(item.key), Code::kUsage, "key '", item.key,
                 "' cannot be a file name; choose one word of letters, digits and _");
    contents.groups.push_back(group_of(item.key, *state));
  }
  contents.files = {{kValuesName, values.dump(2) + "\n"}};
  return contents;
}

/// Verifies a folder against its manifest and opens the tensors under a key.
Safetensors open_state(const std::string& path, const std::string& key) {
  require_one_stage();
  CLEAVE_CHECK(fs::exists(fs::path(path) / kValuesName), Code::kIo, path,
               " was not written by nxd::save: it has no ", kValuesName);
  verify_checkpoint(path, get_world_group());
  std::string keys;
  for (const auto& entry : fs::directory_iterator(path)) {
    if (entry.path().extension() != ".safetensors") continue;
    keys += (keys.empty() ? "" : ", ") + entry.path().stem().string();
  }
  CLEAVE_CHECK(is_file_name(key) && has_safetensors(path, key), Code::kFormat, path,
               " has no state under the key '", key, "'; it has ", keys.empty() ? "none" : keys);
  return Safetensors::open(path, key);
}

Json values_of(const std::string& path) {
  return Json::parse_file((fs::path(path) / kValuesName).string());
}

}  // namespace

StateDict state_dict(Layer& model) {
  return {.model = &model};
}

StateDict state_dict(const Optimizer& optimizer) {
  return {.optimizer = &optimizer};
}

void save(const std::vector<DictItem>& dict, const std::string& path) {
  require_one_stage();
  const Writers writers{.world = get_world_group(),
                        .tp = get_tensor_model_parallel_group(),
                        .dp = get_data_parallel_group()};
  FolderContents contents = contents_of(dict);
  std::unique_ptr<FileLock> lock;
  if (writers.world.rank() == 0) {
    const fs::path given = path, target = given.has_filename() ? given : given.parent_path();
    lock = std::make_unique<FileLock>(make_folder_above(target), target.filename());
  }
  ShardedSave save(path, std::move(contents), writers);
  save.write();
  save.commit();
}

Json load(const std::string& path, Layer& model, const std::string& model_key) {
  const Safetensors files = open_state(path, model_key);
  const Parameters parameters = saved_parameters(model.parameters());
  load_weights(parameters, files);
  for (const auto& p : parameters) {
    // Forward would read the old weights, which ZeRO-1 gathered before.
    if (p->is_flat()) p->set_use({});
  }
  return values_of(path);
}

Json load(const std::string& path, Optimizer& optimizer, const std::string& key) {
  const Safetensors files = open_state(path, key);
  load_optimizer(optimizer, saved_parameters(parameters_of(optimizer)), files);
  if (auto* zero1 = dynamic_cast<Zero1Optimizer*>(&optimizer)) zero1->gather_weights();
  return values_of(path);
}

}  // namespace cleave::nxd
