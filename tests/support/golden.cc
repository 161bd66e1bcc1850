#include "tests/support/golden.h"

#include <cstdlib>

#include <ATen/ATen.h>

#include "cleave/format/safetensors.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave::test {
std::map<std::string, at::Tensor> read_tensors(const std::string& path) {
  const auto file = Safetensors::open(path);
  std::map<std::string, at::Tensor> out;
  for (const StoredTensor& t : file.tensors()) {
    at::Tensor tensor = at::empty(std::vector<int64_t>(t.shape.begin(), t.shape.end()),
                                  at::dtype(scalar_type(t.dtype)));
    file.read_block(t, {}, {static_cast<std::byte*>(tensor.mutable_data_ptr()), tensor.nbytes()});
    out.emplace(t.name, tensor);
  }
  return out;
}

at::Tensor slice_of(const Parameter& parameter, const at::Tensor& whole) {
  // Begins with nothing: a rank may hold no range.
  std::vector<at::Tensor> parts{whole.narrow(parameter.split_dim(), 0, 0)};
  for (const Range& r : parameter.ranges()) {
    parts.push_back(whole.narrow(parameter.split_dim(), r.begin, r.size()));
  }
  return at::cat(parts, parameter.split_dim());
}

void fill(Layer& model, const std::map<std::string, at::Tensor>& whole, at::ScalarType dtype) {
  model.name_tree();
  for (const auto& p : model.parameters()) {
    p->set_leaf(slice_of(*p, whole.at(p->name())).to(dtype).clone());
  }
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  TORCH_CHECK(a.sizes() == b.sizes(), "shapes ", a.sizes(), " and ", b.sizes());
  return a.numel() == 0 ? 0 : (a.to(at::kDouble) - b.to(at::kDouble)).abs().max().item<double>();
}

std::string data_folder() {
  const char* folder = std::getenv("CLEAVE_DATA");
  return folder == nullptr ? "" : folder;
}

}  // namespace cleave::test
