// Feed-forward layers and experts with fewer columns than tensor-parallel ranks: the last ranks
// have empty shards. Oracle: one rank. In fp64 only the order of sums differs.
#include <cmath>
#include <fstream>
#include <utility>
#include <vector>

#include <gtest/gtest.h>

#include "cleave/report/metrics.h"
#include "cleave/train/options.h"
#include "tests/support/small_run.h"
#include "tests/support/temp_folder.h"

namespace cleave::narrow_test {
namespace {

using test::TempFolder;

constexpr const char* kLlama =
    R"({"architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":257,
  "hidden_size":12,"intermediate_size":1,"num_hidden_layers":2,"num_attention_heads":3,
  "max_position_embeddings":16,"mlp_bias":true})";
constexpr const char* kGpt2 =
    R"({"architectures":["GPT2LMHeadModel"],"model_type":"gpt2","vocab_size":257,"n_embd":12,
  "n_layer":2,"n_head":3,"n_inner":1,"n_positions":16,"resid_pdrop":0,"embd_pdrop":0,
  "attn_pdrop":0})";
constexpr const char* kMixtral =
    R"({"architectures":["MixtralForCausalLM"],"model_type":"mixtral","vocab_size":257,
  "hidden_size":12,"intermediate_size":1,"num_hidden_layers":2,"num_attention_heads":3,
  "num_key_value_heads":3,"num_local_experts":2,"num_experts_per_tok":2,
  "max_position_embeddings":16})";

class Narrow : public testing::TestWithParam<std::pair<const char*, const char*>> {
 protected:
  Narrow() {
    std::ofstream(folder_ / "narrow.json") << GetParam().second;
    std::ofstream(folder_ / "text.txt") << std::string(400, 'a') + std::string(100, 'b');
  }

  [[nodiscard]] TrainOptions options(const std::string& out) const {
    TrainOptions o;
    o.model = folder_ / "narrow.json";
    o.data = {folder_ / "text.txt"};
    o.out = folder_ / out;
    o.seq_len = 8;
    o.batch_size = 4;
    o.micro_batch_size = 1;
    o.steps = 2;
    o.lr = 1e-2;
    o.dtype = "fp64";
    o.gemm = "mkl";
    o.threads_per_rank = 1;
    return o;
  }

  TempFolder folder_;
};

TEST_P(Narrow, EverySchedule_TrainsAsOneRankDoes) {
  const auto want = test::steps_of(options("one"));
  ASSERT_EQ(want.size(), 2U);
  for (const char* schedule : {"1f1b", "zero-bubble"}) {
    TrainOptions o = options(schedule);
    o.tp = 3;
    o.pp = 2;
    o.schedule_pp = schedule;
    const auto got = test::steps_of(o);
    ASSERT_EQ(got.size(), want.size());
    for (size_t i = 0; i < want.size(); ++i) {
      EXPECT_NEAR(got[i].loss, want[i].loss, 1e-9) << schedule << " step " << i;
      EXPECT_NEAR(got[i].grad_norm, want[i].grad_norm, 1e-8) << schedule << " step " << i;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Families, Narrow,
                         testing::Values(std::pair("Llama", kLlama), std::pair("Gpt2", kGpt2),
                                         std::pair("Mixtral", kMixtral)),
                         [](const auto& test) { return std::string(test.param.first); });

}  // namespace
}  // namespace cleave::narrow_test
