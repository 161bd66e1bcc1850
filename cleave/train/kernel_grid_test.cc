// The grid of layouts in the types that users train in, with Cleave's fused kernels, against one
// rank that runs libtorch's plain kernels (--plain-kernels all).
//
// Tolerances are measured (tests/support/rounding.h). `have` is a rank under test, `exact` is the
// same three steps on one rank in fp64 from the fp32 run's starting weights, `plain` is one rank in
// the type under test with plain kernels, and
//
//   |have - plain| <= 6 (max |plain - exact| + u max |exact|)
//
// where u is the type's unit roundoff; the same holds for the norm of a gradient's difference, with
// 4 instead of 6. For gradients in fp32 both factors are doubled: with AVX2 (Zen 3) the largest
// seen are 6.2 and 6.4. The maximum is taken
// over the elements of a tensor, the tensors of the same name in all blocks, and the steps, so that
// no bound is small by chance. For weights, `exact` in the last term is the change over three
// steps, and 2^-24 max |weight| is added because master weights are fp32. The optimizer is SGD, or
// AdamW with an eps of the gradients' size: with a small eps the sign of a gradient that is only
// rounding would decide a whole step.
#include <cmath>
#include <limits>
#include <map>
#include <mutex>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/base/log.h"
#include "cleave/kernels/cpu/tiles.h"
#include "cleave/kernels/cpu/wide_product.h"
#include "cleave/runtime/kernel_switches.h"
#include "tests/support/level.h"
#include "tests/support/rounding.h"
#include "tests/support/train_grid.h"

namespace cleave::kernel_grid_test {
namespace {

using test::all_points;
using test::covering;
using test::GridCase;
using test::GridRecord;
using test::GridRunner;
using test::kind_of;
using test::norm_rounding_bound;
using test::on_world;
using test::Point;
using test::record_of_one_rank;
using test::rounding_bound;
using test::unit_roundoff;

constexpr int kNumVariants = 8;

/// Switches to libtorch's plain kernels while it lives.
class PlainKernels {
 public:
  PlainKernels() { set_plain_kernels("all"); }
  ~PlainKernels() { set_plain_kernels(""); }
  PlainKernels(const PlainKernels&) = delete;
  PlainKernels& operator=(const PlainKernels&) = delete;
};

/// One of eight variants. Together they contain each pair of settings of any two options twice.
GridCase variant(const std::string& family, int number) {
  const bool a = (number & 1) != 0, b = (number & 2) != 0, c = (number & 4) != 0;
  GridCase out{.family = family,
               .head_dim = 16,
               .dropout = !a,
               .tied = a == b,
               .padding = !b,
               .label_masks = !c,
               .accumulates = a == c};
  out.optimizer.eps = 1e-2;
  if (b != c) out.optimizer.kind = OptimizerOptions::Kind::kSgd;
  return out;
}

double largest(const Tensor& t) {
  return t.numel() == 0 ? 0 : t.abs().max().item<double>();
}

double euclidean(const Tensor& t) {
  return t.norm().item<double>();
}

std::string norm_of(const std::string& name) {
  return "norm of " + name;
}

/// The largest bound per kind of value.
class Bounds {
 public:
  void add(const std::string& name, double error, double stored) {
    raise(name, rounding_bound(error, stored));
  }
  /// Bounds of the largest element and of the norm of a tensor's difference.
  void add(const std::string& name, const Tensor& error, const Tensor& value, double unit) {
    // In fp32 a plain run is within a few roundings of the exact one.
    const double factor = unit == unit_roundoff(at::kFloat) ? 2 : 1;
    raise(name, factor * rounding_bound(largest(error), unit * largest(value)));
    raise(norm_of(name), factor * norm_rounding_bound(euclidean(error), unit * euclidean(value)));
  }
  [[nodiscard]] double of(const std::string& name) const { return of_.at(kind_of(name)); }

 private:
  void raise(const std::string& name, double bound) {
    double& highest = of_[kind_of(name)];
    highest = std::max(highest, bound);
  }
  std::map<std::string, double> of_;
};

/// The values that a run is compared with, and their tolerances.
struct Wanted {
  GridRecord plain;
  Bounds numbers, gradients, weights;  // loss and norm; by name
};

Wanted wanted_of(const GridCase& c, at::ScalarType type) {
  const GridRecord exact = record_of_one_rank(c, at::kDouble, /*as_fp32=*/true);
  const PlainKernels all;
  Wanted w{.plain = record_of_one_rank(c, type), .numbers = {}, .gradients = {}, .weights = {}};
  const double unit = unit_roundoff(type);
  const auto add_number = [&](const std::string& name, double plain, double want) {
    w.numbers.add(name, std::abs(plain - want), unit * std::abs(want));
  };
  for (size_t i = 0; i < exact.losses.size(); ++i) {
    add_number("loss", w.plain.losses[i], exact.losses[i]);
    add_number("norm", w.plain.norms[i], exact.norms[i]);
    for (const auto& [name, want] : exact.gradients[i]) {
      w.gradients.add(name, w.plain.gradients[i].at(name) - want, want, unit);
    }
  }
  for (const auto& [name, want] : exact.weights) {
    const double error = largest(w.plain.weights.at(name) - want);
    const double step = largest(want - exact.start.at(name));
    w.weights.add(name, error, unit * step + unit_roundoff(at::kFloat) * largest(want));
  }
  return w;
}

/// The largest ratio of a difference to its bound, and the name of the value.
struct Worst {
  double share = 0;
  std::string what;

