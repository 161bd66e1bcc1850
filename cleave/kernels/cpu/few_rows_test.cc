#include <cmath>

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include "cleave/kernels/cpu/bf16_products.h"
#include "cleave/kernels/cpu/gemm.h"
#include "cleave/kernels/cpu/int8.h"
#include "cleave/kernels/cpu/int8_loops.h"
#include "cleave/kernels/cpu/panels_linear.h"
#include "cleave/kernels/cpu/wide_product.h"

namespace cleave::few_rows_test {
namespace {

Tensor random(at::IntArrayRef shape, uint64_t seed) {
  const auto generator = at::detail::createCPUGenerator(seed);
  return at::randn(shape, generator, at::kDouble);
}

double largest_error(const Tensor& got, const Tensor& want) {
  return (got.to(at::kDouble) - want.to(at::kDouble)).abs().max().item<double>();
}

TEST(FewRowsLinear, AnyRowsAndWidths_EqualTheProduct) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    // Above 8 in passes, over several blocks of columns of the widest matrix.
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 8, 9, 17, 64}) {
      if (rows > 8 && !lacks_fast_products(type)) continue;
      for (const auto& [in, out] :
           {std::pair<int64_t, int64_t>{1, 1}, {7, 5}, {64, 9}, {100, 33}, {4100, 40}}) {
        const Tensor x = random({rows, 1, in}, 1).to(type);
        const Tensor weight = random({out, in}, 2).to(type);
        const Tensor bias = random({out}, 3).to(type);
        ASSERT_TRUE(takes_few_rows(x, weight));
        const Tensor got = few_rows_linear(x, weight, bias);
        const Tensor want = x.to(at::kDouble).matmul(weight.to(at::kDouble).t()) + bias;
        ASSERT_EQ(got.sizes(), want.sizes());
        EXPECT_EQ(got.scalar_type(), type);
        // Sums of `in` products of size about 1; bf16 results have 8 bits.
        const double bound =
            type == at::kFloat ? std::ldexp(4 + std::sqrt(in), -22) : std::ldexp(1, -8);
        EXPECT_LE(largest_error(got, want), bound * (1 + want.abs().max().item<double>()))
            << rows << " x " << in << " x " << out;
      }
    }
  }
}

// Tests both loops, whichever this CPU uses for bf16.
TEST(FewRowsLinear, Bf16ByEitherLoop_EqualsTheProduct) {
  for (const int64_t rows : {1, 3, 4, 5, 8}) {
    for (const auto& [in, out] : {std::pair<int64_t, int64_t>{1, 1}, {31, 5}, {100, 33}}) {
      const Tensor x = random({rows, in}, 1).to(at::kBFloat16);
      const Tensor weight = random({out, in}, 2).to(at::kBFloat16);
      const Tensor want = x.to(at::kDouble).matmul(weight.to(at::kDouble).t());
      const Tensor packed = at::zeros({rows, few_rows_stride(in)}, at::kFloat);
      FewRowsJob job{.rows = rows, .in = in, .out = out, .is_bf16 = true};
      job.y_stride = out;
      job.weight = weight.const_data_ptr();
      job.x = packed.const_data_ptr<float>();
      few_rows_pack(job, x.const_data_ptr(), packed.mutable_data_ptr<float>());
      for (const bool by_pairs : {false, true}) {
        if (by_pairs && !has_bf16_products()) continue;
        const Tensor got = at::full({rows, out}, NAN, at::kFloat);
        job.y = got.mutable_data_ptr<float>();
        by_pairs ? bf16_rows_range(job, x.const_data_ptr(), 0, out) : few_rows_range(job, 0, out);
        EXPECT_LE(largest_error(got, want),
                  std::ldexp(4 + std::sqrt(in), -22) * (1 + want.abs().max().item<double>()))
            << rows << " x " << in << " x " << out << (by_pairs ? " by pairs" : "");
      }
    }
  }
}

// Full and narrower last panels, several blocks of rows and of the summed dim, all remainders, and
// both storage orders.
TEST(PanelsLinear, AnySizes_EqualTheProduct) {
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    if (type == at::kBFloat16 && !has_bf16_products()) continue;
    for (const int64_t rows : {1, 2, 3, 4, 5, 6, 7, 14, 16, 17, 48, 51, 130}) {
      for (const auto& [in, out] :
           {std::pair<int64_t, int64_t>{2, 16}, {32, 64}, {100, 80}, {66, 96}, {1130, 176}}) {
        const Tensor x = random({rows, 1, in}, 1).to(type);
        const Tensor weight = random({out, in}, 2).to(type);
        const Tensor bias = random({out}, 3).to(type);
        ASSERT_TRUE(takes_panels(weight));
        const Tensor want = x.to(at::kDouble).matmul(weight.to(at::kDouble).t());
        // Rounding errors of fp32 sums grow with the root of the number of terms.
        const double root = std::sqrt(static_cast<double>(in));
        const double unit = type == at::kFloat ? std::ldexp(4 + root, -23) : std::ldexp(1, -8);
        for (const Tensor& stored : {weight, weight.t().contiguous().t()}) {
          const PanelMatrix panels = to_panels(stored);
          const Tensor got = panels_linear(x, panels, bias);
          ASSERT_EQ(got.sizes(), want.sizes());
          EXPECT_EQ(got.scalar_type(), type);
          const double largest = 1 + (want + bias).abs().max().item<double>();
          EXPECT_LE(largest_error(got, want + bias), unit * largest);
          EXPECT_LE(largest_error(panels_linear(x, panels, {}), want), unit * largest);
        }
      }
    }
  }
}

