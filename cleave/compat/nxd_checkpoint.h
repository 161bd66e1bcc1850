#pragma once
#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "cleave/nn/layer.h"
#include "cleave/optim/optimizer.h"
#include "cleave/text/json.h"

/// save and load of NeuronX Distributed's guides, for a dict of a model's state, an optimizer's and
/// values of the user's own. docs/nxd.md is their page.
namespace cleave::nxd {

/// The state of a model or an optimizer inside a dict; it refers to what it was made of.
struct StateDict {
  Layer* model = nullptr;
  const Optimizer* optimizer = nullptr;
};
/// The model's weights under their names, once move_model_to_device has run.
StateDict state_dict(Layer& model);
/// The optimizer's moments and step count.
StateDict state_dict(const Optimizer& optimizer);

/// A member of a dict that is saved.
struct DictItem {
  /// A state, or what JSON holds without loss; nested values are a Json.
  using Value = std::variant<StateDict, bool, int64_t, double, std::string, Json>;

  DictItem(std::string k, StateDict v) : key(std::move(k)), value(v) {}
  DictItem(std::string k, std::string v) : key(std::move(k)), value(std::move(v)) {}
  DictItem(std::string k, Json v) : key(std::move(k)), value(std::move(v)) {}
  DictItem(std::string k, std::floating_point auto v)
      : key(std::move(k)), value(static_cast<double>(v)) {}
  DictItem(std::string k, std::same_as<bool> auto v) : key(std::move(k)), value(v) {}
  /// Any integer; it is kept as int64.
  template <std::integral Integer>
  requires(!std::same_as<Integer, bool>) DictItem(std::string k, Integer v)
      : key(std::move(k)), value(static_cast<int64_t>(v)) {}

  std::string key;
  Value value;
};

/// Writes a dict into the new folder `path`: KEY.safetensors for each state, whole tensors whatever
/// the layout, values.json for the rest, a manifest. The folder appears whole or not at all.
///
/// Collective over all ranks; every rank gives the same keys and values. Throws Error(kUsage) for a
/// key twice, a key that cannot name a file, a number that is not finite, pipeline stages;
/// Error(kIo) also when `path` exists.
void save(const std::vector<DictItem>& dict, const std::string& path);

/// Gives a model the weights that a dict has under `model_key`, on any number of ranks, and returns
/// the dict's values: those that are no states, "epoch" or "loss".
///
/// Collective over all ranks. Throws Error(kFormat) when a file is damaged, a tensor is missing or
/// has no parameter, or there is no such key; the model is as it was then.
Json load(const std::string& path, Layer& model, const std::string& model_key = "model");
/// The same for an optimizer whose model has its weights.
Json load(const std::string& path, Optimizer& optimizer,
          const std::string& key = "optimizer_state_dict");

}  // namespace cleave::nxd
