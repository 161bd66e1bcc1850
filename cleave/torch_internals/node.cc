#include "cleave/torch_internals/node.h"

#include <algorithm>
#include <memory>
#include <type_traits>

#include <ATen/ATen.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>
#include <torch/csrc/autograd/variable.h>

#include "cleave/base/error.h"
#include "cleave/torch_internals/tensor.h"

namespace cleave::inline torch_internals {
namespace {

class CallbackNode : public torch::autograd::Node {
 public:
  CallbackNode(const char* name, Backward backward, UnusedOutputs unused)
      : name_(name), backward_(std::move(backward)), unused_(unused) {}
  [[nodiscard]] std::string name() const override { return name_; }
  void release_variables() override { backward_ = nullptr; }

 private:
  variable_list apply(variable_list&& grads) override {
    for (size_t i = 0; i < grads.size() && unused_ == UnusedOutputs::kZeros; ++i) {
      if (!grads[i].defined()) grads[i] = input_metadata(i).zeros_like();
    }
    TORCH_CHECK(backward_, name_, ": backward ran a second time over a freed graph");
    // libtorch enables grad mode here only for create_graph.
    CLEAVE_CHECK(!at::GradMode::is_enabled(), Code::kUsage, name_,
                 " does not support double backward; call backward or autograd::grad without "
                 "create_graph, or compute this part of the loss with libtorch's operations");
    const at::NoGradGuard no_grad;
    return backward_(std::move(grads));
  }
  const char* name_;
  Backward backward_;
  UnusedOutputs unused_;
};

/// A new node in the pointer type of libtorch's graphs.
template <class SomeNode>
auto make_node(const char* name, Backward backward, UnusedOutputs unused) {
  if constexpr (std::is_base_of_v<c10::intrusive_ptr_target, SomeNode>) {
    return c10::make_intrusive<SomeNode>(name, std::move(backward), unused);
  } else {  // libtorch 2.11
    return std::shared_ptr<SomeNode>(new SomeNode(name, std::move(backward), unused),
                                     [](auto* node) { deleteNode(node); });
  }
}

/// Runs f again and returns the gradients of the wanted inputs; undefined tensors for the others.
variable_list gradients_of(const std::function<Tensor(const variable_list&)>& f,
                           const variable_list& inputs, const std::vector<bool>& wanted,
                           const Tensor& gradient) {
  const at::AutoGradMode grad_mode(true);
  variable_list again, out(inputs.size());
  for (size_t i = 0; i < inputs.size(); ++i) {
    again.push_back(wanted[i] ? inputs[i].detach().requires_grad_() : inputs[i]);
  }
  const Tensor result = f(again);
  if (!result.requires_grad()) return out;
  torch::autograd::backward({result}, {gradient});
  for (size_t i = 0; i < inputs.size(); ++i) {
    if (wanted[i]) out[i] = again[i].grad();
  }
  return out;
}

}  // namespace

SavedInput::SavedInput(const char* op, const Tensor& t)
    : op_(op), tensor_(t.detach()), version_(t.is_inference() ? 0 : version_of(t)) {}

const Tensor& SavedInput::get() const {
  CLEAVE_CHECK(tensor_.is_inference() || version_ == version_of(tensor_), Code::kUsage, op_,
               ": backward needs a tensor of shape ", tensor_.sizes(),
               " that was changed in place after forward read it; change a copy instead (x = x + y "
               "in place of x.add_(y)), and call an optimizer's step only after backward");
  const bool has_memory =
      tensor_.is_meta() || tensor_.numel() == 0 || tensor_.storage().data() != nullptr;
  CLEAVE_CHECK(
      has_memory, Code::kUsage, op_, ": backward needs a tensor of shape ", tensor_.sizes(),
      " that FSDP has freed, because it reached a layer without its output's gradient; let "
      "the loss of each backward depend on the output of the layer that fully_shard() took");
  return tensor_;
}

bool needs_grad(const Tensor& t) {
  return at::GradMode::is_enabled() && t.requires_grad();
}

void connect(const char* name, const variable_list& inputs, const variable_list& outputs,
             Backward backward, UnusedOutputs unused) {
  const auto node = make_node<CallbackNode>(name, std::move(backward), unused);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (const Tensor& y : outputs) torch::autograd::set_history(y, node);
}

Tensor differentiable(const char* name, const Tensor& x,
                      const std::function<Tensor(const Tensor&)>& forward,
                      std::function<Tensor(const Tensor&)> backward) {
  const bool has_backward = needs_grad(x);
  Tensor y;
  {
    const at::NoGradGuard no_grad;
    y = forward(without_history(x));
  }
  if (has_backward) {
    connect(name, {x}, {y}, [backward = std::move(backward)](variable_list&& grads) {
      return variable_list{backward(grads[0])};
    });
  }
  return y;
}

Tensor recomputed(const char* name, const variable_list& inputs,
                  std::function<Tensor(const variable_list&)> f) {
  if (!at::GradMode::is_enabled()) return f(inputs);
  variable_list plain;
  std::vector<bool> wanted;
  for (const Tensor& t : inputs) {
    plain.push_back(t.defined() ? t.detach() : t);
    wanted.push_back(t.defined() && t.requires_grad());
  }
  Tensor y;
  if (std::find(wanted.begin(), wanted.end(), true) == wanted.end()) {
    // Parameters that f reads may need gradients. If not, there is nothing to run again.
    y = f(plain);
    if (!y.requires_grad()) return y;
    y = y.detach();
  } else {
    const at::NoGradGuard no_grad;
    y = f(plain);
  }
  connect(name, inputs, {y}, [plain, wanted, f = std::move(f)](variable_list&& grads) {
    return gradients_of(f, plain, wanted, grads[0]);
  });
  return y;
}

}  // namespace cleave::inline torch_internals
