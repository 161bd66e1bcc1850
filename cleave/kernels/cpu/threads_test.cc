// The kernels divide their work among the rank's threads. Their results must not depend on how many
// there are: the oracle is the same call on one thread.
#include "tests/support/threads.h"

#include <cmath>
#include <cstddef>
#include <filesystem>
#include <functional>
#include <iterator>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include "cleave/kernels/cpu/attention.h"
#include "cleave/kernels/cpu/fused.h"
#include "cleave/kernels/cpu/gemm.h"
#include "cleave/kernels/cpu/int4.h"
#include "cleave/kernels/cpu/int8.h"
#include "cleave/kernels/cpu/panels_linear.h"
#include "cleave/kernels/quantized_weight.h"

namespace cleave::threads_test {
namespace {

using test::Threads;
using Tensors = std::vector<Tensor>;

Tensor random(at::IntArrayRef shape, at::ScalarType type, uint64_t seed = 1) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::kDouble).to(type);
}

/// The result of `call` on 2, 3 and 5 threads has the bits that it has on one. `call` returns its
/// values.
void expect_same_bits(const std::string& what, const std::function<Tensors()>& call) {
  Tensors want;
  {
    const Threads one(1);
    want = call();
  }
  for (const int number : {2, 3, 5}) {
    const Threads several(number);
    const Tensors got = call();
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      EXPECT_TRUE(at::equal(got[i], want[i]))
          << what << ", value " << i << ", " << number << " threads";
    }
  }
}

/// The value of `function` and its gradients of `inputs`.
Tensors with_gradients(const std::function<Tensor(const Tensors&)>& function, Tensors inputs) {
  for (Tensor& t : inputs) t = t.detach().requires_grad_();
  const Tensor value = function(inputs);
  Tensors all =
      torch::autograd::grad({value}, inputs, {random(value.sizes(), value.scalar_type(), 9)});
  all.push_back(value.detach());
  return all;
}

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kBFloat16};

// at::parallel_for is a template; compiled without OpenMP, it is a loop on the calling thread.
TEST(Threads, ParallelLoop_RunsOnAllOfThem) {
  const Threads three(3);
  std::mutex mutex;
  std::set<std::thread::id> threads;
  std::set<int64_t> begins;
  at::parallel_for(0, 3, 1, [&](int64_t begin, int64_t end) {
    const std::lock_guard lock(mutex);
    threads.insert(std::this_thread::get_id());
    for (int64_t i = begin; i < end; ++i) begins.insert(i);
  });
  EXPECT_EQ(threads.size(), 3);
  EXPECT_EQ(begins, (std::set<int64_t>{0, 1, 2}));
}

std::ptrdiff_t threads_of_process() {
  return std::distance(std::filesystem::directory_iterator("/proc/self/task"),
                       std::filesystem::directory_iterator());
}

// The same in the library: a thread that starts its first loop gets its own team.
TEST(Threads, KernelOfTheLibrary_RunsOnAllOfThem) {
  const Tensor x = random({1 << 20}, at::kFloat);
  std::thread([&] {
    const Threads three(3);
    const std::ptrdiff_t before = threads_of_process();
    fused_gelu(x);
    EXPECT_EQ(threads_of_process() - before, 2);
  }).join();
}

TEST(Threads, FusedKernels_HaveTheBitsOfOneThread) {
  for (const at::ScalarType type : kTypes) {
    const Tensor x = random({7, 131, 333}, type), y = random({7, 131, 333}, type, 2);
    const Tensor weight = random({333}, type, 3), bias = random({333}, type, 4);
    expect_same_bits("rms_norm", [&] {
      return with_gradients([](const auto& t) { return fused_rms_norm(t[0], t[1], 1e-5); },
                            {x, weight});
    });
    expect_same_bits("layer_norm", [&] {
      return with_gradients([](const auto& t) { return fused_layer_norm(t[0], t[1], t[2], 1e-5); },
                            {x, weight, bias});
    });
    expect_same_bits("gelu", [&] {
      return with_gradients([](const auto& t) { return fused_gelu(t[0]); }, {x});
    });
    expect_same_bits("gate", [&] {
      return with_gradients([](const auto& t) { return fused_gate(t[0], t[1]); }, {x, y});
    });
    const Tensor heads = random({3, 8, 67, 48}, type);
    const Tensor angles = random({67, 24}, at::kFloat, 5);
    expect_same_bits("rotary", [&] {
      return with_gradients(
          [&](const auto& t) {
            return fused_rotary(t[0], angles.cos().to(type), angles.sin().to(type));
          },
          {heads});
    });
    expect_same_bits("l2_norm", [&] {
      return Tensors{at::scalar_tensor(fused_l2_norm(random({3'000'001}, type)), at::kDouble)};
    });
  }
}

