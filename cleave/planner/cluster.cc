#include "cleave/planner/cluster.h"

#include <algorithm>
#include <array>
#include <filesystem>

#include "cleave/base/byte_count.h"
#include "cleave/base/error.h"
#include "cleave/planner/cluster_presets.h"

namespace cleave::inline planner {
namespace {

double size_of(const Json& value) {
  if (value.is(Json::Type::kNumber)) return value.as_number(1, 1e18);
  const auto bytes = memory_from_text(value.as_string());
  if (!bytes) value.fail("expected a size such as 80GB, 80GiB or 80G");
  return *bytes;
}

struct SizeField {
  const char* name;
  double Cluster::*member;
};
constexpr std::array kSizes{SizeField{"memory", &Cluster::memory_bytes},
                            SizeField{"memory_rate", &Cluster::memory_rate},
                            SizeField{"host_link_rate", &Cluster::host_link_rate},
                            SizeField{"net_link_rate", &Cluster::net_link_rate}};

struct FittedField {
  const char* name;
  double FittedConstants::*member;
  double high;
};
constexpr std::array kFitted{FittedField{"matrix_share", &FittedConstants::matrix_share, 1},
                             FittedField{"memory_share", &FittedConstants::memory_share, 1},
                             FittedField{"host_link_share", &FittedConstants::host_link_share, 1},
                             FittedField{"net_link_share", &FittedConstants::net_link_share, 1},
                             FittedField{"layer_call_s", &FittedConstants::layer_call_s, 10},
                             FittedField{"runtime_bytes", &FittedConstants::runtime_bytes, 1e12}};

constexpr std::array kSpeeds{"fp32", "bf16", "fp8", "fp4"};
constexpr double kMaxRate = 1e18;
constexpr int64_t kMostDevices = 1 << 20;

void read_speeds(const Json& json, Cluster& c) {
  for (size_t i = 0; i < json.size(); ++i) {
    const auto* known = std::find(kSpeeds.begin(), kSpeeds.end(), json.key(i));
    if (known == kSpeeds.end()) {
      json.at(i).fail("unknown dtype of a matrix speed; choose fp32, bf16, fp8 or fp4");
    }
    c.matrix_flops.at(static_cast<size_t>(known - kSpeeds.begin())) =
        json.at(i).as_number(1, kMaxRate);
  }
}

void read_fitted(const Json& json, FittedConstants& out) {
  for (size_t i = 0; i < json.size(); ++i) {
    const auto* known = std::find_if(kFitted.begin(), kFitted.end(),
                                     [&](const FittedField& f) { return json.key(i) == f.name; });
    if (known == kFitted.end()) json.at(i).fail("unknown constant of a cluster");
    out.*known->member = json.at(i).as_number(known->high == 1 ? 0.001 : 0, known->high);
  }
}

/// Whether `key` is a size, which it reads.
bool read_size(const std::string& key, const Json& value, Cluster& c) {
  const auto* size =
      std::find_if(kSizes.begin(), kSizes.end(), [&](const SizeField& f) { return key == f.name; });
  if (size == kSizes.end()) return false;
  c.*size->member = size_of(value);
  return true;
}

void read_field(const std::string& key, const Json& value, Cluster& c) {
  if (read_size(key, value, c)) return;
  if (key == "name") {
    c.name = value.as_string();
  } else if (key == "sources") {
    if (!value.is(Json::Type::kArray)) value.fail("expected a list of texts");
    c.sources.clear();
    for (size_t i = 0; i < value.size(); ++i) c.sources.push_back(value.at(i).as_string());
  } else if (key == "devices_per_host") {
    c.devices_per_host = static_cast<int>(value.as_int(1, kMostDevices));
  } else if (key == "matrix_flops") {
    read_speeds(value, c);
  } else if (key == "vector_flops") {
    c.vector_flops = value.as_number(1, kMaxRate);
  } else if (key == "host_latency_s") {
    c.host_latency_s = value.as_number(0, 1);
  } else if (key == "net_latency_s") {
    c.net_latency_s = value.as_number(0, 1);
  } else if (key == "num_cores") {
    c.num_cores = static_cast<int>(value.as_int(1, kMostDevices));
  } else if (key == "fused_attention") {
    c.fused_attention = value.as_bool();
  } else if (key == "attention_share") {
    c.attention_share = value.as_number(0.001, 1);
  } else if (key == "fitted") {
    read_fitted(value, c.fitted);
  } else {
    value.fail("unknown field of a cluster; docs/clusters.md lists the fields");
  }
}

/// Speeds that are not given: outside of matrix units a sixteenth of bf16, fp32 as outside of
/// matrix units, fp8 as bf16, and fp4 as fp8.
void complete(const Json& json, Cluster& c) {
  for (const SizeField& size : kSizes) {
    if (c.*size.member == 0) json.at(size.name).fail("expected a size");
  }
  if (c.matrix_flops[1] == 0) json.at("matrix_flops").at("bf16").fail("expected a speed");
  if (c.matrix_flops[2] == 0) c.matrix_flops[2] = c.matrix_flops[1];
  if (c.matrix_flops[3] == 0) c.matrix_flops[3] = c.matrix_flops[2];
  if (c.vector_flops == 0) c.vector_flops = c.matrix_flops[1] / 16;
  if (c.matrix_flops[0] == 0) c.matrix_flops[0] = c.vector_flops;
}

/// The preset that the key "base" names; without it an empty one.
Cluster base_of(const Json& json, const MeasureHere& here) {
  if (!json.has("base")) return {};
  const std::string name = json.at("base").as_string();
  if (name == "here" && here) {
    return here(static_cast<int>(json.at("devices_per_host").as_int(1, kMostDevices)));
  }
  for (const Cluster& c : cluster_presets()) {
    if (c.name == name) return c;
  }
  auto names = cluster_names();
  if (here) names.emplace_back("here");
  json.at("base").fail(str("expected one of ", list_text(names)));
}

}  // namespace

std::optional<double> memory_from_text(const std::string& text) {
  auto bytes = bytes_from_text(text);
  if (!bytes) bytes = bytes_from_text(text + "B");  // people write "80G" for 80 GB
  if (!bytes) return std::nullopt;
  return static_cast<double>(*bytes);
}

double memory_limit(const std::string& text) {
  const auto bytes = memory_from_text(text);
  CLEAVE_CHECK(bytes, Code::kUsage, "--memory '", text,
               "' is not a size; write it like 8GiB, 500MB or 80G");
  const bool is_number = text.find_first_not_of("0123456789") == std::string::npos;
  CLEAVE_CHECK(*bytes >= 1e6, Code::kUsage, "--memory ", text, " is ", bytes_text(*bytes), "; ",
               is_number ? str("did you mean ", text, "GB?") : "give at least 1MB");
  CLEAVE_CHECK(*bytes <= 1e18, Code::kUsage, "--memory ", text, " is ", bytes_text(*bytes),
               "; give at most 1000PB");
  return *bytes;
}

std::vector<std::string> cluster_names() {
  std::vector<std::string> out;
  for (const Cluster& c : cluster_presets()) out.push_back(c.name);
  return out;
}

Cluster cluster_preset(const std::string& name) {
  for (const Cluster& c : cluster_presets()) {
    if (c.name == name) return c;
  }
  throw Error(Code::kUsage, str("cluster '", name, "' is unknown; choose ",
                                list_text(cluster_names()), ", here or a JSON file"));
}

Cluster read_cluster(const std::string& name_or_file, const MeasureHere& here) {
  if (name_or_file.ends_with(".json")) return cluster_of(Json::parse_file(name_or_file), here);
  return cluster_preset(name_or_file);
}

Cluster cluster_of(const Json& json, const MeasureHere& here) {
  if (!json.is(Json::Type::kObject)) json.fail("expected an object that describes a cluster");
  Cluster c = base_of(json, here);
  std::string changed;
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string& key = json.key(i);
    if (key == "base") continue;
    read_field(key, json.at(i), c);
    if (key != "name" && key != "sources") changed += str(changed.empty() ? "" : ", ", key);
  }
  complete(json, c);
  // The sources of the base do not say where the file's own fields are from.
  if (!changed.empty() && !json.has("sources")) {
    c.sources.push_back(str("from the file, in place of the above: ", changed));
    if (!json.has("base")) c.sources = {str("from the file: ", changed)};
  }
  if (c.name.empty()) c.name = "the file's cluster";
  return c;
}

}  // namespace cleave::inline planner
