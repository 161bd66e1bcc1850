#include "cleave/nn/move.h"

namespace cleave {

void move_to(Layer& model, at::Device device) {
  for (const auto& p : model.parameters()) {
    const Tensor& leaf = p->leaf();
    if (leaf.defined() && leaf.device() != device) p->set_leaf(leaf.detach().to(device));
  }
}

}  // namespace cleave
