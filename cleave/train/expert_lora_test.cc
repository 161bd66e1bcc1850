// Adapters of experts that are shared out over data-parallel ranks (--lora with --ep). Oracle: the
// run on one rank.
#include <filesystem>
#include <fstream>

#include "tests/support/lora_runs.h"

namespace cleave::expert_lora_test {
namespace {

namespace fs = std::filesystem;

/// Five experts, three on the first rank of ep 2 and two on the second.
class ExpertLora : public test::LoraRuns {
 protected:
  TrainOptions expert_options(const std::string& out) {
    TrainOptions o = options(out);
    o.model = test::golden_folder("mixtral");
    o.lora_targets = {"all-linear"};
    o.schedule = "constant";  // so that a shorter run has the same rates
    o.warmup = 0;
    return o;
  }
  TrainOptions shared_out(const std::string& out, int dp = 2) {
    TrainOptions o = expert_options(out);
    o.dp = dp;
    o.ep = 2;
    return o;
  }
};

TEST_F(ExpertLora, EveryLayout_HasTheLossesOfOneRank) {
  const std::vector<double> want = losses(expert_options("one"));
  EXPECT_LT(want.back(), want.front());
  const TrainOptions plain = shared_out("plain");
  TrainOptions zero = shared_out("zero", 4);
  zero.zero = 1;
  TrainOptions fsdp = shared_out("fsdp", 4);
  fsdp.fsdp = true;
  fsdp.recompute = "full";
  TrainOptions tp = shared_out("tp");
  tp.tp = 2;
  tp.micro_batch_size = 1;
  TrainOptions pp = shared_out("pp");
  pp.pp = 2;
  for (const TrainOptions& o : {plain, zero, fsdp, tp, pp}) expect_losses(o, want);
}

TEST_F(ExpertLora, WithMagnitudesAndAQuantizedBase_HasTheLossesOfOneRank) {
  for (const std::string form : {"int8", "nf4"}) {
    const auto both = [&](TrainOptions o) {
      o.dora = true;
      o.lora_base = form;
      o.out += form;
      return o;
    };
    const std::vector<double> want = losses(both(expert_options("one")));
    TrainOptions fsdp = both(shared_out("fsdp", 4));
    fsdp.fsdp = true;
    for (const TrainOptions& o : {both(shared_out("plain")), fsdp}) expect_losses(o, want);
  }
}

// The second rank has no trained parameter, and nothing before the experts of the first block is
// trained; but backward sends the gradients of all tokens to the first rank.
TEST_F(ExpertLora, AdaptersOnOneRankOnly_HaveTheLossesOfOneRank) {
  const auto first_expert = [](TrainOptions o) {
    o.lora_targets = {"experts.0.w1"};
    return o;
  };
  const std::vector<double> want = losses(first_expert(expert_options("one")));
  EXPECT_NE(want.back(), losses(expert_options("all")).back());
  TrainOptions fsdp = first_expert(shared_out("fsdp"));
  fsdp.fsdp = true;
  TrainOptions full = first_expert(shared_out("full"));
  full.recompute = "full";
  for (const TrainOptions& o : {first_expert(shared_out("plain")), fsdp, full}) {
    expect_losses(o, want);
  }
}

TEST_F(ExpertLora, SavedWithEp_ResumesWithTpAndBack) {
  const std::vector<double> want = losses(expert_options("one"));
  TrainOptions o = shared_out("resumed");
  o.steps = 2;
  losses(o);
  o.resume = true;
  o.ep = o.dp = 1;
  o.tp = 2;
  o.steps = 4;
  losses(o);
  o.tp = 1;
  o.ep = o.dp = 2;
  o.zero = 1;
  o.steps = 6;
  const std::vector<double> got = losses(o);
  ASSERT_EQ(got.size(), want.size());
  EXPECT_NEAR(got[4], want[4], 2e-4 * want[4]);
  EXPECT_NEAR(got[5], want[5], 2e-4 * want[5]);
}

}  // namespace
}  // namespace cleave::expert_lora_test
