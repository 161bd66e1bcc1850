#include "cleave/torch_internals/graph.h"

#include <memory>
#include <unordered_set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>
#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>
#include <torch/csrc/autograd/variable.h>

namespace cleave::inline torch_internals {
namespace {

class AfterGradient : public torch::autograd::PostAccumulateGradHook {
 public:
  explicit AfterGradient(std::function<void(const Tensor&)> work) : work_(std::move(work)) {}

  void operator()(const torch::autograd::Variable& leaf) override {
    const at::NoGradGuard no_grad;
    work_(leaf);
  }

 private:
  std::function<void(const Tensor&)> work_;
};

}  // namespace

void after_backward(std::function<void()> work) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(work));
}

GraphEnd::GraphEnd(const Tensor& value) : edge_(torch::autograd::impl::gradient_edge(value)) {}

void backward_from(const std::vector<GraphEnd>& ends, const std::vector<Tensor>& gradients) {
  if (ends.empty()) return;
  torch::autograd::edge_list edges;
  for (const GraphEnd& end : ends) edges.push_back(end.edge_);
  torch::autograd::Engine::get_default_engine().execute(edges, gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false,
                                                        /*accumulate_grad=*/true, /*outputs=*/{});
}

void take_gradients(const Tensor& leaf, std::function<void(const Tensor& gradient)> take) {
  after_gradient(leaf, [take = std::move(take)](const Tensor& t) {
    take(std::exchange(t.mutable_grad(), {}));
  });
}

void after_gradient(const Tensor& leaf, std::function<void(const Tensor& leaf)> work) {
  if (torch::autograd::impl::post_acc_grad_hooks(leaf)) return;
  torch::autograd::impl::set_post_acc_grad_hooks(leaf,
                                                 std::make_unique<AfterGradient>(std::move(work)));
}

uint64_t next_node_number() {
  return at::sequence_number::peek();
}

std::optional<std::string> node_made_before(uint64_t first, const Tensor& result,
                                            std::string_view passed) {
  using torch::autograd::Node;
  if (!result.grad_fn()) return std::nullopt;
  std::vector<const Node*> open{result.grad_fn().get()};
  std::unordered_set<const Node*> seen(open.begin(), open.end());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    const bool is_leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr;
    if (is_leaf || node->name() == passed) continue;
    const bool is_new =
        node->thread_id() == at::RecordFunction::currentThreadId() && node->sequence_nr() >= first;
    if (!is_new) return node->name();
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) {
        open.push_back(edge.function.get());
      }
    }
  }
  return std::nullopt;
}

}  // namespace cleave::inline torch_internals
