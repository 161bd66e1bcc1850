#include "cleave/nn/experts.h"

#include <algorithm>
#include <bit>
#include <numeric>

#include <ATen/ATen.h>

#include "cleave/nn/balance_loss.h"
#include "cleave/nn/expert_exchange.h"
#include "cleave/nn/mlp.h"
#include "cleave/nn/subject.h"
#include "cleave/torch_internals/node.h"

namespace cleave::inline nn {
namespace {

/// A projection of an expert. A token uses the share top_k / num_experts of all experts' weights.
class ExpertLinear : public Linear {
 public:
  ExpertLinear(const LinearOptions& linear, const ExpertsOptions& experts)
      : Linear(linear),
        share_(static_cast<double>(experts.top_k) / static_cast<double>(experts.num_experts)) {}

  [[nodiscard]] double forward_flops_per_token(int64_t seq_len) const override {
    return share_ * Linear::forward_flops_per_token(seq_len);
  }
  void split_rows(const Axis& axis) override {
    CLEAVE_CHECK(!output_layout() || output_layout()->is_partial(), Code::kShape, path(),
                 ": an expert's output stays a partial sum; leave out its `output` in the plan, "
                 "and set that of the layer that owns the experts");
    set_output_layout(Partial{});
    Linear::split_rows(axis);
  }

 private:
  double share_;
};

std::unique_ptr<Linear> projection(const ExpertsOptions& o, bool is_down) {
  return std::make_unique<ExpertLinear>(
      LinearOptions{.in_features = is_down ? o.intermediate : o.hidden,
                    .out_features = is_down ? o.hidden : o.intermediate,
                    .bias = false,
                    .init = o.init,
                    .default_style = is_down ? DefaultStyle::kRowwise : DefaultStyle::kColwise},
      o);
}

/// The indices that sort the keys in ascending order; equal keys keep their order.
Tensor order_of(const Tensor& keys) {
  return std::get<1>(at::sort(keys, /*stable=*/true, /*dim=*/0, /*descending=*/false));
}

/// Rows for the experts: a token has one for each of its experts, and rows are sorted by expert.
/// All moves are gathers, forward and backward, so that sums have one order on every device.
class Dispatch {
 public:
  explicit Dispatch(const Tensor& experts)
      : num_tokens_(experts.size(0)),
        top_k_(experts.size(1)),
        order_(order_of(experts.flatten())),
        places_(order_of(order_)) {}

  /// The rows [N * top_k, D] of tokens x [N, D].
  [[nodiscard]] Tensor rows(const Tensor& x) const {
    return differentiable(
        "expert_rows", x,
        [&](const Tensor& t) { return t.index_select(0, at::div(order_, top_k_, "floor")); },
        [d = *this](const Tensor& gradient) { return d.by_token(gradient).sum(1); });
  }
  /// The sums [N, D] of each token's rows, multiplied with weights [N, top_k].
  [[nodiscard]] Tensor tokens(const Tensor& rows, const Tensor& weights) const {
    const Tensor own = differentiable(
        "expert_results", rows, [&](const Tensor& t) { return by_token(t); },
        [order = order_](const Tensor& gradient) {
          return gradient.flatten(0, 1).index_select(0, order);
        });
    // Computed in the weights' type, as in transformers' Mixtral. The router's gradient is a
    // difference of products with the experts' results, so in 16 bits it would lose the digits that
    // these have in common.
    return (own * weights.unsqueeze(-1)).sum(1).to(rows.scalar_type());
  }

 private:
  /// Sorted rows [N * top_k, D] as [N, top_k, D].
  [[nodiscard]] Tensor by_token(const Tensor& rows) const {
    return rows.index_select(0, places_).view({num_tokens_, top_k_, rows.size(1)});
  }