// The sums over rows have so many blocks and columns that the blocks' sum is divided too.
TEST(Threads, WeightGradientsOfManyRows_HaveTheBitsOfOneThread) {
  for (const at::ScalarType type : kTypes) {
    const Tensor x = random({2300, 1111}, type), weight = random({1111}, type, 3);
    expect_same_bits("rms_norm", [&] {
      return with_gradients([](const auto& t) { return fused_rms_norm(t[0], t[1], 1e-5); },
                            {x, weight});
    });
    expect_same_bits("layer_norm", [&] {
      return with_gradients([](const auto& t) { return fused_layer_norm(t[0], t[1], t[2], 1e-5); },
                            {x, weight, random({1111}, type, 4)});
    });
  }
}

TEST(Threads, Softmax_HasTheBitsOfOneThread) {
  for (const at::ScalarType type : kTypes) {
    const Tensor logits = random({211, 1003}, type);
    const Tensor target = at::arange(211) * 4;
    const Tensor factor = random({211}, at::kFloat);
    expect_same_bits("softmax", [&] {
      const SoftmaxSums rows = softmax_sums(logits);
      return Tensors{rows.largest, rows.sums,
                     softmax_gradient(logits, {.rows = rows, .factor = factor, .target = target})};
    });
  }
}

TEST(Threads, Attention_HasTheBitsOfOneThread) {
  for (const at::ScalarType type : kTypes) {
    const Tensor q = random({2, 6, 150, 32}, type), k = random({2, 3, 150, 32}, type, 2),
                 v = random({2, 3, 150, 32}, type, 3);
    const AttentionMask mask{.causal = true, .kv_head = {0, 0, 1, 1, 2, 2}};
    expect_same_bits("attention", [&] {
      return with_gradients([&](const auto& t) { return fast_attention(t[0], t[1], t[2], mask); },
                            {q, k, v});
    });
    AttentionMask dropped = mask;
    dropped.dropout = {.p = 0.3, .key = 7, .step = 1, .num_heads = 6};
    expect_same_bits("attention with dropout", [&] {
      return with_gradients(
          [&](const auto& t) { return fast_attention(t[0], t[1], t[2], dropped); }, {q, k, v});
    });
    const at::NoGradGuard no_grad;
    const Tensor last = q.narrow(2, 149, 1);
    expect_same_bits("decoding", [&] { return Tensors{fast_attention(last, k, v, mask)}; });
    if (type == at::kBFloat16) continue;
    expect_same_bits("decoding, int8", [&] {
      return Tensors{fast_attention(last, to_int8_rows(k), to_int8_rows(v), mask)};
    });
  }
}

TEST(Threads, Products_HaveTheBitsOfOneThread) {
  const at::NoGradGuard no_grad;
  for (const int64_t rows : {1, 3, 70}) {
    for (const at::ScalarType type : kTypes) {
      const Tensor x = random({rows, 512}, type), weight = random({720, 512}, type, 2),
                   bias = random({720}, type, 3);
      if (takes_panels(weight)) {
        expect_same_bits("panels",
                         [&] { return Tensors{panels_linear(x, to_panels(weight), bias)}; });
      }
      if (takes_few_rows(x, weight)) {
        expect_same_bits("few rows", [&] { return Tensors{few_rows_linear(x, weight, bias)}; });
      }
    }
    const Tensor x = random({rows, 512}, at::kFloat), weight = random({720, 512}, at::kFloat, 2),
                 bias = random({720}, at::kFloat, 3);
    expect_same_bits("int8", [&] {
      return Tensors{int8_linear(x, to_int8(weight, largest_of_rows(weight)), bias)};
    });
    const std::vector<Int4Part> parts = int4_parts({{0, 512}});
    for (const bool has_mins : {false, true}) {
      expect_same_bits("int4", [&] {
        const Tensor groups = in_groups(weight, parts);
        return Tensors{int4_linear(
            x, to_matrix(to_int4(groups, int4_bounds(groups), has_mins, "w"), parts), bias)};
      });
    }
  }
}

