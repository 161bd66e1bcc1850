// One call of a sharded layer, on all ranks of the data-parallel axis:
//   1. Forward: the shards are gathered into a buffer; a graph node connects the leaves to the
//      gathered weights, which forward reads. After forward the buffer's memory is freed; the graph
//      keeps its tensors.
//   2. An identity node on the layer's output runs first in backward: it gathers into the buffer
//      again and sets the weights as those that a recomputation reads.
//   3. Frozen weights have no such node; an identity node on the layer's input frees their buffer.
//      If the input has no gradient, their buffer is freed at the end of backward. So are
//      weights that forward did not use, since backward does not reach their node.
//   4. The node of step 1 runs when the gradients of all its weights are complete: it frees the
//      buffer and starts to sum the gradients into shards. The sum is added to the leaves when the
//      next sum starts, or at the end of backward.
// If layers were sharded as a list, each layer starts the gather of the one that is called after
// it, in backward of the one that was called before it.
#include "cleave/parallel/fsdp.h"

#include <algorithm>
#include <cstdint>
#include <iterator>
#include <map>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/nn/gradient_state.h"
#include "cleave/nn/subject.h"
#include "cleave/parallel/forward_changes.h"
#include "cleave/torch_internals/graph.h"
#include "cleave/torch_internals/node.h"
#include "cleave/torch_internals/tensor.h"

namespace cleave::inline parallel {
namespace {

/// The memory of one call's gathered weights.
class Buffer {
 public:
  /// Starts the gather.
  Buffer(std::shared_ptr<const FlatShards> shards, const ShardPrecision& precision)
      : shards_(std::move(shards)),
        precision_(precision),
        gather_(shards_->start_gather(precision.param)) {}

  [[nodiscard]] const Parameters& parameters() const { return shards_->parameters(); }
  [[nodiscard]] bool is_frozen() const { return parameters().front()->is_frozen(); }
  [[nodiscard]] bool is_allocated() const { return is_allocated_; }
  /// Waits for the first gather and returns the weights.
  [[nodiscard]] std::vector<Tensor> take_parts() {
    flat_ = gather_.wait();
    is_allocated_ = true;
    versions_ = versions_of_leaves();
    return shards_->parts_of(flat_);
  }

  /// Frees the memory. Its tensors stay, without storage; nothing may read the weights until
  /// refill().
  void free() {
    for (const auto& p : parameters()) p->set_use({});
    free_storage(flat_);
    is_allocated_ = false;
  }
  /// Starts to gather again, for the same tensors. Collective.
  void start_refill() {
    if (!is_allocated_ && !gather_.is_pending()) {
      gather_ = shards_->start_gather(precision_.param);
    }
  }
  /// Throws Error(kUsage) if the leaves have changed since take_parts().
  void refill() {
    CLEAVE_CHECK(versions_ == versions_of_leaves(), Code::kUsage, parameters().front()->name(),
                 " or a weight beside it was changed in place after forward read it; call an "
                 "optimizer's step only after backward");
    if (is_allocated_) return;
    start_refill();
    move_storage(gather_.wait(), flat_);
    is_allocated_ = true;
  }
  [[nodiscard]] GradientReduction start_reduce(variable_list&& gradients) const {
    return shards_->start_reduce(std::move(gradients), precision_);
  }
  [[nodiscard]] std::vector<Tensor> finish_reduce(GradientReduction& reduction) const {
    return shards_->finish_reduce(reduction);
  }
  void record_reduced() const { shards_->record_reduced(); }

 private:
  [[nodiscard]] std::vector<uint32_t> versions_of_leaves() const {
    std::vector<uint32_t> out;
    for (const auto& p : parameters()) {
      out.push_back(p->leaf().is_inference() ? 0 : version_of(p->leaf()));
    }
    return out;
  }

