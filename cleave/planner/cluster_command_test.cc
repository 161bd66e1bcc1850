#include "cleave/planner/cluster_command.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/model/model.h"
#include "cleave/planner/forecast.h"
#include "tests/support/thrown.h"

namespace cleave::cluster_command_test {
namespace {

using testing::HasSubstr;
using testing::Not;

PlanOptions two_ranks() {
  PlanOptions o;
  o.model = "llama-tiny";
  o.ranks = 2;
  o.seq_len = 256;
  return o;
}

std::string printed(const PlanOptions& o, const Cluster& cluster) {
  testing::internal::CaptureStdout();
  plan_on_cluster(o, preset_config(o.model, 0), cluster);
  return testing::internal::GetCapturedStdout();
}

TEST(TrainCommand, ReduceDtype_IsInTextAndJson) {
  PlanOptions o = two_ranks();
  const Cluster c = cluster_preset("h100-80gb");
  EXPECT_THAT(printed(o, c), Not(HasSubstr("--reduce-dtype")));
  o.reduce_dtype = "bf16";
  const std::string flags = " --dtype fp32 --reduce-dtype bf16 --device cuda --tp ";
  EXPECT_THAT(printed(o, c), HasSubstr(flags));
  o.json = true;
  EXPECT_THAT(printed(o, c), HasSubstr(flags));
}

// Whatever the file with "base": "here" changes, its ranks compute on this host's CPU.
TEST(TrainCommand, ClusterOverThisHost_TrainsOnTheCpu) {
  const auto here = [](int devices) {
    Cluster c = cluster_preset("h100-80gb");
    c.name = "here";
    c.measured_here = true;
    c.devices_per_host = devices;
    return c;
  };
  const Json file =
      Json::parse(R"({"base": "here", "devices_per_host": 1, "net_link_rate": "25MB"})", "f");
  EXPECT_THAT(printed(two_ranks(), cluster_of(file, here)), Not(HasSubstr("--device")));
  EXPECT_THAT(printed(two_ranks(), cluster_preset("h200")), HasSubstr(" --device cuda "));
}

std::vector<nlohmann::json> layouts_of(const PlanOptions& o) {
  return nlohmann::json::parse(printed(o, cluster_preset("h100-80gb"))).at("layouts");
}

// Oracle: the whole list, of which the layouts with these values are picked.
TEST(FixedFlags, OfTheLayout_LeaveThoseWithTheirValues) {
  PlanOptions o = two_ranks();
  o.ranks = 4;
  o.batch_size = 2;
  o.json = true;
  o.tp = 2;
  o.zero = 1;
  o.fixed_flags = {"tp", "pp", "dp", "ep", "virtual-pipeline", "zero", "recompute"};
  o.dp = 2;
  const std::vector<nlohmann::json> fixed = layouts_of(o);
  ASSERT_EQ(fixed.size(), 2U);  // with and without sequence parallelism
  for (const nlohmann::json& layout : fixed) {
    EXPECT_EQ(layout.at("tp"), 2);
    EXPECT_EQ(layout.at("pp"), 1);
    EXPECT_EQ(layout.at("dp"), 2);
    EXPECT_EQ(layout.at("sharding"), "zero1");
    EXPECT_EQ(layout.at("recompute"), "none");
  }
  o.fixed_flags.emplace_back("sequence-parallel");
  o.sequence_parallel = true;
  const std::vector<nlohmann::json> one = layouts_of(o);
  ASSERT_EQ(one.size(), 1U);
  EXPECT_EQ(one[0].at("sequence_parallel"), true);
  const nlohmann::json& same = fixed[0].at("sequence_parallel") == true ? fixed[0] : fixed[1];
  EXPECT_EQ(one[0].at("step_s"), same.at("step_s"));
}

TEST(FixedFlags, WithoutALayout_AreNamedWithTheReason) {
  PlanOptions o = two_ranks();
  o.ranks = 4;
  o.pp = 2;
  o.virtual_pipeline = 4;  // of 6 layers
  o.fixed_flags = {"pp", "virtual-pipeline"};
  const Error error = test::thrown_by([&] { (void)layouts_of(o); });
  (void)testing::internal::GetCapturedStdout();
  EXPECT_EQ(error.code(), Code::kShape);
  EXPECT_STREQ(
      error.what(),
      "no layout of 4 ranks has the given --pp --virtual-pipeline: 8 stages, but 6 layers; "
      "leave one of them out");
}

// Oracle: the stages that train makes of Gemma's 26 layers, of which the last has 7 and the head.
// Its norms, which this forecast leaves out, are less than a thousandth.
TEST(ClusterMemory, LayersThatDoNotDivide_AreInTheLastStages) {
  PlanOptions o = two_ranks();
  o.model = "gemma2-2b";
  o.ranks = o.pp = 4;
  o.dtype = "bf16";
  o.fixed_flags = {"pp"};
  o.json = true;
  const nlohmann::json memory = layouts_of(o).at(0).at("memory");
  const double planned = memory.at("weights").get<double>() + memory.at("optimizer").get<double>();
  const Json config = preset_config(o.model, 0);
  const auto model = make_model(config);
  ParallelConfig layout{.pp = 4, .compute_type = at::kBFloat16};
  layout.plan = model->plan(/*sequence_parallel=*/false);
  double most = 0;
  for (const RankForecast& rank : forecast(config, layout, {.micro_batch_size = 1}).ranks) {
    most = std::max(most, static_cast<double>(rank.memory.weights + rank.memory.optimizer));
  }
  EXPECT_NEAR(planned / most, 1, 1e-3);
}

// More ranks than `cleave train` takes.
TEST(TrainCommand, OfTooManyRanks_IsAForecastOnly) {
  PlanOptions o = two_ranks();
  o.ranks = 8192;
  o.batch_size = 8192;
  EXPECT_THAT(printed(o, cluster_preset("h100-80gb")),
              HasSubstr("cleave train takes at most 4096 ranks; this is a forecast only"));
}

// Oracle: the optimizer's bytes of `cleave plan --model llama-tiny --optimizer muon`, which come
// from its real parameters, less the 13 norms of 256 numbers, which this forecast leaves out.
TEST(ClusterMemory, Muon_HasOneMomentOfTheLayersMatrices) {
  PlanOptions o = two_ranks();
  o.ranks = 1;
  o.json = true;
  const auto bytes = [&](const char* optimizer) {
    o.optimizer = optimizer;
    const auto plan = nlohmann::json::parse(printed(o, cluster_preset("h100-80gb")));
    return plan.at("layouts").at(0).at("memory").at("optimizer").get<double>();
  };
  EXPECT_EQ(bytes("muon"), 82962432 - 8 * 13 * 256);
  EXPECT_EQ(bytes("adamw"), 8.0 * (12545280 - 13 * 256));
}

}  // namespace
}  // namespace cleave::cluster_command_test
