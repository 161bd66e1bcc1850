#include "cleave/planner/cluster_command.h"

#include <nlohmann/json.hpp>
#include <string>

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "cleave/model/model.h"

namespace cleave::cluster_command_test {
namespace {

using testing::HasSubstr;
using testing::Not;

PlanOptions two_ranks() {
  PlanOptions o;
  o.model = "llama-tiny";
  o.ranks = 2;
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
