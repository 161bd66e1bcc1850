#pragma once
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

namespace cleave::inline torch_internals {

using at::Tensor;

/// Calls `work` at the end of the backward that runs on this thread, after all nodes and before
/// backward() returns. Call it from a node's backward.
void after_backward(std::function<void()> work);

/// Keeps the graph of a tensor but not the tensor, whose memory is freed unless another owner or
/// the graph itself needs it.
class GraphEnd {
 public:
  GraphEnd() = default;
  explicit GraphEnd(const Tensor& value);

  /// Whether there is a graph: made from a tensor that needs a gradient.
  [[nodiscard]] bool is_valid() const { return edge_.is_valid(); }

  friend void backward_from(const std::vector<GraphEnd>& ends,
                            const std::vector<Tensor>& gradients);

 private:
  torch::autograd::Edge edge_;
};

/// As torch::autograd::backward() from the tensors of `ends`, all valid, with the gradient of
/// each: frees the graph, adds to the leaves' gradients. Does nothing without ends.
void backward_from(const std::vector<GraphEnd>& ends, const std::vector<Tensor>& gradients);

/// After each backward that reaches the leaf `leaf`: takes the gradient from it and calls `take`
/// with it, without grad mode. So gradients of several backwards do not add up on the leaf.
void take_gradients(const Tensor& leaf, std::function<void(const Tensor& gradient)> take);

/// After each backward that adds to the gradient of the leaf `leaf`: calls `work` with the leaf,
/// without grad mode. Does nothing if the leaf has such a function already.
void after_gradient(const Tensor& leaf, std::function<void(const Tensor& leaf)> work);

/// The number of the next node that this thread makes.
uint64_t next_node_number();

/// The name of a node in the graph of `result` that another thread made, or that this thread made
/// before node number `first`; nullopt if there is none. Leaves and nodes of the name `passed` do
/// not count, nor do the nodes behind them.
std::optional<std::string> node_made_before(uint64_t first, const Tensor& result,
                                            std::string_view passed);

}  // namespace cleave::inline torch_internals