  void see(double difference, double bound, const std::string& of) {
    const double own = std::isnan(difference) ? std::numeric_limits<double>::infinity()
                       : difference == 0      ? 0
                                              : difference / bound;
    if (own > share) *this = {.share = own, .what = of};
  }
  void see(const Worst& other) {
    if (other.share > share) *this = other;
  }
};

/// Compares this rank's shard of each leaf, or of its gradient, with that of the expected tensor.
void see_leaves(Worst& worst, const Parameters& parameters,
                const std::map<std::string, Tensor>& whole, const Bounds& bounds,
                const std::string& of) {
  for (const auto& p : parameters) {
    const Tensor want = p->part_of(whole.at(p->name()));
    const Tensor& leaf = p->leaf();
    const Tensor have = of == "weight " ? leaf.detach() : leaf.grad();
    const Tensor difference = have.to(at::kDouble) - want;
    worst.see(largest(difference), bounds.of(p->name()), of + p->name());
    if (of == "weight ") continue;  // SGD and a large eps: they follow from the gradients
    worst.see(euclidean(difference), bounds.of(norm_of(p->name())), norm_of(of + p->name()));
  }
}

Worst worst_of(const GridCase& c, const Point& point, at::ScalarType type, const Wanted& want) {
  Worst worst;
  std::mutex mutex;
  on_world(point.num_ranks(), [&](World& world) {
    Worst own;
    GridRunner run(c, point, world, type);
    run.start();
    for (int64_t step = 0; step < test::kGridSteps; ++step) {
      const auto i = static_cast<size_t>(step);
      const auto [loss, norm] = run.gradients(step);
      own.see(std::abs(loss - want.plain.losses[i]), want.numbers.of("loss"), str("loss ", step));
      own.see(std::abs(norm - want.plain.norms[i]), want.numbers.of("norm"), str("norm ", step));
      see_leaves(own, run.rank().parameters(), want.plain.gradients[i], want.gradients,
                 str("gradient ", step, " of "));
      run.apply();
    }
    see_leaves(own, run.rank().parameters(), want.plain.weights, want.weights, "weight ");
    const std::lock_guard lock(mutex);
    worst.see(own);
  });
  return worst;
}

/// A family in a type. The reference of each variant is computed once.
class KernelGrid : public testing::TestWithParam<std::tuple<const char*, at::ScalarType>> {
 protected:
  [[nodiscard]] static std::string family() { return std::get<0>(GetParam()); }
  [[nodiscard]] static at::ScalarType type() { return std::get<1>(GetParam()); }

  const Wanted& wanted(int number) {
    if (!wanted_.contains(number)) wanted_[number] = wanted_of(variant(family(), number), type());
    return wanted_.at(number);
  }
  /// Expects a layout to train as one rank does. Returns the largest ratio to a bound.
  double expect_as_one_rank(const Point& point, int number) {
    const GridCase c = variant(family(), number);
    const Worst worst = worst_of(c, point, type(), wanted(number));
    EXPECT_LE(worst.share, 1) << worst.what << " of " << c.describe() << ", "
                              << describe(point, c, type());
    return worst.share;
  }

