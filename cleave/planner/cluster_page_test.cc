#include "cleave/planner/cluster_page.h"

#include <nlohmann/json.hpp>
#include <set>
#include <string>
#include <vector>

#include <gtest/gtest.h>

namespace cleave::cluster_page_test {
namespace {

TransformerSize small_model() {
  TransformerSize m;
  m.layers = 4;
  m.hidden = 1024;
  m.heads = m.kv_heads = 8;
  m.head_dim = 128;
  m.ffn = 4096;
  m.vocab = 32000;
  return m;
}

nlohmann::json data_of(const std::string& html) {
  const std::string begin = R"(<script type="application/json" id="data">)";
  const size_t at = html.find(begin) + begin.size();
  return nlohmann::json::parse(html.substr(at, html.find("</script>", at) - at));
}

TEST(PlanPage, HoldsEveryLayout_AlsoThoseThatDoNotFit) {
  const Cluster c = cluster_preset("h100-80gb");
  ClusterTask task{.devices = 8, .run = {}, .micro_batch = 0, .memory_bytes = 1e9};
  task.run.global_batch = 16;
  const std::string html =
      plan_page(c, small_model(), task, {.model = "</script><b>", .tokens = 1e9});
  EXPECT_EQ(html.find("</script><b>"), std::string::npos);
  const nlohmann::json data = data_of(html);
  EXPECT_EQ(data["model"], "</script><b>");
  EXPECT_EQ(data["layouts"].size(), data["considered"]);
  const ClusterPlans plans = search_cluster(c, small_model(), task, 10);
  EXPECT_EQ(plans.considered, data["considered"]);
  EXPECT_GT(plans.too_large, 0);
  // Settings, kinds of memory, kinds of time; the fastest first.
  double before = 0;
  for (const auto& row : data["layouts"]) {
    ASSERT_EQ(row.size(), 8 + data["memory_kinds"].size() + data["time_kinds"].size());
    double seconds = 0;
    for (size_t i = 8 + data["memory_kinds"].size(); i < row.size(); ++i) {
      seconds += row[i].get<double>();
    }
    EXPECT_GE(seconds, before * (1 - 1e-3));
    before = seconds;
  }
}

// With experts, ep is a setting too: without it, rows would look the same and differ in their cost.
TEST(PlanPage, RowsOfAModelWithExperts_HaveDifferentSettings) {
  TransformerSize m = small_model();
  m.experts = 8;
  m.top_k = 2;
  ClusterTask task{.devices = 8, .run = {}, .micro_batch = 0, .memory_bytes = 80e9};
  task.run.global_batch = 16;
  const nlohmann::json data =
      data_of(plan_page(cluster_preset("h100-80gb"), m, task, {.model = "m", .tokens = 0}));
  const size_t num_costs = data["memory_kinds"].size() + data["time_kinds"].size();
  std::set<std::string> settings;
  for (const nlohmann::json& row : data["layouts"]) {
    settings.insert(
        nlohmann::json(std::vector<nlohmann::json>(
                           row.begin(), row.end() - static_cast<std::ptrdiff_t>(num_costs)))
            .dump());
  }
  EXPECT_EQ(settings.size(), data["layouts"].size());
}

}  // namespace
}  // namespace cleave::cluster_page_test