// Continuous batching relies on it.
TEST(PanelsLinear, ARowsResult_DoesNotDependOnTheOtherRows) {
  const Tensor weight = random({80, 166}, 1), all = random({67, 166}, 2);
  for (const at::ScalarType type : {at::kFloat, at::kBFloat16}) {
    if (!takes_panels(weight.to(type))) continue;
    const PanelMatrix panels = to_panels(weight.to(type));
    const Tensor together = panels_linear(all.to(type), panels, {});
    for (const int64_t rows : {1, 6, 7, 16, 17, 33}) {
      const Tensor alone = panels_linear(all.narrow(0, 67 - rows, rows).to(type), panels, {});
      EXPECT_TRUE(at::equal(alone, together.narrow(0, 67 - rows, rows))) << rows << " " << type;
    }
  }
}

TEST(PanelsLinear, OtherSizesAndTypes_AreNotSupported) {
  EXPECT_EQ(takes_panels(at::ones({16, 2}, at::kBFloat16)), has_bf16_products());
  EXPECT_TRUE(takes_panels(at::ones({16, 3})));
  EXPECT_FALSE(takes_panels(at::ones({17, 2})));
  EXPECT_FALSE(takes_panels(at::ones({17, 2}, at::kBFloat16)));
  EXPECT_FALSE(takes_panels(at::ones({16, 3}, at::kBFloat16)));
  EXPECT_FALSE(takes_panels(at::ones({16, 2}, at::kDouble)));
  EXPECT_FALSE(takes_panels(at::ones({0, 2}, at::kBFloat16)));
}

TEST(FewRowsLinear, ManyRowsAndOtherTypes_AreNotSupported) {
  const Tensor weight = at::ones({4, 6});
  EXPECT_TRUE(takes_few_rows(at::ones({2, 4, 6}), weight));
  EXPECT_FALSE(takes_few_rows(at::ones({9, 6}), weight));
  EXPECT_FALSE(takes_few_rows(at::ones({0, 6}), weight));
  EXPECT_FALSE(takes_few_rows(at::ones({1, 6}, at::kDouble), weight.to(at::kDouble)));
  EXPECT_FALSE(takes_few_rows(at::ones({1, 6}, at::kBFloat16), weight));
  EXPECT_FALSE(takes_few_rows(at::ones({1, 4}), weight.t()));
  EXPECT_FALSE(takes_few_rows(at::ones({1, 7}), weight));
}

// Oracle: the definition on rounded numbers in double precision.
Tensor defined(const Tensor& x, const Tensor& weight, const Tensor& bias) {
  const auto rounded = [](const Tensor& rows) {
    const Tensor scale = rows.abs().amax(-1, true) / 127;
    return (rows / scale).round() * scale;
  };
  return rounded(x.to(at::kDouble)).matmul(rounded(weight.to(at::kDouble)).t()) + bias;
}

TEST(Int8Linear, AnySizes_EqualTheProductOfRoundedNumbers) {
  for (const int64_t rows : {1, 2, 3, 6, 7, 50}) {
    for (const auto& [in, out] :
         {std::pair<int64_t, int64_t>{1, 1}, {64, 4}, {65, 7}, {300, 66}, {30, 112}, {33, 96}}) {
      const Tensor x = random({rows, in}, 1).to(at::kFloat);
      const Tensor weight = random({out, in}, 2).to(at::kFloat);
      const Tensor bias = random({out}, 3).to(at::kFloat);
      const Int8Matrix matrix = to_int8(weight, largest_of_rows(weight));
      const Tensor got = int8_linear(x, matrix, bias);
      const Tensor want = defined(x, weight, bias);
      // fp32 may round a number near the middle of two steps the other way.
      const double step = 4.0 / 127 * 4;
      EXPECT_LE(largest_error(got, want), step) << rows << " x " << in << " x " << out;
      EXPECT_LE((got.to(at::kDouble) - want).abs().mean().item<double>(), 1e-3);
    }
  }
}