  std::shared_ptr<const FlatShards> shards_;
  ShardPrecision precision_;
  Work gather_;
  Tensor flat_;
  bool is_allocated_ = false;
  std::vector<uint32_t> versions_;  // of the leaves in take_parts()
};

using Buffers = std::vector<std::shared_ptr<Buffer>>;

/// The gradient sum that was started and is not on the leaves yet: of at most one buffer.
class PendingSum : public std::enable_shared_from_this<PendingSum> {
 public:
  void add(const std::shared_ptr<Buffer>& buffer, variable_list&& gradients) {
    discard_of_failed_backward();
    GradientReduction reduction = buffer->start_reduce(std::move(gradients));
    finish();
    buffer_ = buffer;
    reduction_ = std::move(reduction);
    const auto backward = std::make_shared<char>();
    backward_ = backward;
    after_backward([self = shared_from_this(), backward] { self->finish(); });
  }

 private:
  /// If a backward throws, it never calls its after_backward() functions and destroys them. Then
  /// this drops the sum that it started.
  void discard_of_failed_backward() {
    if (!buffer_ || !backward_.expired()) return;
    (void)buffer_->finish_reduce(reduction_);
    buffer_ = nullptr;
  }

  void finish() {
    if (!buffer_) return;
    const std::vector<Tensor> reduced = buffer_->finish_reduce(reduction_);
    const at::NoGradGuard no_grad;
    for (size_t i = 0; i < reduced.size(); ++i) {
      const Parameter& p = *buffer_->parameters()[i];
      if (!p.is_trained()) continue;
      Tensor& gradient = p.leaf().mutable_grad();
      if (gradient.defined()) {
        // A mean over data-parallel ranks, or a sum over stages, belongs to an earlier step.
        if (is_mean(p) || is_tied_sum(p)) check_no_stale_gradients({buffer_->parameters()[i]});
        // With one rank the first gradient is narrow (FlatShards::start_reduce).
        if (gradient.scalar_type() != p.leaf().scalar_type()) {
          gradient = gradient.to(p.leaf().scalar_type());
        }
        gradient.add_(reduced[i]);
      } else {
        gradient = reduced[i].clone();  // autograd may own the memory
      }
    }
    buffer_->record_reduced();
    buffer_ = nullptr;
  }

  std::shared_ptr<Buffer> buffer_;
  GradientReduction reduction_;
  std::weak_ptr<char> backward_;  // expires with the backward that started the sum
};

/// A buffer and its weights in the graph. The weights' graph node holds only the buffer: with the
/// weights it would hold itself.
struct Gathered {
  std::shared_ptr<Buffer> buffer;
  std::vector<Tensor> weights;

  /// Makes the weights those that forward reads.
  void install() const {
    for (size_t i = 0; i < weights.size(); ++i) buffer->parameters()[i]->set_use(weights[i]);
  }
};

Gathered gathered(const std::shared_ptr<Buffer>& buffer,
                  const std::shared_ptr<PendingSum>& pending) {
  Gathered g{.buffer = buffer, .weights = buffer->take_parts()};
  if (!at::GradMode::is_enabled() || buffer->is_frozen()) return g;
  variable_list leaves;
  for (const auto& p : buffer->parameters()) leaves.push_back(p->leaf());
  connect("fsdp_gather", leaves, g.weights, [buffer, pending](variable_list&& gradients) {
    buffer->free();
    const size_t count = gradients.size();
    pending->add(buffer, std::move(gradients));
    return variable_list(count);  // undefined: `pending` sets those of the leaves
  });
  return g;
}

/// How forward reads the weights of a group: frozen weights in their own type, as without FSDP, and
/// other weights in the common type, unless they keep the type of their leaf.
ShardPrecision precision_of(const Parameters& group, const ShardPrecision& common) {
  const Parameter& p = *group.front();
  ShardPrecision own = common;
  if (p.keeps_leaf_type()) own.param = common.reduce;
  own.param = read_type(p, own);
  if (p.is_frozen()) own.param = p.leaf_type(common.param);
  return own;
}

class Fsdp;

/// Layers that are called in order, and how far the current forward is.
struct CallOrder {
  std::vector<const Fsdp*> layers{};
  size_t next = 0;     // the layer that is called next, if the current forward continues
  Buffers ahead{};     // of the next layer; their gather is started
  Buffers previous{};  // of the layer that was called last
  std::shared_ptr<PendingSum> pending = std::make_shared<PendingSum>();
};

/// Gathers what a layer's calls read: its own parameters, and tied ones of other layers.
class Fsdp : public Wrap {
 public:
  Fsdp(std::vector<std::shared_ptr<const FlatShards>> groups, const FsdpOptions& options,
       std::shared_ptr<CallOrder> order)
      : groups_(std::move(groups)),
        options_(options),
        order_(std::move(order)),
        place_(order_->layers.size()) {
    order_->layers.push_back(this);
  }

