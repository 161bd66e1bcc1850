#include "cleave/nn/expert_exchange.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/nn/experts.h"
#include "cleave/parallel/recompute.h"
#include "tests/support/thrown.h"
#include "tests/support/unsplit.h"

// Oracle: the layer with all experts and the tokens of all ranks on one rank, in fp64
// (experts_test.cc compares that with plain tensor functions).
namespace cleave::expert_exchange_test {
namespace {

using test::numbers;
using test::Weights;

const ExpertsOptions kOptions{
    .hidden = 7, .intermediate = 5, .num_experts = 5, .top_k = 2, .names = {}};
constexpr int64_t kTokens = 9;

/// The tokens of a rank: 1, then 3, and the rest on the last one.
Range tokens_of(const Axis& ep) {
  const int64_t begin = ep.rank() == 0 ? 0 : 3 * ep.rank() - 2;
  const bool is_last = ep.rank() + 1 == ep.size();
  return {begin, is_last ? kTokens : 3 * ep.rank() + 1};
}

Tensor part(const Tensor& t, Range range) {
  return t.narrow(1, range.begin, range.size());
}

/// Which experts the tokens have: any; not 1 and 3; or only 0 and 1, which rank 0 has.
enum class Routed : uint8_t { kAny, kNotToTwo, kToRank0 };

/// Random weights with such a router: inputs are positive, so that rows of large numbers decide.
Weights weights_of(Layer& layer, Routed routed) {
  Weights w = test::weights_for(layer);
  Tensor& router = w.at("gate.weight");
  router.abs_();
  for (const int64_t e : {1, 3}) {
    if (routed == Routed::kNotToTwo) router[e].sub_(10);
  }
  for (const int64_t e : {0, 1}) {
    if (routed == Routed::kToRank0) router[e].add_(10);
  }
  return w;
}

struct Pass {
  Tensor y, x_grad;
  Weights gradients;  ///< of weights that have one
};

Pass pass_of(Experts& layer, const Tensor& x, const Tensor& upstream) {
  const Tensor leaf = test::leaf_of(x);
  const Tensor y = layer(DTensor(leaf, Axis(), Replicate{}), {}).local();
  (y * upstream).sum().backward();
  Pass out{.y = y.detach(), .x_grad = leaf.grad(), .gradients = {}};
  for (const auto& p : layer.parameters()) {
    if (p->leaf().defined() && p->leaf().grad().defined())
      out.gradients[p->name()] = p->leaf().grad();
  }
  return out;
}

void expect_equals_one_rank(int num_ranks, Routed routed, bool recomputes) {
  const Tensor x = numbers({1, kTokens, kOptions.hidden}, 1).abs();
  const Tensor upstream = numbers(x.sizes(), 2);
  Experts whole(kOptions);
  const Weights weights = weights_of(whole, routed);
  test::fill(whole, weights, at::kDouble);
  const Pass want = pass_of(whole, x, upstream);
  test::on_ranks(num_ranks, [&](const Axis& ep) {
    Experts layer(kOptions);
    layer.share_out(ep, Axis());
    test::fill(layer, weights, at::kDouble);
    if (recomputes) recompute(layer);
    const Range own = tokens_of(ep);
    const Pass got = pass_of(layer, part(x, own), part(upstream, own));
    EXPECT_LE(test::largest_difference(got.y, part(want.y, own)), 1e-12);
    EXPECT_LE(test::largest_difference(got.x_grad, part(want.x_grad, own)), 1e-12);
    const Tensor router = ep.all_reduce(got.gradients.at("gate.weight"), "router");
    EXPECT_LE(test::largest_difference(router, want.gradients.at("gate.weight")), 1e-12);
    for (const auto& p : layer.parameters()) {
      if (!p->copies()) continue;
      ASSERT_EQ(got.gradients.contains(p->name()), p->is_here()) << p->name();
      if (!p->is_here()) continue;
      const Tensor& gradient = want.gradients.at(p->name());
      EXPECT_LE(test::largest_difference(got.gradients.at(p->name()), gradient), 1e-12)
          << p->name();
    }
    const at::NoGradGuard no_grad;
    const Tensor y = layer(DTensor(part(x, own), Axis(), Replicate{}), {}).local();
    EXPECT_LE(test::largest_difference(y, part(want.y, own)), 1e-12);
  });
}

// 5 experts on 2, 3 and 4 ranks, whose numbers of tokens differ.
TEST(Experts, SharedOut_EqualTheLayerOnOneRank) {
  for (const int num_ranks : {2, 3, 4}) {
    for (const bool recomputes : {false, true}) {
      expect_equals_one_rank(num_ranks, Routed::kAny, recomputes);
    }
  }
}

TEST(Experts, SharedOutWithoutTokensForSome_EqualTheLayerOnOneRank) {
  expect_equals_one_rank(2, Routed::kNotToTwo, false);
  expect_equals_one_rank(4, Routed::kNotToTwo, true);
}

// Rank 0 has experts 0 and 1; the others receive nothing, and rank 0 sends nothing to others.
TEST(Experts, SharedOutWithAllTokensOnOneRank_EqualTheLayerOnOneRank) {
  expect_equals_one_rank(2, Routed::kToRank0, false);
  expect_equals_one_rank(3, Routed::kToRank0, true);
}

/// The layer on `num_ranks` ranks that have the same tokens, but for `noise`, relative, on all but
/// the first rank, is the layer on one rank within `tolerance`, and the same on all ranks.
void expect_same_tokens(int num_ranks, const Weights& weights, const Tensor& x, double noise,
                        double tolerance) {
  const at::NoGradGuard no_grad;
  Experts whole(kOptions);
  test::fill(whole, weights, at::kDouble);
  const Tensor want = whole(DTensor(x, Axis(), Replicate{}), {}).local();
  test::on_ranks(num_ranks, [&](const Axis& ep) {
    const at::NoGradGuard no_grad_here;
    Experts layer(kOptions);
    layer.share_out(ep, Axis(), RankTokens::kSame);
    test::fill(layer, weights, at::kDouble);
    EXPECT_EQ(same_tokens_axis(layer), ep);
    for (const auto& p : layer.parameters()) {
      EXPECT_EQ(p->leaf().defined(), p->is_here()) << p->name();
    }
    const Tensor own = ep.rank() == 0 ? x : x * (1 + noise * numbers(x.sizes(), 7));
    const Tensor y = layer(DTensor(own, Axis(), Replicate{}), {}).local();
    EXPECT_LE(test::largest_difference(y, want), tolerance) << ep.size();
  });
}

TEST(Experts, SharedOutForTheSameTokens_EqualTheLayerOnOneRank) {
  const Tensor x = numbers({1, kTokens, kOptions.hidden}, 1).abs();
  Experts layer(kOptions);
  for (const Routed routed : {Routed::kAny, Routed::kNotToTwo, Routed::kToRank0}) {
    const Weights weights = weights_of(layer, routed);
    for (const int num_ranks : {2, 3, 4}) expect_same_tokens(num_ranks, weights, x, 0, 1e-14);
  }
}

// The router gives all experts the same probability up to rounding, so that each rank by itself
// would choose others.
TEST(Experts, SharedOutForTokensThatRanksRoundDifferently_AreChosenByTheFirstRank) {
  const Tensor x = numbers({1, kTokens, kOptions.hidden}, 1).abs();
  Experts layer(kOptions);
  Weights weights = weights_of(layer, Routed::kAny);
  weights.at("gate.weight")
      .copy_(weights.at("gate.weight")[0].expand_as(weights.at("gate.weight")));
  weights.at("gate.weight").add_(1e-15 * numbers({kOptions.num_experts, kOptions.hidden}, 3));
  for (const int num_ranks : {2, 4}) expect_same_tokens(num_ranks, weights, x, 1e-14, 1e-11);
}

TEST(Experts, SharedOutInBf16_AreAsNearToFp64AsOneRank) {
  const Tensor x = numbers({1, kTokens, kOptions.hidden}, 1).abs();
  ExpertsOptions all = kOptions;  // rounding must not decide which experts a token has
  all.top_k = all.num_experts;
  Experts whole(all);
  const Weights weights = test::weights_for(whole);
  test::fill(whole, weights, at::kBFloat16);
  const Tensor upstream = at::ones_like(x);
  const Pass want = pass_of(whole, x.to(at::kBFloat16), upstream);
  test::on_ranks(2, [&](const Axis& ep) {
    Experts layer(all);
    layer.share_out(ep, Axis());
    test::fill(layer, weights, at::kBFloat16);
    const Range own = tokens_of(ep);
    const Pass got = pass_of(layer, part(x, own).to(at::kBFloat16), part(upstream, own));
    // Products of 7 and 5 terms in another order: some are rounded the other way, 2^-8 relative.
    const double largest = want.y.abs().max().item<double>();
    EXPECT_LE(test::largest_difference(got.y, part(want.y, own)), largest * 0x1p-6);
  });
}

TEST(Experts, FewerExpertsThanRanks_AreRefused) {
  ExpertsOptions o = kOptions;
  o.num_experts = 2;
  test::on_ranks(3, [&](const Axis& ep) {
    Experts layer(o);
    layer.name_tree();
    EXPECT_EQ(test::thrown_by([&] { layer.share_out(ep, Axis()); }).code(), Code::kShape);
  });
}

}  // namespace
}  // namespace cleave::expert_exchange_test
