#include "cleave/layout/dtensor.h"

#include <stdexcept>

#include <gtest/gtest.h>

#include "cleave/base/clock.h"
#include "cleave/torch_internals/node.h"
#include "tests/support/counting_group.h"
#include "tests/support/ranks.h"
#include "tests/support/thrown.h"

// Oracle: a whole tensor X and the linear loss sum(W X) in integers, so that every value and
// gradient is exact and has a closed form:
//   to Replicate  all ranks use the same W            dX = W
//   to Fanout     rank r uses its own W_r             dX = sum of W_r
//   to Shard      each holder uses its own W_r        dX = sum over the holders of an element
// The gradient of the source has the layout that its placement defines.
namespace cleave::dtensor_test {
namespace {

using test::CountingGroup;
using test::leaf_of;
using test::on_ranks;
using test::thrown_by;
using test::whole_numbers;
using Kind = Placement::Kind;
using Counts = std::map<std::string, int>;

constexpr int64_t kShape[] = {5, 3, 6};  // over four ranks: 2 1 1 1, 1 1 1 0, 2 2 1 1

Tensor taken(const Tensor& whole, int64_t dim, const Split& split, int rank) {
  std::vector<Tensor> parts{whole.narrow(dim, 0, 0)};
  for (const Range& r : split.ranges(rank)) parts.push_back(whole.narrow(dim, r.begin, r.size()));
  return at::cat(parts, dim);
}

/// A rank's slice in place, zeros elsewhere.
Tensor padded(const Tensor& slice, const Tensor& like, int64_t dim, const Split& split, int rank) {
  Tensor whole = at::zeros_like(like);
  int64_t begin = 0;
  for (const Range& r : split.ranges(rank)) {
    whole.narrow(dim, r.begin, r.size()).copy_(slice.narrow(dim, begin, r.size()));
    begin += r.size();
  }
  return whole;
}

Tensor weight_of(int rank) {
  return whole_numbers(kShape, 100 + static_cast<uint64_t>(rank));
}

/// This rank's part of X under a placement. Partial: the parts are random but for the last rank's,
/// which completes the sum.
Tensor local_of(const Tensor& x, const Placement& p, const Axis& axis) {
  if (p.is_shard()) return taken(x, p.dim(), *p.split(), axis.rank());
  if (!p.is_partial()) return x;
  Tensor rest = x.clone();
  for (int r = 0; r + 1 < axis.size(); ++r) {
    Tensor part = whole_numbers(kShape, 50 + static_cast<uint64_t>(r));
    if (r == axis.rank()) return part;
    rest -= part;
  }
  return rest;
}

/// Sum over ranks, without the code under test.
Tensor summed(const Tensor& t, const Axis& axis) {
  return axis.all_reduce(t.contiguous(), "test");
}

/// One row of the table, forward and backward, against the closed form.
void expect_row(const Axis& axis, Placement from, Placement to) {
  from = from.normalised(3);
  to = to.normalised(3);
  const std::string what =
      str(from.describe(), " to ", to.describe(), " tp=", axis.size(), " rank=", axis.rank());
  const Tensor x = whole_numbers(kShape, 1);
  const Tensor leaf = leaf_of(local_of(x, from, axis));
  const DTensor y = DTensor(leaf, axis, from).redistribute(to);

  const bool split_loss = axis.size() > 1 && !to.is_replicate();
  Tensor weight = weight_of(split_loss ? axis.rank() : 0);
  Tensor want = x;
  Tensor dx = weight_of(0);
  if (axis.size() > 1 && to.is_shard()) {
    want = taken(x, to.dim(), *to.split(), axis.rank());
    weight = taken(weight, to.dim(), *to.split(), axis.rank());
    dx = at::zeros_like(x);
    for (int r = 0; r < axis.size(); ++r) {
      dx += padded(taken(weight_of(r), to.dim(), *to.split(), r), x, to.dim(), *to.split(), r);
    }
  } else if (split_loss) {
    for (int r = 1; r < axis.size(); ++r) dx = dx + weight_of(r);
  }
  EXPECT_TRUE(at::equal(y.local(), want)) << what;

  (y.local() * weight).sum().backward();
  const Tensor& grad = leaf.grad();
  ASSERT_TRUE(grad.defined()) << what;
  if (axis.size() == 1 || from.is_replicate() || from.is_partial()) {
    EXPECT_TRUE(at::equal(grad, dx)) << what;
  } else if (from.is_fanout()) {
    EXPECT_TRUE(at::equal(summed(grad, axis), dx)) << what;
  } else {
    const Tensor parts = padded(grad, x, from.dim(), *from.split(), axis.rank());
    EXPECT_TRUE(at::equal(summed(parts, axis), dx)) << what;
    if (!from.split()->overlaps()) {
      EXPECT_TRUE(at::equal(grad, taken(dx, from.dim(), *from.split(), axis.rank()))) << what;
    }
  }
}

/// Columns of a fused q, k, v: each third of the dim is sharded evenly.
SplitPtr fused(int64_t whole, int tp) {
  const SplitPtr third = Split::balanced(whole / 3, tp);
  std::vector<std::vector<Range>> ranges;
  for (int r = 0; r < tp; ++r) {
    auto& mine = ranges.emplace_back();
    for (int64_t k = 0; k < 3; ++k) {
      const Range c = third->ranges(r).front();
      mine.push_back({k * whole / 3 + c.begin, k * whole / 3 + c.end});
    }
  }
  return Split::intern(whole, ranges);
}

/// Two KV heads of whole/2 columns; every rank holds one of them.
SplitPtr shared(int64_t whole, int tp) {
  std::vector<std::vector<Range>> ranges;
  for (int r = 0; r < tp; ++r) {
    const int64_t head = tp == 1 ? 0 : r * 2 / tp;
    ranges.push_back(tp == 1 ? std::vector<Range>{{0, whole}}
                             : std::vector<Range>{{head * whole / 2, (head + 1) * whole / 2}});
  }
  return Split::intern(whole, ranges);
}

/// Shard placements of all kinds for a tensor of kShape.
std::vector<Placement> shards(int tp) {
  std::vector<Placement> out;
  for (const int dim : {0, 1, -1}) {
    const int64_t whole = kShape[dim < 0 ? 3 + dim : dim];
    out.emplace_back(Shard{dim, Split::balanced(whole, tp)});
  }
  out.emplace_back(Shard{2, fused(6, tp)});
  out.emplace_back(Shard{1, Split::balanced(3, tp, 3)});  // all of it on rank 0
  if (tp > 1) {
    out.emplace_back(Shard{2, shared(6, tp)});
    out.emplace_back(Shard{
        0, Split::intern(5, std::vector<std::vector<Range>>(static_cast<size_t>(tp), {{0, 5}}))});
  }
  return out;
}

class Conversion : public ::testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(Ranks, Conversion, ::testing::Values(1, 2, 3, 4),
                         [](const auto& tp) { return str("tp", tp.param); });

TEST_P(Conversion, BetweenWholeAndSummedLayouts_HasValueAndGradient) {
  on_ranks(GetParam(), [](const Axis& axis) {
    expect_row(axis, Replicate{}, Replicate{});
    expect_row(axis, Replicate{}, Fanout{});
    expect_row(axis, Partial{}, Replicate{});
    expect_row(axis, Partial{}, Fanout{});
  });
}

TEST_P(Conversion, ToAndFromEveryShard_HasValueAndGradient) {
  on_ranks(GetParam(), [](const Axis& axis) {
    for (const Placement& shard : shards(axis.size())) {
      for (const Placement& from :
           {Placement(Replicate{}), Placement(Fanout{}), Placement(Partial{})}) {
        expect_row(axis, from, shard);
      }
      expect_row(axis, shard, Replicate{});
      expect_row(axis, shard, Fanout{});
    }
  });
}

TEST_P(Conversion, FromShardToShard_HasValueAndGradient) {
  on_ranks(GetParam(), [](const Axis& axis) {
    for (const Placement& from : shards(axis.size())) {
      for (const Placement& to : shards(axis.size())) {
        const bool overlapping = from.split()->overlaps() || to.split()->overlaps();
        const bool same_dim = from.normalised(3).dim() == to.normalised(3).dim();
        if (same_dim || !overlapping) {
          expect_row(axis, from, to);
          continue;
        }
        const DTensor x(local_of(whole_numbers(kShape, 1), from.normalised(3), axis), axis, from);
        EXPECT_EQ(thrown_by([&] { (void)x.redistribute(to); }).code(), Code::kShape);
      }
    }
  });
}

// A conversion that gathers where the table says identity would still give the right numbers.
TEST(ConversionTraffic, EachConversion_MakesTheCollectivesOfTheTable) {
  struct Row {
    Placement from, to;
    Counts forward, backward;
  };
  const Counts none;
  const Counts sum{{"all_reduce", 1}}, gather{{"all_gather", 1}}, scatter{{"reduce_scatter", 1}};
  const Counts swap{{"all_to_all", 1}};
  const Placement shard = Shard{0, Split::balanced(5, 3)};
  const Placement other = Shard{2, Split::balanced(6, 3)};
  const std::vector<Row> rows = {
      {Replicate{}, Fanout{}, none, sum},  {Partial{}, Replicate{}, sum, none},
      {Partial{}, shard, scatter, gather}, {Partial{}, Fanout{}, sum, sum},
      {shard, other, swap, swap},          {shard, Replicate{}, gather, none},
      {shard, Fanout{}, gather, scatter},  {Replicate{}, shard, none, gather},
      {Fanout{}, shard, none, none},       {Replicate{}, Replicate{}, none, none},
      {Partial{}, Partial{}, none, none},  {shard, Shard{0}, none, none}};
  on_ranks(3, [&](const Axis& inner) {
    const auto group = std::make_shared<CountingGroup>(inner.group());
    const Axis axis(group);
    for (const Row& row : rows) {
      const Tensor leaf = leaf_of(local_of(whole_numbers(kShape, 1), row.from, axis));
      const DTensor y = DTensor(leaf, axis, row.from).redistribute(row.to);
      EXPECT_EQ(group->taken(), row.forward) << row.from.describe() << row.to.describe();
      y.local().sum().backward();
      EXPECT_EQ(group->taken(), row.backward) << row.from.describe() << row.to.describe();
    }
  });
}

TEST(DTensor, SameConversionAgain_SharesOneCollectiveBothWays) {
  on_ranks(2, [](const Axis& inner) {
    const auto group = std::make_shared<CountingGroup>(inner.group());
    const Axis axis(group);
    const Placement shard = Shard{0, Split::balanced(5, 2)};
    const Tensor x = whole_numbers(kShape, 1);
    const Tensor leaf = leaf_of(local_of(x, shard, axis));
    const DTensor d(leaf, axis, shard);
    const Tensor q = d.redistribute(Fanout{}).local();
    const Tensor k = d.redistribute(Fanout{}).local();
    const Tensor v = d.redistribute(Fanout{}).local();
    EXPECT_EQ(group->taken(), (Counts{{"all_gather", 1}}));
    (q * 2 + k * 3 + v * 5).sum().backward();
    EXPECT_EQ(group->taken(), (Counts{{"reduce_scatter", 1}}));
    EXPECT_TRUE(at::equal(leaf.grad(), at::full_like(leaf, 20)));  // 10 from each rank

    {  // A cached result without a graph must not be returned in grad mode.
      const at::NoGradGuard no_grad;
      EXPECT_FALSE(d.redistribute(Replicate{}).local().requires_grad());
    }
    EXPECT_TRUE(d.redistribute(Replicate{}).local().requires_grad());
    EXPECT_EQ(group->taken(), (Counts{{"all_gather", 2}}));
  });
}

// Oracle: each of the ranks adds 1 to its part of the sum.
TEST(DTensor, ValueChangedInPlace_IsConvertedAgain) {
  on_ranks(2, [](const Axis& axis) {
    const Tensor part = test::whole_numbers({2, 3}, 5);
    const DTensor x(part, axis, Partial{});
    const Tensor first = x.redistribute(Replicate{}).local().clone();
    part.add_(1);
    EXPECT_TRUE(at::equal(x.redistribute(Replicate{}).local(), first + 2));
  });
}

TEST(DTensor, RefusedChanges_NameTheMaker) {
  on_ranks(2, [](const Axis& axis) {
    const std::string* maker = maker_name("model.some_proj");
    const Placement shard = Shard{0, Split::balanced(5, 2)};
    const Tensor x = whole_numbers(kShape, 1);
    const auto refused = [&](const Placement& from, const Placement& to) {
      const DTensor d(local_of(x, from, axis), axis, from, maker);
      const Error error = thrown_by([&] { (void)d.redistribute(to); });
      EXPECT_EQ(error.code(), Code::kShape);
      EXPECT_EQ(error.what(), str("cannot convert ", from.describe(), " to ", to.describe(),
                                  " (value made by model.some_proj)"));
    };
    refused(Fanout{}, Replicate{});
    refused(Replicate{}, Partial{});
    refused(Fanout{}, Partial{});
    refused(shard, Partial{});
  });
}

TEST(DTensor, ShardDimOutsideTheTensor_IsRefused) {
  on_ranks(2, [](const Axis& axis) {
    const DTensor d(at::zeros({2, 4}), axis, Replicate{});
    for (const int dim : {2, -3}) {
      const Error error = thrown_by([&] { (void)d.redistribute(Shard{dim}); });
      EXPECT_EQ(error.code(), Code::kShape);
      EXPECT_NE(std::string(error.what()).find("dim may be -2 to 1"), std::string::npos);
    }
  });
}

TEST(DTensor, DistributeAndFullTensor_AreInverse) {
  for (const int tp : {1, 2, 3, 4}) {
    on_ranks(tp, [](const Axis& axis) {
      const Tensor x = whole_numbers(kShape, 1);
      for (const Placement& p : shards(axis.size())) {
        const DTensor d = DTensor::distribute(x, axis, p);
        EXPECT_TRUE(at::equal(d.full_tensor(), x)) << p.describe() << " tp=" << axis.size();
        for (int64_t dim = -3; dim < 3; ++dim) EXPECT_EQ(d.size(dim), x.size(dim));
      }
      const DTensor near_equal = DTensor::distribute(x, axis, Shard{-1});
      if (axis.size() > 1) {
        EXPECT_EQ(near_equal.placement().dim(), 2);
        EXPECT_EQ(near_equal.placement().split(), Split::balanced(6, axis.size()));
      }
      EXPECT_EQ(thrown_by([&] { (void)DTensor::distribute(x, axis, Partial{}); }).code(),
                Code::kShape);
      EXPECT_EQ(thrown_by([&] { (void)DTensor::distribute(x, axis, Fanout{}); }).code(),
                Code::kShape);
    });
  }
}

TEST(DTensor, FullTensorOfSums_AddsThemAndOfAFanoutKeepsNoGradient) {
  on_ranks(3, [](const Axis& axis) {
    const Tensor x = whole_numbers(kShape, 1);
    EXPECT_TRUE(at::equal(DTensor(local_of(x, Partial{}, axis), axis, Partial{}).full_tensor(), x));
    EXPECT_TRUE(at::equal(DTensor(x, axis, Fanout{}).full_tensor(), x));
    // Its gradient would be a partial sum on each rank that nothing sums.
    const DTensor fanout(leaf_of(x), axis, Fanout{});
    EXPECT_EQ(thrown_by([&] { (void)fanout.full_tensor(); }).code(), Code::kShape);
  });
}

TEST(DTensor, LocalPartOfTheWrongSize_IsRefusedWithTheSplitsNumbers) {
  on_ranks(2, [](const Axis& axis) {
    const SplitPtr split = Split::balanced(5, 2);
    const Error error = thrown_by([&] {
      (void)DTensor::from_local(at::zeros({4, 2}), axis, Shard{0, split});
    });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_EQ(error.what(), str("rank ", axis.rank(), " of axis tp holds 4 of dim 0; its split of ",
                                "5 gives it ", 3 - axis.rank()));
    const Error no_split = thrown_by([&] {
      (void)DTensor::from_local(at::zeros({4, 2}), axis, Shard{0});
    });
    EXPECT_EQ(no_split.code(), Code::kUsage);
  });
}

TEST(DTensor, Sum_WantsOnePlacementAndNamesBothMakers) {
  on_ranks(2, [](const Axis& axis) {
    const Tensor x = whole_numbers(kShape, 1);
    const Placement shard = Shard{0, Split::balanced(5, 2)};
    const DTensor a(x, axis, Replicate{}, maker_name("block.attention"));
    const DTensor b(local_of(x, shard, axis), axis, shard, maker_name("block.mlp"));
    const Error error = thrown_by([&] { (void)(a + b); });
    EXPECT_EQ(error.code(), Code::kShape);
    EXPECT_STREQ(error.what(),
                 "cannot add Replicate (made by block.attention) and Shard(0) (made by block.mlp); "
                 "give both the same placement in the plan");
    EXPECT_TRUE(at::equal((b + b).full_tensor(), 2 * x));
    // The sum of partial sums is a partial sum.
    const DTensor p(local_of(x, Partial{}, axis), axis, Partial{});
    EXPECT_TRUE(at::equal((p + p).full_tensor(), 2 * x));
    // A value without an axis has an unknown layout.
    const DTensor loose(x, Axis(), Replicate{});
    EXPECT_EQ(thrown_by([&] { (void)(loose + b); }).code(), Code::kShape);
    EXPECT_EQ(thrown_by([&] { (void)(b + loose); }).code(), Code::kShape);
  });
}

TEST(DTensor, Sum_IsComputedOnceForAllCopies) {
  const Tensor x = leaf_of(whole_numbers({3, 2}, 1)), y = leaf_of(whole_numbers({3, 2}, 2));
  const DTensor sum = DTensor(x, Axis(), Replicate{}) + DTensor(y, Axis(), Replicate{});
  const DTensor copy = sum.made_by(maker_name("block"));
  EXPECT_EQ(copy.dim(), 2);
  EXPECT_EQ(copy.size(-1), 2);
  ASSERT_TRUE(copy.open_sum().first.is_same(x) && copy.open_sum().second.is_same(y));
  const Tensor ours = at::zeros({3, 2}, at::kDouble);
  copy.set_sum(ours);
  EXPECT_FALSE(sum.open_sum().first.defined());
  EXPECT_TRUE(sum.local().is_same(ours) && copy.local().is_same(ours));

  const DTensor other = DTensor(x, Axis(), Replicate{}) + DTensor(y, Axis(), Replicate{});
  const DTensor before = other.made_by(maker_name("block"));
  EXPECT_TRUE(at::equal(other.local(), x + y));
  EXPECT_TRUE(before.local().is_same(other.local()));
  EXPECT_FALSE(before.open_sum().first.defined());
}

TEST(DTensor, SumReadInAnotherGradMode_HasTheGraphOfItsOwn) {
  const DTensor x(leaf_of(whole_numbers({3}, 1)), Axis(), Replicate{});
  const DTensor with_graph = x + x;
  const at::NoGradGuard no_grad;
  const DTensor without = x + x;
  EXPECT_FALSE(with_graph.open_sum().first.defined());  // of another mode
  EXPECT_TRUE(with_graph.local().requires_grad());
  const at::AutoGradMode grad(true);
  EXPECT_FALSE(without.open_sum().first.defined());
  EXPECT_FALSE(without.local().requires_grad());
}

TEST(DTensor, TermChangedBeforeTheSumIsRead_IsRefused) {
  const DTensor x(whole_numbers({3}, 1), Axis(), Replicate{});
  const DTensor sum = x + x, read = x + x;
  (void)read.local();
  x.local().add_(1);
  EXPECT_TRUE(at::equal(read.local(), 2 * whole_numbers({3}, 1)));
  const Error error = thrown_by([&] { (void)sum.local(); });
  EXPECT_EQ(error.code(), Code::kUsage);
  EXPECT_NE(std::string(error.what()).find("read local() of the sum first"), std::string::npos);
}

TEST(DTensor, Map_WantsOnePlacementAndNoPartialSums) {
  on_ranks(2, [](const Axis& axis) {
    const Tensor x = whole_numbers(kShape, 1);
    const auto times = [](const Tensor& a, const Tensor& b) { return a * b; };
    const Placement shard = Shard{2, Split::balanced(6, 2)};
    const DTensor gate(local_of(x, shard, axis), axis, shard, maker_name("gate"));
    const DTensor up(x, axis, Fanout{}, maker_name("up"));
    EXPECT_TRUE(at::equal(map(times, gate, gate).full_tensor(), x * x));
    EXPECT_TRUE(
        at::equal(map([](const Tensor& t) { return t.abs(); }, gate).full_tensor(), x.abs()));
    const Error mixed = thrown_by([&] { (void)map(times, gate, up); });
    EXPECT_EQ(mixed.code(), Code::kShape);
    EXPECT_STREQ(
        mixed.what(),
        "cannot combine Shard(2) (made by gate) and Fanout (made by up); give both the same "
        "placement in the plan");
    const DTensor part(x, axis, Partial{}, maker_name("down"));
    const Error sums = thrown_by([&] { (void)map(times, part, part); });
    EXPECT_EQ(sums.code(), Code::kShape);
    EXPECT_NE(std::string(sums.what()).find("made by down"), std::string::npos);
    EXPECT_EQ(thrown_by([&] { (void)map([](const Tensor& t) { return t; }, part); }).code(),
              Code::kShape);
  });
}

TEST(SplitWork, ValuesShardedTogether_PassAndOthersAreNamed) {
  on_ranks(2, [](const Axis& axis) {
    const auto sharded = [&](int64_t whole, const std::string& family, const char* maker) {
      const SplitPtr split = Split::balanced(whole, 2, 1, family);
      return DTensor(at::zeros({3, split->width(axis.rank())}), axis, Shard{1, split},
                     maker_name(maker));
    };
    const DTensor q = sharded(8, "heads 4/2 x 2", "q"), k = sharded(4, "heads 4/2 x 2", "k");
    const DTensor other = sharded(4, "heads 2/2 x 2", "other");
    const DTensor plain = sharded(8, "", "plain"), wider = sharded(6, "", "wider");
    const DTensor fanout(at::zeros({3, 8}), axis, Fanout{}, maker_name("fanout"));
    const DTensor part(at::zeros({3, 8}), axis, Partial{}, maker_name("part"));
    EXPECT_NO_THROW(split_work({&q, &k}));
    EXPECT_NO_THROW(split_work({&plain, &plain}));
    EXPECT_NO_THROW(split_work({&fanout, &fanout}));
    const auto refused = [](const DTensor& a, const DTensor& b) {
      const Error error = thrown_by([&] { split_work({&a, &b}); });
      EXPECT_EQ(error.code(), Code::kShape);
      const std::string what = error.what();
      EXPECT_TRUE(what.starts_with(a.maker() + " (")) << what;
      EXPECT_NE(what.find(" and " + b.maker() + " ("), std::string::npos) << what;
    };
    refused(q, other);      // different heads
    refused(plain, wider);  // different splits, no family
    refused(q, fanout);     // one is whole
    refused(part, part);    // partial sums
    refused(DTensor(at::zeros({3, 8}), Axis(), Replicate{}, maker_name("loose")), q);
  });
}

TEST(Node, UnusedOutput_HasAZeroGradient) {
  const Tensor x = leaf_of(whole_numbers({4}, 1));
  Tensor a, b;
  {
    const at::NoGradGuard no_grad;
    a = x * 2;
    b = x * 3;
  }
  connect("two", {x}, {a, b},
          [](variable_list&& grads) -> variable_list { return {grads[0] * 2 + grads[1] * 3}; });
  a.sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 2.0, at::kDouble)));
}

