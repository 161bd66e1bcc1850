#pragma once
#include <map>
#include <string>

#include <ATen/core/Tensor.h>

#include "cleave/nn/layer.h"

namespace cleave::test {

/// All tensors of a safetensors file or folder, by name.
std::map<std::string, at::Tensor> read_tensors(const std::string& path);

/// Fills a model's parameters with their slices of whole tensors, converted to `dtype`.
void fill(Layer& model, const std::map<std::string, at::Tensor>& whole, at::ScalarType dtype);

/// This rank's slice of a whole tensor that is laid out as `parameter` is.
at::Tensor slice_of(const Parameter& parameter, const at::Tensor& whole);

/// Largest absolute difference; 0 for empty tensors. Shapes must agree.
double largest_difference(const at::Tensor& a, const at::Tensor& b);

/// $CLEAVE_DATA, or "" where it is not set.
std::string data_folder();

}  // namespace cleave::test

/// Skips the running test, by name, where the test data is absent.
#define CLEAVE_NEEDS_DATA()                                                                \
  if (cleave::test::data_folder().empty()) {                                               \
    GTEST_SKIP() << "CLEAVE_DATA is not set: it names the folder with goldens and models"; \
  }
