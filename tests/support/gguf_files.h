#pragma once
#include <filesystem>
#include <string>
#include <string_view>

#include "cleave/checkpoint/convert.h"
#include "cleave/mesh/scalar_type.h"
#include "tests/support/saved_models.h"
#include "tests/support/temp_folder.h"

namespace cleave::test {

/// Writes a model folder in closed form, unless it is there, and the GGUF file of it.
inline std::filesystem::path write_gguf_of(const TempFolder& folder, std::string_view config,
                                           const std::string& dtype = "") {
  if (!std::filesystem::exists(folder / "model")) {
    write_model_folder(folder / "model", config, tensors_of(config));
  }
  const std::filesystem::path to = folder / ("model" + dtype + ".gguf");
  convert({.from = (folder / "model").string(),
           .to = to.string(),
           .format = ModelFormat::kGguf,
           .dtype = dtype});
  return to;
}

/// A tensor of the files.
inline Tensor read_whole(const TensorSource& files, const std::string& name) {
  const TensorInfo& info = files.at(name);
  Tensor values = at::empty(info.shape, at::dtype(scalar_type(info.dtype)));
  files.read_block(name, {}, {static_cast<std::byte*>(values.mutable_data_ptr()), values.nbytes()});
  return values;
}

}  // namespace cleave::test
