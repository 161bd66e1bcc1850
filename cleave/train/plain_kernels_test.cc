// Training with Cleave's fused kernels. Oracle: the same steps with libtorch's plain kernels.
#include <cmath>
#include <limits>

#include <gtest/gtest.h>

#include "cleave/runtime/kernel_switches.h"
#include "cleave/train/options.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"

namespace cleave::plain_kernels_test {
namespace {

constexpr int64_t kHidden = 32, kWide = 48, kVocab = 257;

std::string config_of(const std::string& family) {
  if (family == "gpt2") {
    return R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","vocab_size":257,
  "n_embd":32,"n_layer":2,"n_head":2,"n_inner":48,"n_positions":32,"resid_pdrop":0,
  "embd_pdrop":0,"attn_pdrop":0})";
  }
  return R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":257,
  "hidden_size":32,"intermediate_size":48,"num_hidden_layers":2,"num_attention_heads":2,
  "max_position_embeddings":32})";
}

/// Losses of ten steps on two ranks.
std::vector<double> losses(const std::string& family, const std::string& plain_kernels) {
  const test::TempFolder folder;
  TrainOptions o = test::small_run(folder, config_of(family));
  o.seq_len = 32;
  o.steps = 10;
  o.tp = 2;
  o.plain_kernels = plain_kernels;
  const std::vector<double> out = test::losses(o);
  set_plain_kernels("");
  return out;
}

// The sums in a loss may round differently, by sqrt(terms) ulps; the error accumulates over steps.
TEST(PlainKernels, OfLibtorchOnly_TrainAsFusedKernels) {
  for (const std::string family : {"llama", "gpt2"}) {
    const auto want = losses(family, "all");
    ASSERT_EQ(want.size(), 10U);
    const double terms = 2 * (4 * kHidden + 3 * kWide) + kVocab;
    const double bound = 10 * std::numeric_limits<float>::epsilon() * std::sqrt(terms) * want[0];
    for (const std::string plain : {"", "attention,loss,adam", "norm,gate,rotary"}) {
      const auto have = losses(family, plain);
      ASSERT_EQ(have.size(), want.size());
      for (size_t i = 0; i < want.size(); ++i) {
        EXPECT_NEAR(have[i], want[i], bound) << family << " '" << plain << "' step " << i + 1;
      }
    }
  }
}

}  // namespace
}  // namespace cleave::plain_kernels_test
