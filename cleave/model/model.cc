#include "cleave/model/model.h"

#include <set>

#include "cleave/model/flops.h"
#include "cleave/nn/experts.h"
#include "cleave/nn/linear.h"

namespace cleave::inline model {
namespace {

void append_calls(const Layer& parent, std::vector<Layer*>& out) {
  for (Layer* child : parent.children()) {
    if (child->is_group()) {
      append_calls(*child, out);
    } else {
      out.push_back(child);
    }
  }
}

std::vector<Layer*> calls_of(const Layer& model) {
  std::vector<Layer*> out;
  append_calls(model, out);
  return out;
}

}  // namespace

Model::Model(Json config) : config_(std::move(config)), facts_(usual_facts(config_)) {}

std::vector<Layer*> Model::sequence() {
  return calls_of(*this);
}

Plan Model::plan(bool sequence_parallel) const {
  const Placement between = sequence_parallel ? Placement(Shard{1}) : Placement(Replicate{});
  const std::vector<Layer*> calls = calls_of(*this);
  const Layer* head = calls.empty() ? nullptr : dynamic_cast<const Linear*>(calls.back());
  std::set<const Layer*> in_experts;
  Plan plan;
  for (Layer* call : calls) {
    call->name_tree();
    call->walk([&](Layer& layer) {
      if (dynamic_cast<const Experts*>(&layer) != nullptr) {
        layer.walk([&](const Layer& below) { in_experts.insert(&below); });
        plan.emplace_back(layer.path(), PrepareModuleOutput{.output = {}, .desired = between});
      } else if (&layer == head) {
        plan.emplace_back(layer.path(), Colwise{.output = Shard{-1}});
      } else if (layer.default_style() == DefaultStyle::kColwise) {
        plan.emplace_back(layer.path(), Colwise{});
      } else if (layer.default_style() == DefaultStyle::kRowwise) {
        // The results of experts stay partial sums; that of the layer that owns them is changed.
        const auto output = in_experts.contains(&layer) ? std::nullopt : std::optional(between);
        plan.emplace_back(layer.path(), Rowwise{.output = output});
      }
    });
  }
  return plan;
}

double train_flops_of(std::span<Layer* const> layers, int64_t seq_len) {
  double forward = 0;
  double frozen = 0;  // of the products with frozen matrices
  double second = 0;  // of second products with them
  const auto add = [&](const Layer& layer) {
    const double own = layer.forward_flops_per_token(seq_len);
    forward += own;
    const auto* linear = dynamic_cast<const Linear*>(&layer);
    if (linear == nullptr || !linear->weight()->is_frozen()) return;
    int64_t elements = 0;
    for (const auto& p : layer.own_parameters()) elements += p->numel();
    // An expert has fewer operations per token than two for each element.
    const double product =
        own / static_cast<double>(elements) * static_cast<double>(linear->weight()->numel());
    frozen += product;
    if (linear->has_second_product()) second += 2 * product;  // and the gradient of its input
  };
  for (Layer* layer : layers) layer->walk(add);
  // Backward computes the gradients of the weights, unless they are frozen, and of the inputs.
  return 3 * forward - frozen + second;
}

double Model::train_flops_per_token(int64_t seq_len) {
  Layer* const all = this;
  return train_flops_of({&all, 1}, seq_len);
}

DTensor Model::forward(const DTensor& ids, const Context& context) {
  Context with_outputs = context;
  return call_in_order(sequence(), ids, with_outputs);
}

}  // namespace cleave::inline model
