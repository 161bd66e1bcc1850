// One call of a sharded layer, on all ranks of the data-parallel axis:
//   1. Forward: the leaves' parts are gathered into a buffer; a graph node leads from the leaves to
//      the gathered weights, which forward reads. After forward the buffer's memory is freed; the
//      graph still knows its tensors.
//   2. An identity node on the layer's output runs first in backward: it gathers into the buffer
//      again and puts the weights where a recomputation reads them.
//   3. The node of step 1 runs when the gradients of all its weights are complete: it sums them
//      into shards and frees the buffer.
#include "cleave/parallel/fsdp.h"

#include <set>

#include <ATen/ATen.h>

#include "cleave/layout/node.h"

namespace cleave {
namespace {

/// The memory of one call's gathered weights.
class Buffer {
 public:
  Buffer(std::shared_ptr<const FlatShards> shards, const ShardPrecision& precision)
      : shards_(std::move(shards)),
        precision_(precision),
        flat_(shards_->gather(precision.param)) {}

  [[nodiscard]] const Parameters& parameters() const { return shards_->parameters(); }
  [[nodiscard]] std::vector<Tensor> parts() const { return shards_->parts_of(flat_); }

  /// Gives the memory back; tensors of it stay, without it. Nobody reads the weights now.
  void free() {
    for (const auto& p : parameters()) p->set_use({});
    c10::StorageImpl* storage = flat_.storage().unsafeGetStorageImpl();
    storage->set_data_ptr_noswap(at::DataPtr(nullptr, storage->device()));
    is_held_ = false;
  }
  /// Gathers again into the same tensors. Collective.
  void refill() {
    if (is_held_) return;
    const Tensor again = shards_->gather(precision_.param);
    c10::StorageImpl* from = again.storage().unsafeGetStorageImpl();
    flat_.storage().unsafeGetStorageImpl()->set_data_ptr_noswap(
        from->set_data_ptr(at::DataPtr(nullptr, from->device())));
    is_held_ = true;
  }
  [[nodiscard]] variable_list reduce(variable_list&& gradients) const {
    return shards_->reduce(std::move(gradients), precision_.reduce);
  }

 private:
  std::shared_ptr<const FlatShards> shards_;
  ShardPrecision precision_;
  Tensor flat_;
  bool is_held_ = true;
};

/// A buffer and its weights as the graph knows them. The node behind the weights keeps the buffer
/// alone: with the weights too it would keep itself.
struct Gathered {
  std::shared_ptr<Buffer> buffer;
  std::vector<Tensor> weights;

  void show() const {
    for (size_t i = 0; i < weights.size(); ++i) buffer->parameters()[i]->set_use(weights[i]);
  }
};

Gathered gather(const std::shared_ptr<const FlatShards>& shards, const ShardPrecision& precision) {
  Gathered g{.buffer = std::make_shared<Buffer>(shards, precision), .weights = {}};
  g.weights = g.buffer->parts();
  if (!at::GradMode::is_enabled()) return g;
  variable_list leaves;
  for (const auto& p : shards->parameters()) leaves.push_back(p->leaf());
  connect("fsdp_gather", leaves, g.weights, [buffer = g.buffer](variable_list&& gradients) {
    buffer->free();
    return buffer->reduce(std::move(gradients));
  });
  return g;
}

/// What a layer's calls gather: its own parameters, and tied ones of other layers.
class Fsdp : public Wrap {
 public:
  Fsdp(std::vector<std::shared_ptr<const FlatShards>> groups, const FsdpOptions& options)
      : groups_(std::move(groups)), options_(options) {}

  [[nodiscard]] bool is_outermost() const override { return true; }

  DTensor call(Layer& /*layer*/, const DTensor& x, const Context& context,
               const Next& next) override {
    std::vector<Gathered> all;
    for (const auto& group : groups_) {
      all.push_back(gather(group, options_.precision));
      all.back().show();
    }
    const DTensor y = next(x, context);
    const bool has_backward = needs_grad(y.local());
    if (options_.reshard_after_forward || !has_backward) {
      for (const Gathered& g : all) g.buffer->free();
    }
    if (!has_backward) return y;
    const auto identity = [](const Tensor& t) { return t; };
    const auto refill = [all](const Tensor& gradient) {
      for (const Gathered& g : all) {
        g.buffer->refill();
        g.show();
      }
      return gradient;
    };
    return y.with(differentiable("fsdp_refill", y.local(), identity, refill));
  }

 private:
  std::vector<std::shared_ptr<const FlatShards>> groups_;
  FsdpOptions options_;
};

/// The parameters that a layer's call reads outside calls of sharded layers below it.
Parameters read_by(Layer& layer) {
  std::set<const Layer*> covered;
  layer.walk([&](Layer& below) {
    if (&below == &layer || !below.is_sealed()) return;
    below.walk([&](Layer& l) { covered.insert(&l); });
  });
  Parameters out;
  std::set<const Parameter*> seen;
  layer.walk([&](Layer& l) {
    if (covered.contains(&l)) return;
    CLEAVE_CHECK(&l == &layer || !l.has_wraps(), Code::kUsage, l.path(),
                 " recomputes inside the sharded '", layer.path(),
                 "'; fully_shard it too, before what is above it");
    for (const auto& p : l.own_parameters()) {
      if (seen.insert(p.get()).second) out.push_back(p);
    }
  });
  return out;
}

/// Parameters that several layers of a tree own.
std::set<const Parameter*> tied_parameters(Layer& root) {
  std::set<const Parameter*> once, tied;
  root.walk([&](Layer& l) {
    for (const auto& p : l.own_parameters()) {
      if (!once.insert(p.get()).second) tied.insert(p.get());
    }
  });
  return tied;
}

}  // namespace

void fully_shard(Layer& layer, const Axis& dp, const FsdpOptions& options) {
  layer.name_tree();
  CLEAVE_CHECK(!layer.is_sealed(), Code::kUsage, layer.path(), " is fully sharded already");
  const std::set<const Parameter*> tied = tied_parameters(layer.root());
  std::vector<std::shared_ptr<const FlatShards>> groups;
  Parameters own;
  for (const auto& p : read_by(layer)) {
    if (!tied.contains(p.get())) {
      own.push_back(p);
    } else {
      // A group by itself, so that every call that reads it knows the cut.
      groups.push_back(std::make_shared<FlatShards>(Parameters{p}, dp, options.replicate));
    }
  }
  if (!own.empty()) groups.push_back(std::make_shared<FlatShards>(own, dp, options.replicate));
  if (!groups.empty()) layer.attach(std::make_unique<Fsdp>(std::move(groups), options));
}

}  // namespace cleave