TEST(Node, UnusedOutput_HasNoGradientIfItsNodeSaysSo) {
  const Tensor x = leaf_of(whole_numbers({4}, 1));
  Tensor a, b;
  {
    const at::NoGradGuard no_grad;
    a = x * 2;
    b = x * 3;
  }
  bool has_second = true;
  connect(
      "two", {x}, {a, b},
      [&](variable_list&& grads) -> variable_list {
        has_second = grads[1].defined();
        return {grads[0] * 2};
      },
      UnusedOutputs::kUndefined);
  a.sum().backward();
  EXPECT_FALSE(has_second);
}

TEST(Node, SecondBackwardOverAFreedGraph_IsAnError) {
  const Tensor x = leaf_of(whole_numbers({4}, 1));
  const auto twice = [](const Tensor& t) { return t * 2; };
  const Tensor y = differentiable("twice", x, twice, twice);
  const Tensor loss = y.sum();
  loss.backward({}, /*retain_graph=*/true);
  loss.backward();
  EXPECT_TRUE(at::equal(x.grad(), at::full({4}, 4.0, at::kDouble)));
  EXPECT_THROW(y.backward(at::ones({4}, at::kDouble)), c10::Error);
}

// Row R14 of docs/design/reliability-notes.md: the other rank waits in an all-reduce of a gradient.
TEST(Node, HookThatThrowsOnOneRank_EndsAllRanksWithItsError) {
  const double start = monotonic_s();
  std::string what;
  try {
    on_ranks(2, [](const Axis& axis) {
      const Tensor x = leaf_of(whole_numbers({4}, 1));
      const DTensor y = DTensor(x, axis, Replicate{}).redistribute(Fanout{});
      if (axis.rank() == 1) {
        y.local().register_hook([](const Tensor&) { throw std::out_of_range("a user's hook"); });
      }
      y.local().sum().backward();
    });
  } catch (const std::exception& error) {
    what = error.what();
  }
  EXPECT_EQ(what, "a user's hook");
  EXPECT_LT(monotonic_s() - start, 5);
}

TEST(Node, ConstantInput_MakesNoGraph) {
  const Tensor x = whole_numbers({4}, 1);
  const auto same = [](const Tensor& t) { return t.clone(); };
  EXPECT_FALSE(differentiable("same", x, same, same).requires_grad());
  const at::NoGradGuard no_grad;
  EXPECT_FALSE(differentiable("same", leaf_of(x), same, same).requires_grad());
}

}  // namespace
}  // namespace cleave::dtensor_test
