#include "cleave/planner/cluster.h"

#include <gtest/gtest.h>

#include "cleave/base/error.h"
#include "cleave/planner/cluster_names.h"
#include "tests/support/thrown.h"

namespace cleave::cluster_test {
namespace {

Cluster parse(const std::string& text) {
  return cluster_of(Json::parse(text, "cluster.json"));
}

/// The message with which a file is refused; fails if it is accepted or takes several lines.
std::string refusal_of(const std::string& text) {
  try {
    parse(text);
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kFormat) << error.what();
    EXPECT_EQ(std::string(error.what()).find('\n'), std::string::npos);
    return error.what();
  }
  ADD_FAILURE() << "accepted " << text;
  return "";
}

TEST(ClusterPresets, NamesOfTheFrontEnd_AreAllOfThem) {
  std::string names = "here";
  for (const std::string& name : cluster_names()) names += ' ' + name;
  EXPECT_EQ(names, kClusterNames);
}

TEST(ClusterFile, Sizes_AreReadAsPeopleWriteThem) {
  EXPECT_EQ(parse(R"({"base": "h200", "memory": "80GB"})").memory_bytes, 80e9);
  EXPECT_EQ(parse(R"({"base": "h200", "memory": "80G"})").memory_bytes, 80e9);
  EXPECT_EQ(parse(R"({"base": "h200", "memory": "80GiB"})").memory_bytes, 80.0 * (1 << 30));
  EXPECT_EQ(parse(R"({"base": "h200", "memory": 80000000000})").memory_bytes, 80e9);
}

TEST(ClusterFile, Base_GivesWhatTheFileDoesNot) {
  const Cluster c = parse(R"({"base": "h100-80gb", "name": "ours", "net_link_rate": "25GB",
    "attention_share": 0.6, "devices_per_host": 4, "matrix_flops": {"bf16": 8e14}, "fitted": {"matrix_share": 0.5}})");
  const Cluster base = cluster_preset("h100-80gb");
  EXPECT_EQ(c.name, "ours");
  EXPECT_EQ(c.net_link_rate, 25e9);
  EXPECT_EQ(c.devices_per_host, 4);
  EXPECT_EQ(c.attention_share, 0.6);
  EXPECT_EQ(c.matrix_flops[1], 8e14);
  EXPECT_EQ(c.matrix_flops[2], base.matrix_flops[2]);
  EXPECT_EQ(c.fitted.matrix_share, 0.5);
  EXPECT_EQ(c.fitted.memory_share, base.fitted.memory_share);
}

// A file over "here" changes what was measured, such as the network between such hosts.
TEST(ClusterFile, BaseHere_IsMeasuredForTheDevicesOfAHost) {
  int measured_for = 0;
  const auto here = [&](int devices) {
    measured_for = devices;
    Cluster c = cluster_preset("h200");
    c.name = "here";
    return c;
  };
  const auto read = [&](const char* text) { return cluster_of(Json::parse(text, "f"), here); };
  const Cluster c = read(R"({"base": "here", "devices_per_host": 3, "net_link_rate": "25MB"})");
  EXPECT_EQ(measured_for, 3);
  EXPECT_EQ(c.name, "here");
  EXPECT_EQ(c.net_link_rate, 25e6);
  EXPECT_EQ(c.memory_rate, cluster_preset("h200").memory_rate);
  const Error unknown = test::thrown_by([&] { (void)read(R"({"base": "hre"})"); });
  EXPECT_NE(std::string(unknown.what()).find(", here"), std::string::npos) << unknown.what();
  EXPECT_THROW(read(R"({"base": "here"})"), Error);  // of how many devices is not said
  EXPECT_THROW(parse(R"({"base": "here", "devices_per_host": 3})"), Error);
}

TEST(ClusterFile, Sources_SayWhatTheFileChanges) {
  const Cluster c = parse(R"({"base": "h200", "name": "ours", "memory": "80GB"})");
  EXPECT_EQ(c.sources.size(), cluster_preset("h200").sources.size() + 1);
  EXPECT_EQ(c.sources.back(), "from the file, in place of the above: memory");
  EXPECT_EQ(parse(R"({"base": "h200", "memory": 8e10, "sources": ["us"]})").sources,
            std::vector<std::string>{"us"});
}

TEST(ClusterFile, Mistakes_AreNamedInOneLine) {
  const auto has = [](const std::string& text, const std::string& part) {
    const std::string message = refusal_of(text);
    EXPECT_NE(message.find(part), std::string::npos) << message;
  };
  has("[]", "object");
  has(R"({"base": "a100", "memory": "80GB"})", "a100-80gb");
  has(R"({"base": "h200", "memory": "eighty"})", "80GiB");
  has(R"({"base": "h200", "memroy": "80GB"})", "memroy");
  has(R"({"base": "h200", "devices_per_host": 0})", "devices_per_host");
  has(R"({"base": "h200", "matrix_flops": {"bf61": 1e15}})", "bf61");
  has(R"({"base": "h200", "fitted": {"matrix_share": 1.5}})", "matrix_share");
  has(R"({"base": "h200", "fitted": {"speed": 1}})", "speed");
  has(R"({"memory": "80GB"})", "memory_rate");
  has(R"({"memory": "80GB", "memory_rate": "2TB", "host_link_rate": "300GB", "net_link_rate": "25GB"})",
      "matrix_flops");
}

TEST(ClusterPreset, EachIsCompleteAndNamesItsSources) {
  for (const std::string& name : cluster_names()) {
    const Cluster c = cluster_preset(name);
    EXPECT_FALSE(c.sources.empty()) << name;
    EXPECT_GT(c.memory_bytes, 0) << name;
    EXPECT_GT(c.matrix_flops[0], 0) << name;
    EXPECT_GT(c.matrix_flops[1], c.matrix_flops[0]) << name;
    EXPECT_GE(c.matrix_flops[2], c.matrix_flops[1]) << name;
    EXPECT_GE(c.matrix_flops[3], c.matrix_flops[2]) << name;
    EXPECT_GT(c.host_link_rate, c.net_link_rate) << name;
  }
}

// Cleave does not use TF32, which is eight times as fast on an A100. By NVIDIA's data sheets.
TEST(ClusterPreset, Fp32_HasTheSpeedWithoutTf32) {
  EXPECT_EQ(cluster_preset("a100-80gb").matrix_flops[0], 19.5e12);
  EXPECT_EQ(cluster_preset("h100-80gb").matrix_flops[0], 67e12);
  const Cluster file = parse(
      R"({"memory": "80GB", "memory_rate": "2TB", "host_link_rate": "300GB", "net_link_rate": "25GB", "matrix_flops": {"bf16": 1.6e14}})");
  EXPECT_EQ(file.matrix_flops[0], 1e13);
}

TEST(ClusterPreset, Unknown_IsRefusedWithTheNames) {
  try {
    cluster_preset("h300");
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), Code::kUsage);
    EXPECT_NE(std::string(error.what()).find("h100-80gb"), std::string::npos);
  }
}

}  // namespace
}  // namespace cleave::cluster_test
