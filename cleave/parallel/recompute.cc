#include "cleave/parallel/recompute.h"

#include <ATen/ATen.h>

#include "cleave/parallel/forward_changes.h"
#include "cleave/torch_internals/graph.h"
#include "cleave/torch_internals/node.h"
#include "cleave/torch_internals/tensor.h"

namespace cleave::inline parallel {
namespace {

/// The trained weights that a layer's forward read. If they changed before backward, recomputation
/// would give other activations than forward, and silently wrong gradients.
class WeightsRead {
 public:
  explicit WeightsRead(Layer& layer) {
    for (const auto& p : layer.parameters()) {
      const Tensor& leaf = p->leaf();
      if (!leaf.defined() || !p->is_trained() || leaf.is_inference()) continue;
      read_.push_back({.parameter = p, .leaf = leaf, .version = version_of(leaf)});
    }
  }
  /// Throws Error(kUsage) if one has changed.
  void check_unchanged() const {
    for (const Read& read : read_) {
      const bool is_unchanged =
          read.parameter->leaf().is_same(read.leaf) && version_of(read.leaf) == read.version;
      CLEAVE_CHECK(is_unchanged, Code::kUsage, read.parameter->name(),
                   " was changed in place after forward read it; call an optimizer's step only "
                   "after backward");
    }
  }

 private:
  struct Read {
    std::shared_ptr<Parameter> parameter;
    Tensor leaf;
    uint32_t version = 0;
  };
  std::vector<Read> read_;
};

/// Throws unless all nodes in the graph of `result`, except leaves and weights gathered by FSDP,
/// were made on this thread and have sequence numbers from `first` on.
void check_made_since(uint64_t first, const Tensor& result, const std::string& path) {
  const auto other = node_made_before(first, result, "fsdp_gather");
  CLEAVE_CHECK(!other, Code::kUsage, path.empty() ? "the model" : path,
               ": recompute supports the layer's input and Context::values, and the layer reads "
               "another tensor with a gradient (made by ",
               *other, "); add it to Context::values, or do not recompute this layer");
}

class Recompute : public Wrap {
 public:
  DTensor call(Layer& layer, const DTensor& x, const Context& context, const Next& next) override {
    // Every run gives a result of the same layout; the first one sets it.
    auto result = std::make_shared<DTensor>();
    variable_list inputs{x.local()};
    Context kept = context;
    // The head's choice between logits and the loss depends on the grad mode, which differs between
    // the runs; both runs would also compute the loss's gradients.
    if (at::GradMode::is_enabled()) kept.head_loss = nullptr;
    if (!context.values.empty()) {
      variable_list detached;
      for (const Tensor& value : context.values.locals()) {
        inputs.push_back(value);
        detached.push_back(value.detach());
      }
      kept.values = context.values.with_locals(detached);
    }
    const auto f = [next, result, axis = x.axis(), placement = x.placement(),
                    context = std::move(kept), maker = maker_name(x.maker()), path = layer.path(),
                    weights = WeightsRead(layer)](const variable_list& in) {
      weights.check_unchanged();
      const uint64_t first = next_node_number();
      Context own = context;
      own.values = context.values.with_locals({in.begin() + 1, in.end()});
      const DTensor y = next(DTensor(in[0], axis, placement, maker), own);
      check_made_since(first, y.local(), path);
      if (!result->local().defined()) *result = y.with(y.local().detach());
      return y.local();
    };
    const ForwardChanges changes(layer.parameters());
    const Tensor y = recomputed("recompute", inputs, f);
    if (needs_grad(y)) changes.refuse(layer, "recompute runs twice");
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

}  // namespace cleave::inline parallel