  [[nodiscard]] bool is_outermost() const override { return true; }

  DTensor call(Layer& layer, const DTensor& x, const Context& context, const Next& next) override {
    for (const auto& group : groups_) check_leaf_types(group->parameters(), options_.precision);
    Buffers previous;
    const Buffers buffers = own_buffers(previous);
    Buffers frozen;
    std::copy_if(buffers.begin(), buffers.end(), std::back_inserter(frozen),
                 [](const auto& buffer) { return buffer->is_frozen(); });
    const bool frees_at_input = !frozen.empty() && needs_grad(x.local());
    std::vector<Gathered> all;
    Parameters weights;
    for (const auto& buffer : buffers) {
      all.push_back(gathered(buffer, order_->pending));
      all.back().install();
      weights.insert(weights.end(), buffer->parameters().begin(), buffer->parameters().end());
    }
    start_ahead(all);
    const ForwardChanges changes(weights);
    DTensor y = next(frees_at_input ? freeing(x, frozen) : x, context);
    changes.refuse(layer, "under FSDP reads a copy that is freed after the call");
    const bool has_backward = needs_grad(y.local());
    if (options_.reshard_after_forward || !has_backward) {
      for (const Gathered& g : all) g.buffer->free();
    }
    if (!has_backward) {
      order_->previous.clear();  // backward does not reach this layer, so it needs no refill
      return y;
    }
    const auto identity = [](const Tensor& t) { return t; };
    const auto refill = [all, previous, buffers](const Tensor& gradient) {
      for (const Gathered& g : all) {
        g.buffer->refill();
        g.install();
      }
      for (const auto& buffer : previous) buffer->start_refill();
      free_after_backward(buffers);
      return gradient;
    };
    return y.with(differentiable("fsdp_refill", y.local(), identity, refill));
  }

 private:
  /// Returns x. When backward has computed its gradient, it needs the frozen weights no more, and
  /// they are freed.
  static DTensor freeing(const DTensor& x, const Buffers& frozen) {
    const auto identity = [](const Tensor& t) { return t; };
    const auto free = [frozen](const Tensor& gradient) {
      for (const auto& buffer : frozen) buffer->free();
      return gradient;
    };
    return x.with(differentiable("fsdp_free", x.local(), identity, free));
  }

  /// Frees what no node frees: buffers of weights that forward did not use in this call, and frozen
  /// ones if the input has no gradient.
  static void free_after_backward(const Buffers& buffers) {
    after_backward([buffers] {
      for (const auto& buffer : buffers) {
        if (buffer->is_allocated()) buffer->free();
      }
    });
  }

  [[nodiscard]] Buffers start() const {
    Buffers out;
    for (const auto& group : groups_) {
      out.push_back(
          std::make_shared<Buffer>(group, precision_of(group->parameters(), options_.precision)));
    }
    return out;
  }