TEST(Int8Linear, PartsOfARowWithTheWholeRowsScale_AddUpToTheWhole) {
  const Tensor x = random({3, 128}, 1).to(at::kFloat);
  const Tensor weight = random({5, 128}, 2).to(at::kFloat);
  const Tensor of_x = largest_of_rows(x);
  const Tensor of_weight = largest_of_rows(weight);
  EXPECT_TRUE(at::equal(of_x, x.abs().amax(1)));
  Tensor sum = at::zeros({3, 5});
  for (const int64_t begin : {0, 64}) {
    const Tensor part = x.narrow(1, begin, 64);
    sum += int8_linear(part, to_int8(weight.narrow(1, begin, 64), of_weight), {}, of_x);
  }
  const Tensor whole = int8_linear(x, to_int8(weight, of_weight), {});
  EXPECT_LE(largest_error(sum, whole), 1e-4);
}

TEST(Int8Linear, ZerosAndExtremes_AreExact) {
  Tensor weight = at::zeros({2, 64});
  weight[0].fill_(-3);
  const Int8Matrix matrix = to_int8(weight, largest_of_rows(weight));
  const Tensor got = int8_linear(at::full({2, 64}, 5.0F), matrix, {});
  EXPECT_LE(largest_error(got, at::tensor({-960.0, 0.0}).expand({2, 2})), 1e-3);
  EXPECT_TRUE(at::equal(int8_linear(at::zeros({1, 64}), matrix, {}), at::zeros({1, 2})));
}

TEST(Int8Linear, NonFiniteInput_DoesNotBecomeFinite) {
  const Tensor weight = random({5, 96}, 2).to(at::kFloat);
  const Tensor of_weight = largest_of_rows(weight);
  for (const float bad : {NAN, INFINITY, -INFINITY}) {
    Tensor x = random({3, 96}, 1).to(at::kFloat);
    x[1][70] = bad;
    const Tensor of_x = largest_of_rows(x);
    const Tensor whole = int8_linear(x, to_int8(weight, of_weight), {});
    Tensor parts = at::zeros({3, 5});
    for (const int64_t begin : {0, 48}) {  // the first part has only finite numbers
      parts += int8_linear(x.narrow(1, begin, 48), to_int8(weight.narrow(1, begin, 48), of_weight),
                           {}, of_x);
    }
    for (const Tensor& y : {whole, parts}) {
      EXPECT_FALSE(y[1].isfinite().any().item<bool>()) << bad << ": " << y[1];
      EXPECT_TRUE(y[0].isfinite().all().item<bool>() && y[2].isfinite().all().item<bool>());
    }
  }
}

// Rows and words (of four inputs) beyond whole tiles of AMX, and beyond a pass of it.
TEST(Int8Products, AllLoops_GiveTheSameBits) {
  constexpr int64_t kRows = 85, kColumns = 75, kWidth = 148;
  const auto generator = at::detail::createCPUGenerator(7);
  const Tensor x = at::randint(0, 256, {kRows, kWidth}, generator, at::kByte);
  const Tensor weight = at::randint(-127, 128, {kColumns, kWidth}, generator, at::kChar);
  // Padded to 80 columns: a panel of 64 and one of 16.
  const Tensor padded = at::constant_pad_nd(weight, {0, 0, 0, 5});
  const auto panel = [&](int64_t first, int64_t width) {
    return padded.narrow(0, first, width).view({width, kWidth / 4, 4}).transpose(0, 1).flatten();
  };
  const Tensor panels = at::cat({panel(0, 64), panel(64, 16)});
  const Tensor sums = padded.sum(1, false, at::kInt);
  const Tensor x_scale = at::rand({kRows}, generator), weight_scale = at::rand({80}, generator);
  const Tensor bias = at::rand({kColumns}, generator);
  const Tensor portable = at::empty({kRows, kColumns});
  Int8Job job{.rows = kRows,
              .columns = kColumns,
              .width = kWidth,
              .x = x.data_ptr<uint8_t>(),
              .x_scale = x_scale.data_ptr<float>(),
              .weight = panels.data_ptr<int8_t>(),
              .weight_sum = sums.data_ptr<int32_t>(),
              .weight_scale = weight_scale.data_ptr<float>(),
              .bias = bias.data_ptr<float>(),
              .out = portable.data_ptr<float>()};
  int8_products(job, 0, 2, Int8Loops::kPortable);
  for (const Int8Loops loops : {Int8Loops::kAvx2, Int8Loops::kVnni, Int8Loops::kAmx}) {
    if (!has_int8_loops(loops)) continue;
    const Tensor fast = at::zeros({kRows, kColumns});
    job.out = fast.data_ptr<float>();
    int8_products(job, 0, 2, loops);
    EXPECT_TRUE(at::equal(fast, portable)) << static_cast<int>(loops);
  }
  const Tensor want = (x.to(at::kDouble) - 128).matmul(weight.to(at::kDouble).t()) *
                          x_scale.unsqueeze(1) * weight_scale.narrow(0, 0, kColumns) +
                      bias;
  // The sums are below 2^24; two scales and the bias are rounded to fp32.
  EXPECT_LE(largest_error(portable, want), std::ldexp(3, -24) * want.abs().max().item<double>());
}

}  // namespace
}  // namespace cleave::few_rows_test