 private:
  std::map<int, Wanted> wanted_;
};

/// The layouts of this test level, each with a kind of recompute; a quarter of them for fp16.
std::vector<Point> points_to_run(at::ScalarType type) {
  std::vector<Point> all =
      test::level() == test::Level::kQuick ? covering(all_points()) : all_points();
  std::vector<Point> out;
  const size_t stride = type == at::kHalf ? 4 : 1;
  for (size_t i = 0; i < all.size(); i += stride) {
    all[i].recompute = static_cast<RecomputeKind>(i % 3);
    out.push_back(all[i]);
  }
  return out;
}

TEST_P(KernelGrid, EveryLayout_TrainsAsOneRankOfLibtorchDoes) {
  double largest_share = 0;
  int number = 0;
  const std::vector<Point> points = points_to_run(type());
  for (const Point& point : points) {
    const double share = expect_as_one_rank(point, number++ % kNumVariants);
    largest_share = std::max(largest_share, share);
  }
  log_info("kernel grid ", family(), " ", toString(type()), ": ", points.size(),
           " layouts, at most ", largest_share, " of the bound");
}

TEST_P(KernelGrid, OtherSchedules_TrainAsOneRankOfLibtorchDoes) {
  int number = 1;
  for (const ScheduleKind schedule : {ScheduleKind::kGpipe, ScheduleKind::kZeroBubble}) {
    for (const int sharding : {0, 1, 2}) {
      if (type() == at::kHalf && sharding == 1) continue;
      expect_as_one_rank({.tp = 2, .pp = 2, .dp = 2, .sharding = sharding, .schedule = schedule},
                         number++);
    }
  }
}

// The logits of a token have at most 92 bytes in fp32, half of that in narrow types.
TEST_P(KernelGrid, LossInParts_TrainsAsOneRankOfLibtorchDoes) {
  int number = 0;  // tied weights and several micro-batches; 1: neither
  for (Point point : {Point{}, Point{.tp = 3, .sp = 1}, Point{.dp = 2, .sharding = 2},
                      Point{.tp = 2, .pp = 2, .dp = 2, .sharding = 1}}) {
    point.head_loss = {.most_bytes = 150, .least_tokens = 0};
    expect_as_one_rank(point, number);
    number = 1 - number;
  }
}

// The part of this file that runs under the address sanitizer: everything that frees, refills or
// moves memory during a step, with the commands that once read freed weights in backward.
TEST_P(KernelGrid, MemoryThatMoves_TrainsAsOneRankOfLibtorchDoes) {
  constexpr auto kFull = RecomputeKind::kFull, kSelective = RecomputeKind::kSelective;
  expect_as_one_rank({.dp = 2, .sharding = 2}, 0);
  expect_as_one_rank({.dp = 2, .sharding = 1, .recompute = kFull}, 5);
  expect_as_one_rank({.tp = 2, .sp = 1, .dp = 2, .sharding = 2, .recompute = kSelective}, 2);
  expect_as_one_rank({.pp = 2, .virtual_stages = 2, .dp = 2, .sharding = 2, .recompute = kFull}, 7);
}

// The tolerances are narrow enough to find a gradient that lost half of its sum, as without an
// all-reduce over two ranks: it exceeds the bounds of the norm and of most tensors.
TEST_P(KernelGrid, Bounds_AreBelowAHalfLostGradient) {
  // One-rank runs of these families in bf16 depart further from fp64: of the tensors of Qwen3 and
  // Phi-3 at least 70 % were found, of Mixtral's 44 %. With the bf16 products of AMX at least 74 %
  // of Llama's were found, and 58 % of Phi-3's; without AVX-512, where plain kernels multiply bf16
  // in other loops, 75 % of Llama's.
  const bool is_bf16 = type() == at::kBFloat16;
  const bool is_wider = is_bf16 && (family() == "qwen3" || family() == "phi3");
  const bool has_other_sums = has_tiles() || lacks_fast_products(at::kBFloat16);
  const double margin = is_bf16 && has_other_sums ? 0.1 : 0;
  const double least_share =
      is_bf16 && family() == "mixtral" ? 0.4 : (is_wider ? 2.0 / 3 : 0.8) - margin;
  for (int number = 0; number < kNumVariants; ++number) {
    const Wanted& w = wanted(number);
    const auto& gradients = w.plain.gradients[0];
    int num_found = 0;
    for (const auto& [name, gradient] : gradients) {
      num_found += euclidean(gradient) / 2 > w.gradients.of(norm_of(name)) ? 1 : 0;
    }
    EXPECT_GE(num_found, least_share * static_cast<double>(gradients.size())) << number;
    EXPECT_LT(w.numbers.of("norm"), w.plain.norms[0] / 4) << number;
    EXPECT_LT(w.numbers.of("loss"), w.plain.losses[0] / 10) << number;
  }
}

const auto kRowName = [](const auto& param) {
  return str(std::get<0>(param.param), "_", toString(std::get<1>(param.param)));
};
INSTANTIATE_TEST_SUITE_P(Types, KernelGrid,
                         testing::Combine(testing::Values("llama", "gpt2", "bert", "qwen3",
                                                          "mistral", "mixtral", "olmo2", "phi3"),
                                          testing::Values(at::kFloat, at::kBFloat16, at::kHalf)),
                         kRowName);
INSTANTIATE_TEST_SUITE_P(Gemma, KernelGrid,
                         testing::Combine(testing::Values("gemma2", "gemma3_text"),
                                          testing::Values(at::kFloat)),
                         kRowName);

}  // namespace
}  // namespace cleave::kernel_grid_test