  int64_t num_tokens_, top_k_;
  Tensor order_;   // of a sorted row, its place among the pairs of token and expert
  Tensor places_;  // of a pair, its sorted row
};

/// Rows of each expert.
std::vector<int64_t> counts_of(const Tensor& experts, int64_t num_experts) {
  std::vector<int64_t> counts;
  if (experts.is_meta()) {  // a forecast: as if tokens were spread evenly
    const int64_t rows = experts.numel();
    for (int64_t e = 0; e < num_experts; ++e) {
      counts.push_back(rows * (e + 1) / num_experts - rows * e / num_experts);
    }
    return counts;
  }
  // Not bincount, which reads the largest value first: two waits for a device instead of one.
  const Tensor expert = at::arange(num_experts, experts.options());
  const Tensor all = experts.flatten().unsqueeze(1).eq(expert).sum(0).to(at::kCPU);
  const auto* data = all.const_data_ptr<int64_t>();
  return {data, data + num_experts};
}

/// `part` with rows of zeros after its own. oneDNN compiles a kernel for every new number of rows,
/// which takes longer than many a product, and an expert's number differs in every step: multiples
/// come again. They are at most a sixteenth larger.
Tensor padded(const Tensor& part) {
  constexpr int64_t kFew = 32, kLeastStep = 8;
  const int64_t count = part.size(0);
  if (!part.is_cpu() || part.scalar_type() == at::kDouble || count <= kFew) return part;
  const auto step =
      std::max(kLeastStep, static_cast<int64_t>(std::bit_floor(static_cast<uint64_t>(count)) / 16));
  const int64_t missing = (step - count % step) % step;
  return missing == 0 ? part : at::constant_pad_nd(part, {0, 0, 0, missing});
}

}  // namespace

Tensor router_probabilities(const Tensor& logits) {
  return at::softmax(logits, -1, logits.scalar_type() == at::kDouble ? at::kDouble : at::kFloat);
}

Routing route(const Tensor& probabilities, int64_t top_k, bool normalizes) {
  auto [weights, experts] = at::topk(probabilities, top_k, -1);
  if (normalizes) weights = weights / weights.sum(-1, true);
  return {.experts = experts, .weights = weights};
}

Expert::Expert(const ExpertsOptions& o)
    : activation_(o.activation),
      gate_(projection(o, false)),
      up_(projection(o, false)),
      down_(projection(o, true)) {
  add(o.names.gate, *gate_);
  add(o.names.up, *up_);
  add(o.names.down, *down_);
}

bool Expert::is_split() const {
  return gate_->is_column_split();
}

bool Expert::is_wrapped() const {
  return has_wraps() || gate_->has_wraps() || up_->has_wraps() || down_->has_wraps();
}

void Expert::check_split(const Axis& /*axis*/) {
  const bool split = is_split();
  CLEAVE_CHECK(up_->is_column_split() == split && down_->is_row_split() == split &&
                   !gate_->is_row_split() && !up_->is_row_split() && !down_->is_column_split(),
               Code::kShape, path(),
               ": an expert's projections belong together; give the first two the style colwise "
               "and the last rowwise, or give none of them a style");
}

DTensor Expert::forward(const DTensor& x, const Context& context) {
  const DTensor shared = gate_->shared_input(x);
  const DTensor gate = (*gate_)(shared, context);
  const DTensor up = (*up_)(shared, context);
  const auto product = [this](const Tensor& g, const Tensor& u) {
    return gated(activation_, g, u);
  };
  return (*down_)(mine(map(product, gate, up)), context);
}

Experts::Experts(const ExpertsOptions& o)
    : top_k_(o.top_k),
      normalizes_(o.normalizes),
      gate_({.in_features = o.hidden,
             .out_features = o.num_experts,
             .bias = false,
             .init = o.init,
             .least_bits = 16}) {
  CLEAVE_CHECK(o.top_k > 0 && o.top_k <= o.num_experts, Code::kShape, "Experts(top_k=", o.top_k,
               ", num_experts=", o.num_experts, "); top_k must be from 1 to num_experts");
  add("gate", gate_);
  for (int64_t e = 0; e < o.num_experts; ++e) {
    experts_.push_back(std::make_unique<Expert>(o));
    add(str("experts.", e), *experts_.back());
  }
  own_ = {0, o.num_experts};
}

void Experts::share_out(const Axis& ep, const Axis& copies, RankTokens tokens) {
  const auto num_experts = std::ssize(experts_);
  CLEAVE_CHECK(num_experts >= ep.size(), Code::kShape, path(), " has ", num_experts,
               " experts, fewer than ep=", ep.size(), "; every rank of ep needs one");
  ep_ = ep;
  tokens_ = tokens;
  shares_ = Split::balanced(num_experts, ep.size());
  own_ = shares_->ranges(ep.rank()).front();
  for (int64_t e = 0; e < num_experts; ++e) {
    const bool is_here = e >= own_.begin && e < own_.end;
    for (const auto& p : experts_[static_cast<size_t>(e)]->parameters()) {
      p->set_copies(copies, is_here);
      if (!is_here) p->set_ownership(Parameter::Ownership::kNotOwned);
    }
  }
}

void Experts::check_split(const Axis& /*axis*/) {
  CLEAVE_CHECK(!gate_.weight()->is_split(), Code::kShape, gate_.path(),
               ": every rank needs all logits of the router; leave it out of the plan");
  for (const auto& expert : experts_) {
    CLEAVE_CHECK(expert->is_split() == is_split(), Code::kShape, expert->path(), " and ",
                 experts_.front()->path(),
                 " have different styles; give all experts of a layer the same in the plan");
  }
  if (is_split() && !output_layout()) set_output_layout(Replicate{});
}

std::optional<Placement> Experts::accepts(const DTensor& /*x*/) const {
  return is_split() ? std::optional<Placement>(Fanout{}) : std::nullopt;
}

Routing Experts::routed(const DTensor& logits, const Context& context) const {
  Tensor probabilities = router_probabilities(logits.local());
  BalanceLoss* balance = context.balance.get();
  const bool adds_gradient = !logits.placement().is_fanout() || logits.axis().rank() == 0;
  if (balance != nullptr && adds_gradient) {
    probabilities = balance->with_gradient(probabilities, context.key_mask);
  }
  // Ranks may round differently, and all must choose the same experts.
  if (tokens_ == RankTokens::kSame) ep_.broadcast_(probabilities, 0, path());
  Routing routing = route(probabilities, top_k_, normalizes_);
  if (balance != nullptr) balance->count(probabilities, routing.experts, context.key_mask);
  return routing;
}

Tensor Experts::results(const DTensor& x, const Tensor& rows, const std::vector<int64_t>& counts,
                        const Context& context) const {
  const std::vector<Tensor> parts = rows.split_with_sizes(counts, 0);
  std::vector<Tensor> out;
  for (size_t i = 0; i < parts.size(); ++i) {
    Expert& expert = *experts_[static_cast<size_t>(own_.begin) + i];
    // Without rows, a call only makes gradients of zeros and the collectives of wraps.
    const bool is_needed = at::GradMode::is_enabled() || expert.is_wrapped();
    if (counts[i] == 0 && !is_needed) continue;
    const DTensor y = expert(x.with(padded(parts[i])), context);
    CLEAVE_CHECK(!is_split() || y.placement().is_partial(), Code::kShape, expert.path(),
                 ": an expert's output stays a partial sum, but the plan changes it to ",
                 y.placement().describe(), "; leave out its `output`");
    out.push_back(y.local().narrow(0, 0, counts[i]));
  }
  return out.empty() ? rows : at::cat(out);
}

Tensor Experts::exchanged(const DTensor& x, const Tensor& rows, const std::vector<int64_t>& counts,
                          const Context& context) const {
  if (ep_.size() == 1) return results(x, rows, counts, context);
  if (tokens_ == RankTokens::kSame) return joined(x, rows, counts, context);
  const ExpertExchange exchange(counts, shares_, ep_, path(), /*is_dry=*/rows.is_meta());
  Tensor own = results(x, exchange.to_experts(rows), exchange.counts(), context);
  // Backward of to_tokens() is collective: a rank whose experts are all frozen takes part in it.
  if (at::GradMode::is_enabled() && !own.requires_grad() && is_trained()) {
    own = own.detach().requires_grad_();
  }
  return exchange.to_tokens(own);
}

Tensor Experts::joined(const DTensor& x, const Tensor& rows, const std::vector<int64_t>& counts,
                       const Context& context) const {
  const std::vector<int64_t> widths = rows_by_rank(counts, *shares_);
  const auto own = widths.begin() + ep_.rank();
  const int64_t begin = std::accumulate(widths.begin(), own, int64_t{0});
  const Tensor mine = results(x, rows.narrow(0, begin, *own),
                              {counts.begin() + own_.begin, counts.begin() + own_.end}, context);
  return ep_.all_gather(mine, 0, widths, path());
}

bool Experts::is_trained() const {
  return std::any_of(experts_.begin(), experts_.end(),
                     [](const auto& expert) { return !trained_of(expert->parameters()).empty(); });
}

DTensor Experts::forward(const DTensor& x, const Context& context) {
  CLEAVE_CHECK(x.placement().is_whole(), Code::kShape, subject(path()),
               "the experts have no style in the plan and got ", x.placement().describe(),
               " made by ", x.maker(),
               "; give their projections the styles colwise, colwise and rowwise");
  const Tensor tokens = x.local().flatten(0, -2);
  const DTensor logits = gate_(x.with(tokens), context);
  const Routing routing = routed(logits, context);
  const Dispatch dispatch(routing.experts);
  const std::vector<int64_t> counts =
      counts_of(routing.experts, static_cast<int64_t>(experts_.size()));
  const Tensor sorted = exchanged(x, dispatch.rows(tokens), counts, context);
  const Tensor y = dispatch.tokens(sorted, routing.weights).view(x.local().sizes());
  return mine(is_split() ? x.with(y, Partial{}) : x.with(y));
}

Axis same_tokens_axis(Layer& model) {
  Axis found;
  model.walk([&](Layer& layer) {
    if (const auto* experts = dynamic_cast<Experts*>(&layer)) found = experts->same_tokens();
  });
  return found;
}

}  // namespace cleave::inline nn
