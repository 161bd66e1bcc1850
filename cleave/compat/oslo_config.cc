#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/base/suggest.h"
#include "cleave/compat/oslo.h"

namespace cleave::oslo {
namespace {

constexpr int64_t kMostRanks = 65536;

/// The allowed keys of an object, with the reader of each value.
using Keys = std::vector<std::pair<std::string, std::function<void(const Json& value)>>>;

void read_object(const Json& json, const Keys& keys) {
  if (!json.is(Json::Type::kObject)) json.fail("expected an object");
  std::vector<std::string> names;
  for (const auto& [name, read] : keys) names.push_back(name);
  for (size_t i = 0; i < json.size(); ++i) {
    bool is_known = false;
    for (const auto& [name, read] : keys) {
      if (name != json.key(i)) continue;
      is_known = true;
      read(json.at(i));
    }
    if (!is_known) json.at(i).fail("unknown key" + did_you_mean(json.key(i), names));
  }
}

/// A block is enabled by default. OSLO required "enable": true, and did not shard without it.
bool is_enabled(const Json& block) {
  bool enable = true;
  for (size_t i = 0; i < block.size(); ++i) {
    if (block.key(i) == "enable") enable = block.at(i).as_bool();
  }
  return enable;
}

void require_off(const Json& flag) {
  if (flag.as_bool()) flag.fail("not supported; omit it");
}

void read_model_parallelism(const Json& block, Config& config) {
  int64_t tp = 1;
  read_object(block, {{"enable", [](const Json& value) { (void)value.as_bool(); }},
                      {"tensor_parallel_size",
                       [&](const Json& value) { tp = value.as_int(1, kMostRanks); }},
                      {"pipeline_parallel_size", [](const Json& value) {
                         if (value.as_int(1, kMostRanks) == 1) return;
                         value.fail(
                             "expected 1; for pipelines use `cleave train --pp` or PipelineModel, "
                             "whose files can be read here");
                       }}});
  if (is_enabled(block)) config.tensor_parallel_size = static_cast<int>(tp);
}

void read_activation_checkpointing(const Json& block, Config& config) {
  read_object(block, {{"enable", [](const Json& value) { (void)value.as_bool(); }},
                      {"partitioned_checkpointing", require_off},
                      {"contiguous_checkpointing", require_off},
                      {"cpu_checkpointing", require_off}});
  config.activation_checkpointing = is_enabled(block);
}

void read_kernel_fusion(const Json& block) {
  const auto any = [](const Json&) {};
  read_object(block, {{"enable", [](const Json& value) { (void)value.as_bool(); }},
                      {"memory_efficient_fusion", any},
                      {"custom_cuda_kernels", any}});
  if (is_enabled(block))
    block.fail("not supported: Cleave chooses its kernels by itself; set \"enable\" to false");
}

}  // namespace

Config::Config(const Json& json) {
  read_object(json, {{"model_parallelism",
                      [&](const Json& block) { read_model_parallelism(block, *this); }},
                     {"activation_checkpointing",
                      [&](const Json& block) { read_activation_checkpointing(block, *this); }},
                     {"kernel_fusion", read_kernel_fusion}});
}

Config::Config(const std::string& json_file) : Config(Json::parse_file(json_file)) {}

Config::Config(const char* json_file) : Config(std::string(json_file)) {}

}  // namespace cleave::oslo
