#include "cleave/parallel/forward_changes.h"

#include "cleave/nn/subject.h"
#include "cleave/torch_internals/tensor.h"

namespace cleave::inline parallel {

ForwardChanges::ForwardChanges(const Parameters& weights) {
  for (const auto& p : weights) {
    // Not use(), which counts as a read of the layer that is being called.
    const Tensor other = p->other_use();
    const Tensor& read = other.defined() ? other : p->leaf();
    if (!read.defined() || read.is_inference()) continue;  // inference mode counts no changes
    weights_.push_back({.parameter = p, .read = read, .version = version_of(read)});
  }
}

void ForwardChanges::refuse(const Layer& layer, std::string_view why) const {
  for (const Weight& w : weights_) {
    CLEAVE_CHECK(version_of(w.read) == w.version, Code::kUsage, w.parameter->name(),
                 " is changed in place by the forward of ", layer_name(layer.path()), ", which ",
                 why,
                 "; keep the new value in the layer, and after the step copy part_of() of it into "
                 "leaf()");
  }
}

}  // namespace cleave::inline parallel
