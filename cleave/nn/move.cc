#include "cleave/nn/move.h"

namespace cleave {

void move_to(Layer& model, at::Device device) {
  for (const auto& p : model.parameters()) {
    const Tensor& leaf = p->leaf();
    if (!leaf.defined() || leaf.device() == device) continue;
    const Tensor moved = leaf.detach().to(device);
    p->is_int8() ? p->set_int8(moved, p->scales().to(device)) : p->set_leaf(moved);
  }
}

}  // namespace cleave
