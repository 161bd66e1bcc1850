#pragma once
#include <functional>
#include <set>
#include <string>
#include <vector>

#include "cleave/base/byte_progress.h"
#include "cleave/format/safetensors.h"
#include "cleave/model/model.h"
#include "cleave/optim/optimizer.h"

namespace cleave::inline checkpoint {

/// A tensor of a folder that no parameter uses but that checkpoints keep (a rotary table of older
/// programs). Whole, on every rank.
struct CarriedTensor {
  TensorInfo info;
  std::string bytes;
};

/// The result of a load, apart from the parameters.
struct LoadResult {
  std::vector<CarriedTensor> carried{};
  uint64_t bytes_read = 0;           ///< of tensors, by this rank
  std::set<std::string> fresh{};     ///< parameters with initial values; only for another task
  std::set<std::string> left_out{};  ///< tensors of the files that were not read
};

/// What a load does with each parameter beside filling it.
struct LoadHooks {
  /// Reads the parameter from the files in another form, so that it stays without memory. Returns
  /// whether it did.
  std::function<bool(const Parameter& parameter, const TensorSource& files)> take;
  /// Called when the parameter has been filled or taken, before the next one is read. May free it.
  std::function<void(const Parameter& parameter)> loaded;
  /// Called after each parameter with the bytes of this rank's part of the files.
  OnBytes on_bytes;
};

/// Allocates every parameter of a model, whose plan is applied, and fills it from a folder's files
/// of any format (model_tensors.h). Each rank reads only the bytes of its own ranges, whatever
/// layout wrote them, and converts them to `dtype` (frozen ones to the type of forward). The
/// parameters of adapters stay without memory. No collective, except for quantized weights, whose
/// scales are those of whole rows or blocks (nn/quantized_leaf.h).
///
/// Throws Error(kFormat) listing all missing tensors and all that the model does not use,
/// Error(kShape) for a tensor of another shape.
LoadResult load_model(Model& model, const ModelFolder& folder, at::ScalarType dtype,
                      const LoadHooks& hooks = {});

/// The same for a model with another task than the folder's (a classifier on an encoder that was
/// trained with masked LM). Reads the parameters that both models have. Parameters that the files
/// lack get their initial values for `seed`, the same on every layout; the folder's own head is
/// left out. The files must match their own config.json: otherwise Error(kFormat) as above.
LoadResult load_for_other_task(Model& model, const ModelFolder& folder, at::ScalarType dtype,
                               uint64_t seed);

/// The paths of the outermost layers that get only initial values in load_for_other_task(). Throws
/// as load_for_other_task() does.
std::vector<std::string> new_layers(Model& model, const ModelFolder& folder);

/// Allocates the parameters of a model's adapters (parallel/lora.h) and fills them from an
/// adapter's folder in PEFT's form; each rank reads only its own ranges. No collective. Throws
/// Error(kFormat) for missing tensors, for others, and for another shape.
void load_adapter(Model& model, const std::string& folder, at::ScalarType dtype);

/// Fills allocated parameters from tensors of the same names; reads only this rank's ranges. No
/// collective. Throws Error(kFormat) listing all missing tensors and all without a parameter,
/// Error(kShape) for another shape; nothing is changed then.
void load_weights(const Parameters& parameters, const TensorSource& files);

/// Restores an optimizer from a checkpoint or run folder: its moments, its step count, and master
/// weights if the model's files hold a narrower type. Reads only this rank's ranges. `model` has
/// the optimizer's parameters (which may be those of one pipeline stage), and they are allocated.
/// Throws Error(kIo) if the folder has no optimizer files, Error(kFormat) if they are damaged or of
/// another model, Error(kUsage) if they are of another kind of optimizer, or if only the files or
/// only the optimizer have averaged weights.
void load_optimizer(Optimizer& optimizer, Model& model, const std::string& folder);
/// The same from open files; `parameters` are those of the whole model.
void load_optimizer(Optimizer& optimizer, const Parameters& parameters, const Safetensors& files);

}  // namespace cleave::inline checkpoint
