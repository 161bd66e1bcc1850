#include "cleave/nn/call_record.h"

#include <algorithm>

#include <ATen/ATen.h>

#include "cleave/nn/parameter.h"

namespace cleave::inline nn {
namespace {

/// A placeholder for a recorded activation: only its layout is used.
DTensor activation_like(const PlacementsSeen::Seen& seen, const Axis& axis) {
  std::vector<int64_t> sizes{1};
  if (seen.placement.is_shard()) {
    sizes.resize(static_cast<size_t>(seen.placement.dim()) + 1, 1);
    sizes.back() = seen.placement.split()->width(axis.rank());
  }
  return {at::empty(sizes, at::device(at::kMeta)), axis, seen.placement, maker_name(seen.maker)};
}

}  // namespace

size_t CallRecord::count_call(const Layer& layer) {
  for (auto& [known, count] : calls_) {
    if (known == &layer) return count++;
  }
  calls_.emplace_back(&layer, 1);
  return 0;
}

void CallRecord::finish(const std::string& path) const {
  if (!at::GradMode::is_enabled() || (!sharded_work() && !same_work())) return;
  const auto read = read_;  // copied, because used_in() below changes this record
  for (const Parameter* p : read) {
    const bool is_reported = std::find(reported_.begin(), reported_.end(), p) != reported_.end();
    if (is_reported || !p->leaf().defined() || !p->leaf().requires_grad()) continue;
    CLEAVE_CHECK(
        !sharded_work() || !same_work(), Code::kShape, path.empty() ? "the model" : path,
        " uses its parameter ", p->name(), " where it has ", sharded_work()->describe(), " and ",
        same_work()->describe(),
        ", so it is not known whether its gradient is whole or a partial sum; in addition to "
        "use(), call used_in(activation) with the activation that you apply it to");
    const Seen& seen = sharded_work() ? *sharded_work() : *same_work();
    // use() is const, but the Parameter objects themselves are not.
    const_cast<Parameter*>(p)->used_in(activation_like(seen, p->axis()));
  }
}

}  // namespace cleave::inline nn
