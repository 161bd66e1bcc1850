#include "cleave/compat/nxd_checkpoint.h"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <set>

#include <ATen/ATen.h>
#include <c10/core/ScalarType.h>

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

/// `parameters`, those of this rank's stages checked to be on the tensor-parallel group.
Parameters saved_parameters(Parameters parameters) {
  const Axis& tp = get_tensor_model_parallel_group();
  for (const auto& p : parameters) {
    if (p->ownership() == Parameter::Ownership::kNotOwned) continue;
    CLEAVE_CHECK(p->leaf().defined() && p->axis() == tp, Code::kUsage, p->name(),
                 " is not on the tensor-parallel group; call ",
                 get_pipeline_model_parallel_size() > 1 ? "NxDPPModel::partition()"
                                                        : "move_model_to_device(model, device)",
                 " before the optimizer is made, and give its layer no other group");
  }
  return parameters;
}

/// The parameters that the optimizers of all pipeline stages update, the same on every rank.
/// Collective over the stages if `model` is given.
Parameters parameters_of(const Optimizer& optimizer, Layer* model) {
  const Axis& pp = get_pipeline_model_parallel_group();
  Parameters own;
  for (const Optimizer::State& state : optimizer.states()) own.push_back(state.parameter);
  if (model == nullptr) {
    CLEAVE_CHECK(pp.size() == 1, Code::kUsage, "each of the ", pp.size(),
                 " pipeline stages has an optimizer of its own parameters only; name the whole "
                 "model too: state_dict(optimizer, model), load(path, optimizer, model, key)");
    return own;
  }
  const Parameters all = model->parameters();
  const std::set<std::shared_ptr<Parameter>> of_model(all.begin(), all.end());
  for (const auto& p : own) {
    CLEAVE_CHECK(of_model.contains(p), Code::kUsage, p->name(),
                 " is in the optimizer and not in the model; give the model whose parameters the "
                 "optimizer updates");
  }
  const std::set<std::shared_ptr<Parameter>> mine(own.begin(), own.end());
  std::vector<int64_t> flags;
  for (const auto& p : all) flags.push_back(mine.contains(p) ? 1 : 0);
  const Tensor is_updated =
      pp.all_reduce(at::tensor(flags, at::kLong), "parameters of the optimizers", ReduceOp::kMax);
  Parameters updated;
  for (size_t i = 0; i < all.size(); ++i) {
    if (is_updated[static_cast<int64_t>(i)].item<int64_t>() != 0) updated.push_back(all[i]);
  }
  return updated;
}

/// Gives each tensor the widest of its types on the stages that have it. Other stages do not know
/// its type, and all ranks must plan the same file. Collective over the stages.
void agree_on_types(TensorGroup& group) {
  const Axis& pp = get_pipeline_model_parallel_group();
  constexpr int64_t kNotHere = -1;
  std::vector<int64_t> codes;
  for (const ShardedTensor& t : group.tensors) {
    codes.push_back(t.local.defined() ? static_cast<int64_t>(scalar_type(t.info.dtype)) : kNotHere);
  }
  const std::vector<int64_t> one_each(static_cast<size_t>(pp.size()), 1);
  const Tensor all = pp.all_gather(at::tensor(codes, at::kLong).unsqueeze(0), 0, one_each,
                                   "types of a dict's tensors");
  for (size_t i = 0; i < codes.size(); ++i) {
    std::optional<at::ScalarType> widest;
    for (int64_t stage = 0; stage < pp.size(); ++stage) {
      const auto code = all[stage][static_cast<int64_t>(i)].item<int64_t>();
      if (code == kNotHere) continue;
      const auto type = static_cast<at::ScalarType>(code);
      widest = widest ? c10::promoteTypes(*widest, type) : type;
    }
    if (widest) group.tensors[i].info.dtype = dtype_of(*widest);
  }
}

TensorGroup group_of(const std::string& key, const StateDict& state) {
  const Parameters parameters =
      saved_parameters(state.optimizer != nullptr ? parameters_of(*state.optimizer, state.model)
                                                  : state.model->parameters());
  CLEAVE_CHECK(!parameters.empty(), Code::kUsage, "key '", key, "' has no parameters to save");
  TensorGroup group{.stem = key, .tensors = {}};
  if (state.optimizer != nullptr) {
    group = optimizer_group(*state.optimizer, parameters, std::nullopt, key);
  } else {
    for (const auto& p : parameters) {
      const bool is_here = p->leaf().defined();
      const DType dtype = is_here ? dtype_of(p->leaf().scalar_type()) : DType::kF32;
      group.tensors.push_back({{p->name(), dtype, p->shape()}, p.get(), p->leaf()});
    }
  }
  agree_on_types(group);
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

Json load_state(const std::string& path, Optimizer& optimizer, Layer* model,
                const std::string& key) {
  const Parameters parameters = saved_parameters(parameters_of(optimizer, model));
  const Safetensors files = open_state(path, key);
  load_optimizer(optimizer, parameters, files);
  if (auto* zero1 = dynamic_cast<Zero1Optimizer*>(&optimizer)) zero1->gather_weights();
  return values_of(path);
}

}  // namespace

StateDict state_dict(Layer& model) {
  return {.model = &model};
}

StateDict state_dict(const Optimizer& optimizer) {
  return {.optimizer = &optimizer};
}

StateDict state_dict(const Optimizer& optimizer, Layer& model) {
  return {.model = &model, .optimizer = &optimizer};
}

DictItem::DictItem(std::string k, const Tensor& v) : key(std::move(k)) {
  CLEAVE_CHECK(v.defined() && v.numel() == 1, Code::kUsage, "key '", key, "' is ",
               v.defined() ? cleave::str("a tensor of sizes ", v.sizes()) : "an undefined tensor",
               "; a dict holds states and values: register tensors as parameters of a layer");
  if (v.is_floating_point()) {
    value = v.item<double>();
  } else if (v.scalar_type() == at::kBool) {
    value = v.item<bool>();
  } else {
    value = v.item<int64_t>();
  }
}

void save(const std::vector<DictItem>& dict, const std::string& path) {
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
  return load_state(path, optimizer, nullptr, key);
}

Json load(const std::string& path, Optimizer& optimizer, Layer& model, const std::string& key) {
  return load_state(path, optimizer, &model, key);
}

}  // namespace cleave::nxd
