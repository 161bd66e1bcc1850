#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <ATen/core/Tensor.h>

#include "cleave/nn/layer.h"
#include "cleave/optim/optimizer.h"
#include "cleave/text/json.h"

/// save and load of NeuronX Distributed's guides, for a dict of model state, optimizer state and
/// user values. See docs/nxd.md.
namespace cleave::nxd {

/// The state of a model or an optimizer in a dict; a reference, not a copy.
struct StateDict {
  Layer* model = nullptr;  ///< of an optimizer's state, the model that it updates, or null
  const Optimizer* optimizer = nullptr;
};
/// The model's weights by name; needs move_model_to_device first. Of a pipeline, the whole module:
/// each rank writes the weights of its stages.
StateDict state_dict(Layer& model);
/// The optimizer's moments and step count.
StateDict state_dict(const Optimizer& optimizer);
/// The same where each pipeline stage has an optimizer of its parameters. `model` is the whole
/// module.
StateDict state_dict(const Optimizer& optimizer, Layer& model);

/// A member of a dict that is saved.
struct DictItem {
  /// A state, or a value that JSON holds without loss; nested values are a Json.
  using Value = std::variant<StateDict, bool, int64_t, double, std::string, Json>;

  DictItem(std::string k, StateDict v) : key(std::move(k)), value(v) {}
  DictItem(std::string k, std::string v) : key(std::move(k)), value(std::move(v)) {}
  DictItem(std::string k, Json v) : key(std::move(k)), value(std::move(v)) {}
  DictItem(std::string k, std::floating_point auto v)
      : key(std::move(k)), value(static_cast<double>(v)) {}
  /// The number in a tensor of one element, such as a loss. Throws Error(kUsage) for more elements.
  DictItem(std::string k, const at::Tensor& v);
  DictItem(std::string k, std::same_as<bool> auto v) : key(std::move(k)), value(v) {}
  /// Any integer; stored as int64.
  template <std::integral Integer>
  requires(!std::same_as<Integer, bool>) DictItem(std::string k, Integer v)
      : key(std::move(k)), value(static_cast<int64_t>(v)) {}

  std::string key;
  Value value;
};

/// Writes a dict into the new folder `path`: KEY.safetensors with whole tensors for each state,
/// values.json for the rest, and a manifest. The folder is created atomically, after missing
/// folders above it.
///
/// Collective over all ranks; every rank passes the same keys and values. Throws Error(kUsage) for
/// a duplicate key, a key that cannot name a file, a number that is not finite, or an optimizer of
/// pipeline stages without their model; Error(kIo) also if `path` exists.
void save(const std::vector<DictItem>& dict, const std::string& path);

/// Loads the weights under `model_key` into a model on any number of ranks. Returns the dict's user
/// values, such as "epoch" or "loss".
///
/// Collective over all ranks. Throws Error(kFormat), without changing the model, if a file is
/// damaged, a tensor is missing or matches no parameter, or there is no such key.
Json load(const std::string& path, Layer& model, const std::string& model_key = "model");
/// Loads the state of an optimizer whose model already has its weights; a Zero1Optimizer then
/// gathers the weights that forward reads. Otherwise as above.
Json load(const std::string& path, Optimizer& optimizer,
          const std::string& key = "optimizer_state_dict");
/// The same for the optimizer of one pipeline stage; `model` is the whole module.
Json load(const std::string& path, Optimizer& optimizer, Layer& model,
          const std::string& key = "optimizer_state_dict");

}  // namespace cleave::nxd