  /// This call's buffers. `previous`: those of the call before it in the same forward.
  [[nodiscard]] Buffers own_buffers(Buffers& previous) {
    Buffers ahead = std::exchange(order_->ahead, {});
    const bool continues = place_ > 0 && place_ == order_->next;
    if (continues) previous = std::exchange(order_->previous, {});
    // Buffers gathered for a forward that was not completed may have outdated weights.
    return continues && !ahead.empty() ? ahead : start();
  }

  /// Starts to gather the next layer's weights, while this one computes.
  void start_ahead(const std::vector<Gathered>& own) {
    order_->next = place_ + 1;
    order_->previous.clear();
    if (order_->next == order_->layers.size()) return;
    for (const Gathered& g : own) order_->previous.push_back(g.buffer);
    order_->ahead = order_->layers[order_->next]->start();
  }

  std::vector<std::shared_ptr<const FlatShards>> groups_;
  FsdpOptions options_;
  std::shared_ptr<CallOrder> order_;
  size_t place_;  // in order_->layers
};

/// The parameters that a layer's call reads, without those of sharded layers below it.
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
    CLEAVE_CHECK(&l == &layer || !l.has_wraps(), Code::kUsage, layer_name(l.path()),
                 " recomputes inside ", layer_name(layer.path()),
                 ", which is fully sharded; call fully_shard on ", layer_name(l.path()),
                 " too, before the layers above it");
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

/// What a buffer holds, in the order in which a layer gathers its buffers.
enum class Contents : uint8_t { kQuantized, kFrozen, kLeafType, kTrained };

Contents contents_of(const Parameter& p) {
  if (p.is_quantized()) return Contents::kQuantized;
  if (p.is_frozen()) return Contents::kFrozen;
  return p.keeps_leaf_type() ? Contents::kLeafType : Contents::kTrained;
}

void shard(Layer& layer, const Axis& dp, const FsdpOptions& options,
           const std::shared_ptr<CallOrder>& order) {
  layer.name_tree();
  CLEAVE_CHECK(
      !layer.is_sealed(), Code::kUsage, layer_name(layer.path()),
      " is already fully sharded, or its gradients are summed during backward; call "
      "fully_shard once for each layer, before sum_during_backward() or the partition of an "
      "NxDPPModel. For a layer that occurs several times in a sequence, choose ZeRO-1 "
      "instead");
  const std::set<const Parameter*> tied = tied_parameters(layer.root());
  std::vector<std::shared_ptr<const FlatShards>> groups;
  // A buffer has either gradients or none, one type, and one axis: other ranks have copies of
  // experts.
  std::map<std::pair<Contents, at::ScalarType>, Parameters> own, experts;
  for (const auto& p : read_by(layer)) {
    const std::pair kind(contents_of(*p), p->leaf_type(options.precision.param));
    if (p->copies()) {
      if (p->is_here()) experts[kind].push_back(p);
    } else if (!tied.contains(p.get())) {
      own[kind].push_back(p);
    } else {
      // Its own group, so that every call that reads it uses the same shards.
      groups.push_back(std::make_shared<FlatShards>(Parameters{p}, dp, options.replicate));
    }
  }
  for (const auto& [kind, group] : own) {
    groups.push_back(std::make_shared<FlatShards>(group, dp, options.replicate));
  }
  for (const auto& [kind, group] : experts) {
    groups.push_back(std::make_shared<FlatShards>(group, *group.front()->copies()));
  }
  if (!groups.empty()) layer.attach(std::make_unique<Fsdp>(std::move(groups), options, order));
}

}  // namespace

void fully_shard(Layer& layer, const Axis& dp, const FsdpOptions& options) {
  shard(layer, dp, options, std::make_shared<CallOrder>());
}

void fully_shard(const std::vector<Layer*>& in_order, const Axis& dp, const FsdpOptions& options) {
  const auto order = std::make_shared<CallOrder>();
  for (Layer* layer : in_order) shard(*layer, dp, options, order);
}

}  // namespace cleave::inline parallel
