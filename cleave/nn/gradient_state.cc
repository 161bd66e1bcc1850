#include "cleave/nn/gradient_state.h"

#include <algorithm>
#include <memory>

#include <ATen/ATen.h>

#include "cleave/torch_internals/graph.h"
#include "cleave/torch_internals/tensor.h"

namespace cleave::inline nn {
namespace {

using RankList = std::vector<int>;

/// The record on a gradient tensor.
struct GradientRecord : TensorRecord {
  std::vector<RankList> summed;  // the ranks of each axis with more than one
  bool is_mean = false;
  bool is_tied_sum = false;
  bool has_late_backward = false;
  uint32_t version = 0;  // of the tensor's elements

  [[nodiscard]] bool has(const Axis& axis) const {
    return std::find(summed.begin(), summed.end(), axis.ranks()) != summed.end();
  }
};

/// The record on a leaf: who completes its gradients. Weak, because a tensor may outlive them.
struct LeafRecord : TensorRecord {
  std::weak_ptr<Group> stages;
  bool is_tied = false;
  std::weak_ptr<const Axis> data;  // of a GradientSync
};

const Tensor& gradient_of(const Parameter& p) {
  static const Tensor none;
  return p.leaf().defined() ? p.leaf().grad() : none;
}

/// A backward adds one rank's part to the sum of all: recorded here, because a loop may change a
/// gradient in place by itself, which also changes its version.
void record_on_backward(const Tensor& leaf) {
  after_gradient(leaf, [](const Tensor& t) {
    const auto* record = record_on<GradientRecord>(t.grad());
    if (record == nullptr || record->version == version_of(t.grad())) return;  // nothing was added
    if (!record->is_mean && !record->is_tied_sum && record->summed.empty()) return;
    change_record<GradientRecord>(t.grad(), [](GradientRecord& r) { r.has_late_backward = true; });
  });
}

template <class Change>
void change_gradient_record(const Parameter& p, const Change& change) {
  const Tensor& gradient = gradient_of(p);
  if (!gradient.defined()) return;
  change_record<GradientRecord>(gradient, [&](GradientRecord& record) {
    record.version = version_of(gradient);
    change(record);
  });
  // FSDP adds complete sums; a GradientSync notices a backward to a copy of the leaf.
  if (p.is_readable() && !p.other_use().defined()) record_on_backward(p.leaf());
}

/// Whether the ranks `all` are a grid, in which `a` is a row and `b` a column.
bool are_grid_of(const RankList& all, const RankList& a, const RankList& b) {
  const auto count_in = [](const RankList& ranks, const RankList& list) {
    return static_cast<size_t>(std::ranges::count_if(
        list, [&](int rank) { return std::ranges::find(ranks, rank) != ranks.end(); }));
  };
  return all.size() == a.size() * b.size() && count_in(all, a) == a.size() &&
         count_in(all, b) == b.size() && count_in(a, b) == 1;
}

void check_unchanged(const Parameter& p, const GradientRecord& record) {
  CLEAVE_CHECK(record.version == version_of(gradient_of(p)), Code::kUsage, p.name(),
               ": the gradient changed after it was completed over the ranks; complete it once a "
               "step, after the last backward, and call zero_grad() before the next step");
}

}  // namespace

bool has_same_ranks(const Axis& a, const Axis& b) {
  return a == b || (a.size() == b.size() && a.ranks() == b.ranks());
}

void record_sum(const Parameter& p, const Axis& axis) {
  change_gradient_record(p, [&](GradientRecord& record) {
    if (axis.size() > 1 && !record.has(axis)) record.summed.push_back(axis.ranks());
  });
}

bool is_summed(const Parameter& p, const Axis& axis) {
  if (axis.size() == 1) return true;
  const auto* record = record_on<GradientRecord>(gradient_of(p));
  if (record != nullptr && record->has(axis)) {
    check_unchanged(p, *record);
    return true;
  }
  // A sharded leaf gets only sums: one rank's own gradient has another size.
  if (!p.is_flat()) return false;
  if (has_same_ranks(axis, p.data_axis()) || has_same_ranks(axis, p.axis())) return true;
  // HSDP: over the shards and over their copies.
  const RankList all = axis.ranks(), shards = p.data_axis().ranks();
  const bool is_grid = record != nullptr && std::ranges::any_of(record->summed, [&](const auto& r) {
                         return are_grid_of(all, shards, r);
                       });
  if (is_grid) check_unchanged(p, *record);
  return is_grid;
}

void record_mean(const Parameter& p) {
  change_gradient_record(p, [](GradientRecord& record) { record.is_mean = true; });
}

bool has_record(const Parameter& p) {
  return record_on<GradientRecord>(gradient_of(p)) != nullptr;
}

bool is_mean(const Parameter& p) {
  const auto* record = record_on<GradientRecord>(gradient_of(p));
  if (record == nullptr || !record->is_mean) return false;
  check_unchanged(p, *record);
  return true;
}

void check_no_stale_gradients(const Parameters& parameters) {
  for (const auto& p : parameters) {
    CLEAVE_CHECK(
        !has_record(*p), Code::kUsage, p->name(),
        " has the gradient of an earlier step, and the next backward would add to it; call "
        "the optimizer's zero_grad() after each step");
  }
}

void record_late_backward(const Parameter& p) {
  const Tensor& gradient = gradient_of(p);
  if (!has_record(p)) return;
  change_record<GradientRecord>(gradient, [](GradientRecord& r) { r.has_late_backward = true; });
}

void record_scaled(const Parameter& p) {
  if (has_record(p)) change_gradient_record(p, [](GradientRecord&) {});
}

void record_stages(const Parameter& p, const Axis& stages, bool is_tied) {
  if (stages.size() == 1) return;
  change_record<LeafRecord>(p.leaf(), [&](LeafRecord& record) {
    record.stages = stages.group();
    record.is_tied = is_tied;
  });
}

void record_sync(const Parameter& p, const std::shared_ptr<const Axis>& data) {
  if (!p.leaf().defined()) return;
  change_record<LeafRecord>(p.leaf(), [&](LeafRecord& record) { record.data = data; });
}

Axis stages_of(const Parameter& p) {
  const auto* record = record_on<LeafRecord>(p.leaf());
  const auto group = record == nullptr ? nullptr : record->stages.lock();
  return group ? Axis(group) : Axis();
}

void record_tied_sum(const Parameter& p) {
  change_gradient_record(p, [](GradientRecord& record) { record.is_tied_sum = true; });
}

bool is_tied_sum(const Parameter& p) {
  const auto* record = record_on<GradientRecord>(gradient_of(p));
  if (record == nullptr || !record->is_tied_sum) return false;
  check_unchanged(p, *record);
  return true;
}

void check_complete(const Parameter& p) {
  if (!p.is_trained()) return;
  const Tensor& gradient = gradient_of(p);
  const auto* record = record_on<GradientRecord>(gradient);
  const auto* leaf = record_on<LeafRecord>(p.leaf());
  const std::shared_ptr<const Axis> data = leaf == nullptr ? nullptr : leaf->data.lock();
  if (!gradient.defined()) {
    const bool is_on_copy = p.leaf().defined() && p.other_use().defined();
    CLEAVE_CHECK(!is_on_copy, Code::kUsage, p.name(),
                 ": forward reads a copy of the weight (ZeRO-1, or another type), and the leaf has "
                 "no gradient yet; call reduce_gradients() of the Zero1Optimizer, or complete() "
                 "of the GradientSync, after the last backward");
    return;
  }
  CLEAVE_CHECK(record == nullptr || !record->has_late_backward, Code::kUsage, p.name(),
               ": backward ran after the gradient was completed over the ranks; complete it once a "
               "step, after the last backward, and call zero_grad() before the next step");
  const auto has = [&](const Axis& axis) { return record != nullptr && record->has(axis); };
  const auto call = [&](const char* without_sync) {
    return data ? "complete() of the GradientSync" : without_sync;
  };
  const bool is_whole = !p.gradient_is_partial() || p.is_flat() || has(p.axis());
  CLEAVE_CHECK(is_whole, Code::kUsage, p.name(), ": each rank of ", p.axis().name(),
               " has a part of the gradient; call ", call("finish_gradients(parameters, tp)"),
               " after the last backward");
  const bool is_sum = !data || data->size() == 1 || p.is_flat() || has(*data);
  CLEAVE_CHECK(is_sum, Code::kUsage, p.name(), ": each rank of ", data->name(),
               " has a part of the gradient; call complete() of the GradientSync after the last "
               "backward");
  const bool is_tied = leaf != nullptr && leaf->is_tied;
  CLEAVE_CHECK(!is_tied || (record != nullptr && record->is_tied_sum), Code::kUsage, p.name(),
               " is used by several pipeline stages, each of which has a part of the gradient; "
               "call ",
               call("sum_tied_gradients() of the PipelineModel"), " after the last backward");
}

}  // namespace cleave::inline nn
