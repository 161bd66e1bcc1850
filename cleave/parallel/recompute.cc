#include "cleave/parallel/recompute.h"

#include <unordered_set>
#include <vector>

#include <ATen/SequenceNumber.h>
#include <ATen/record_function.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "cleave/torch_internals/node.h"

namespace cleave {
namespace {

/// Throws unless all nodes in the graph of `result`, except leaves and weights gathered by FSDP,
/// were made on this thread and have sequence numbers from `first` on.
void check_made_since(uint64_t first, const Tensor& result, const std::string& path) {
  using torch::autograd::Node;
  if (!result.grad_fn()) return;
  std::vector<const Node*> open{result.grad_fn().get()};
  std::unordered_set<const Node*> seen(open.begin(), open.end());
  while (!open.empty()) {
    const Node* node = open.back();
    open.pop_back();
    const bool is_leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node) != nullptr;
    if (is_leaf || node->name() == "fsdp_gather") continue;
    const bool is_new =
        node->thread_id() == at::RecordFunction::currentThreadId() && node->sequence_nr() >= first;
    CLEAVE_CHECK(is_new, Code::kUsage, path.empty() ? "the model" : path,
                 ": recompute supports the layer's input and Context::values, and the layer reads "
                 "another tensor with a gradient (made by ",
                 node->name(), "); add it to Context::values, or do not recompute this layer");
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (edge.function && seen.insert(edge.function.get()).second) {
        open.push_back(edge.function.get());
      }
    }
  }
}

class Recompute : public Wrap {
 public:
  DTensor call(Layer& layer, const DTensor& x, const Context& context, const Next& next) override {
    // Every run gives a result of the same layout; the first one sets it.
    auto result = std::make_shared<DTensor>();
    variable_list inputs{x.local()};
    Context kept = context;
    if (!context.values.empty()) {
      variable_list detached;
      for (const Tensor& value : context.values.locals()) {
        inputs.push_back(value);
        detached.push_back(value.detach());
      }
      kept.values = context.values.with_locals(detached);
    }
    const auto f = [next, result, axis = x.axis(), placement = x.placement(),
                    context = std::move(kept), maker = maker_name(x.maker()),
                    path = layer.path()](const variable_list& in) {
      const uint64_t first = at::sequence_number::peek();
      Context own = context;
      own.values = context.values.with_locals({in.begin() + 1, in.end()});
      const DTensor y = next(DTensor(in[0], axis, placement, maker), own);
      check_made_since(first, y.local(), path);
      if (!result->local().defined()) *result = y.with(y.local().detach());
      return y.local();
    };
    const Tensor y = recomputed("recompute", inputs, f);
    const DTensor layout = *result;
    // From now on only its layout and shape are used.
    const Tensor one = at::empty({}, layout.local().options().device(at::kMeta));
    *result = layout.with(one.expand(layout.local().sizes()));
    return layout.with(y);
  }
};

}  // namespace

void recompute(Layer& layer) {
  layer.attach(std::make_unique<Recompute>());
}

}  // namespace cleave
