#include "cleave/planner/meta_kernels.h"

#include <ATen/ATen.h>
#include <torch/library.h>

namespace cleave {
namespace {

at::Tensor index_select(const at::Tensor& self, int64_t dim, const at::Tensor& index) {
  auto sizes = self.sizes().vec();
  if (!sizes.empty())
    sizes[static_cast<size_t>(at::maybe_wrap_dim(dim, self.dim()))] = index.numel();
  return at::empty(sizes, self.options());
}

at::Tensor embedding_dense_backward(const at::Tensor& grad, const at::Tensor& /*indices*/,
                                    c10::SymInt num_weights, c10::SymInt /*padding_idx*/,
                                    bool /*scale_grad_by_freq*/) {
  return at::empty({num_weights.expect_int(), grad.size(-1)}, grad.options());
}

using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Three native_layer_norm(const at::Tensor& input, c10::SymIntArrayRef normalized,
                        const std::optional<at::Tensor>& /*weight*/,
                        const std::optional<at::Tensor>& /*bias*/, double /*eps*/) {
  auto sizes = input.sizes().vec();
  std::fill(sizes.end() - static_cast<int64_t>(normalized.size()), sizes.end(), 1);
  return {at::empty_like(input), at::empty(sizes, input.options()),
          at::empty(sizes, input.options())};
}

Three native_layer_norm_backward(const at::Tensor& /*grad*/, const at::Tensor& input,
                                 c10::SymIntArrayRef /*normalized*/, const at::Tensor& /*mean*/,
                                 const at::Tensor& /*rstd*/,
                                 const std::optional<at::Tensor>& weight,
                                 const std::optional<at::Tensor>& bias,
                                 std::array<bool, 3> wanted) {
  const auto like = [](bool is_wanted, const at::Tensor& t) {
    return is_wanted ? at::empty_like(t) : at::Tensor();
  };
  return {like(wanted[0], input), like(wanted[1], weight.value_or(at::Tensor())),
          like(wanted[2], bias.value_or(at::Tensor()))};
}

}  // namespace

void provide_meta_kernels() {
  static const torch::Library& library = []() -> const torch::Library& {
    static torch::Library kernels(torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__,
                                  __LINE__);
    kernels.impl("index_select", TORCH_FN(index_select));
    kernels.impl("embedding_dense_backward", TORCH_FN(embedding_dense_backward));
    kernels.impl("native_layer_norm", TORCH_FN(native_layer_norm));
    kernels.impl("native_layer_norm_backward", TORCH_FN(native_layer_norm_backward));
    return kernels;
  }();
  (void)library;
}

}  // namespace cleave
