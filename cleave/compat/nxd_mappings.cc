#include <ATen/ATen.h>

#include "cleave/compat/internal/nxd.h"
#include "cleave/compat/nxd.h"
#include "cleave/nn/cross_entropy.h"

namespace cleave::nxd {
namespace {

const Axis& group() {
  return get_tensor_model_parallel_group();
}

Shard shard_along(int64_t dim) {
  return Shard{static_cast<int>(dim)};
}

Tensor changed(const Tensor& x, const Placement& from, const Placement& to) {
  return DTensor(x, group(), from).redistribute(to).local();
}

}  // namespace

DTensor as_sharded(const Tensor& x, const Axis& axis, int64_t dim, const std::string& site) {
  const Placement placement = Placement(shard_along(dim)).normalised(x.dim());
  if (axis.size() == 1) return {x, axis, Replicate{}};
  const at::NoGradGuard no_grad;
  const std::vector<int64_t> one_each(static_cast<size_t>(axis.size()), 1);
  const Tensor own = at::full({1}, x.size(placement.dim()), x.options().dtype(at::kLong));
  const Tensor all = axis.all_gather(own, 0, one_each, site + " sizes").cpu();
  std::vector<std::vector<Range>> ranges;
  int64_t begin = 0;
  for (int rank = 0; rank < axis.size(); ++rank) {
    const auto size = all[rank].item<int64_t>();
    ranges.push_back({{begin, begin + size}});
    begin += size;
  }
  return {x, axis, Shard{placement.dim(), Split::intern(begin, std::move(ranges))}};
}

Tensor copy_to_tensor_model_parallel_region(const Tensor& x) {
  return changed(x, Replicate{}, Fanout{});
}

Tensor reduce_from_tensor_model_parallel_region(const Tensor& x) {
  return changed(x, Partial{}, Replicate{});
}

Tensor scatter_to_tensor_model_parallel_region(const Tensor& x) {
  return changed(x, Replicate{}, shard_along(-1));
}

Tensor gather_from_tensor_model_parallel_region(const Tensor& x) {
  return as_sharded(x, group(), -1, "gather_from").redistribute(Replicate{}).local();
}

Tensor scatter_to_sequence_parallel_region(const Tensor& x, int64_t sequence_dimension) {
  return changed(x, Replicate{}, shard_along(sequence_dimension));
}

Tensor gather_from_sequence_parallel_region(const Tensor& x, int64_t sequence_dimension,
                                            bool to_model_parallel) {
  const Placement to = to_model_parallel ? Placement(Fanout{}) : Placement(Replicate{});
  return as_sharded(x, group(), sequence_dimension, "gather_from_sequence")
      .redistribute(to)
      .local();
}

Tensor reduce_scatter_to_sequence_parallel_region(const Tensor& x, int64_t sequence_dimension) {
  return changed(x, Partial{}, shard_along(sequence_dimension));
}

Tensor parallel_cross_entropy(const Tensor& parallel_logits, const Tensor& labels,
                              double label_smoothing) {
  const DTensor logits = as_sharded(parallel_logits, group(), -1, "parallel_cross_entropy");
  CLEAVE_CHECK(label_smoothing == 0 || logits.size(-1) > 1, Code::kShape,
               "label_smoothing=", label_smoothing, " needs at least 2 classes; the logits have ",
               logits.size(-1));
  return cross_entropy(logits, labels,
                       {.reduction = CrossEntropyOptions::Reduction::kNone,
                        .label_smoothing = label_smoothing,
                        .smoothing = CrossEntropyOptions::Smoothing::kNemo})
      .local();
}

}  // namespace cleave::nxd