// So few KV heads that each thread has some queries of one and its own sums for the keys and
// values. These add up to the sums of one thread but for roundings: of sums in fp32, and of one to
// the type.
TEST(Threads, AttentionOfFewKvHeads_HasTheGradientsOfOneThread) {
  for (const at::ScalarType type : kTypes) {
    const Tensor q = random({1, 6, 500, 32}, type), k = random({1, 2, 500, 32}, type, 2);
    const AttentionMask mask{.causal = true, .kv_head = {0, 0, 0, 1, 1, 1}};
    const auto gradients = [&](int threads) {
      const Threads some(threads);
      return with_gradients([&](const auto& t) { return fast_attention(t[0], t[1], t[1], mask); },
                            {q, k});
    };
    const Tensors want = gradients(1);
    for (const int threads : {2, 3, 7}) {
      const Tensors got = gradients(threads);
      EXPECT_TRUE(at::equal(got[0], want[0])) << "the queries' gradient is a sum of one thread";
      const double bound = type == at::kBFloat16 ? std::ldexp(1, -7) : std::ldexp(1, -19);
      EXPECT_LE((got[1] - want[1]).abs().max().item<double>(),
                bound * want[1].abs().max().item<double>())
          << threads << " threads";
      EXPECT_TRUE(at::equal(got[2], want[2]));
    }
  }
}

// Oracle: products in fp64. The library that multiplies promises no bits.
TEST(Threads, Linear_HasTheValuesAndGradientsOfItsDefinition) {
  const auto linear = [](const Tensors& t) {
    return t[0].scalar_type() == at::kDouble ? at::linear(t[0], t[1], t[2])
                                             : affine(t[0], t[1], t[2]);
  };
  for (const at::ScalarType type : kTypes) {
    for (const int64_t rows : {1, 300, 515}) {
      Tensors inputs = {random({rows, 192}, type), random({720, 192}, type, 2),
                        random({720}, type, 3)};
      const Threads three(3);
      Tensors got = with_gradients(linear, inputs);
      {
        const c10::InferenceMode inference;  // as in generate()
        got.push_back(linear(inputs));
      }
      for (Tensor& t : inputs) t = t.to(at::kDouble);
      Tensors want = with_gradients(linear, inputs);
      want.push_back(want.back());
      // Sums in fp32 of up to 720 products, rounded to the type, of factors that both sides have in
      // the type but for the gradient of the result, which the reference does not round.
      const double bound = type == at::kBFloat16 ? std::ldexp(1, -7) : std::ldexp(1, -16);
      for (size_t i = 0; i < got.size(); ++i) {
        EXPECT_LE((got[i].to(at::kDouble) - want[i]).abs().max().item<double>(),
                  bound * want[i].abs().max().item<double>())
            << "value " << i << ", " << rows << " rows";
      }
    }
  }
}

TEST(Threads, QuantizedWeight_HasTheBitsOfOneThread) {
  const Tensor weight = random({720, 512}, at::kFloat);
  const Nf4Elements elements{.elements = weight.flatten(),
                             .shape = {720, 512},
                             .block_of = at::arange(512, at::kInt).div(64, "floor").to(at::kInt)};
  for (const at::ScalarType type : kTypes) {
    expect_same_bits("int8", [&] {
      const Tensor scales = int8_scales(largest_of_rows(weight)).unsqueeze(1);
      return Tensors{dequantize({.shape = {720, 512},
                                 .values = to_int8_values(weight, scales),
                                 .scales = scales,
                                 .block_of = {}},
                                type)};
    });
    expect_same_bits("nf4", [&] {
      const Tensor scales = nf4_largest(elements, 8);
      return Tensors{dequantize({.form = QuantizedForm::kNf4,
                                 .shape = {720, 512},
                                 .values = to_nf4_values(elements, scales),
                                 .scales = scales,
                                 .block_of = elements.block_of},
                                type)};
    });
  }
}

}  // namespace
}  // namespace cleave::threads_test
