#pragma once
#include <set>
#include <string>
#include <vector>

#include "cleave/format/safetensors.h"
#include "cleave/model/model.h"
#include "cleave/optim/optimizer.h"

namespace cleave {

/// A tensor of a folder that no parameter uses but that checkpoints keep (a rotary table that older
/// programs stored): whole, on every rank.
struct CarriedTensor {
  TensorInfo info;
  std::string bytes;
};

/// What a load leaves besides filled parameters.
struct LoadResult {
  std::vector<CarriedTensor> carried{};
  uint64_t bytes_read = 0;           ///< of tensors, by this rank
  std::set<std::string> fresh{};     ///< parameters with starting values; of another task alone
  std::set<std::string> left_out{};  ///< tensors of the files that were not read
};

/// Gives every parameter of a planned model its memory and its values from a folder's files,
/// whatever their format (model_tensors.h). Each rank reads the bytes of its own ranges alone,
/// whatever layout wrote them, and converts them to `dtype`. No collective.
///
/// Throws Error(kFormat) listing all tensors that are missing and all that the model has no use
/// for, Error(kShape) for a tensor of another shape.
LoadResult load_model(Model& model, const ModelFolder& folder, at::ScalarType dtype);

/// The same for a model that learns another task than the folder's (a classifier over an encoder
/// that has learnt hidden words): what both models have is read, what the files lack has its
/// starting value of `seed`, the same on every layout, and the folder's own head is left out. The
/// files must be whole by their own config.json: Error(kFormat) as above where they are not.
LoadResult load_for_other_task(Model& model, const ModelFolder& folder, at::ScalarType dtype,
                               uint64_t seed);

/// Fills parameters, which have memory, from tensors of their names: this rank's ranges alone. No
/// collective. Throws Error(kFormat) listing all that are missing and all that no parameter has,
/// Error(kShape) for another shape; nothing is changed then.
void load_weights(const Parameters& parameters, const TensorSource& files);

/// Continues an optimizer from a checkpoint folder: its moments, its step count, and the masters
/// where the model's files hold a narrower type; again this rank's ranges alone. The model, whose
/// parameters these are (or a pipeline stage of them), has its memory already. Throws Error(kIo)
/// when the folder has no optimizer files, Error(kFormat) when they are of another optimizer or
/// another model.
void load_optimizer(Optimizer& optimizer, Model& model, const std::string& folder);
/// The same from files that are open; `parameters` are the whole model's.
void load_optimizer(Optimizer& optimizer, const Parameters& parameters, const Safetensors& files);

}  // namespace cleave
