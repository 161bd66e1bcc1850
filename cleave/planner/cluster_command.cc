#include "cleave/planner/cluster_command.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <cmath>
#include <nlohmann/json.hpp>
#include <optional>

#include "cleave/base/byte_count.h"
#include "cleave/base/log.h"
#include "cleave/base/progress.h"
#include "cleave/comm/shm/segment_layout.h"
#include "cleave/file/atomic_write.h"
#include "cleave/model/bert/config.h"
#include "cleave/model/facts.h"
#include "cleave/model/families.h"
#include "cleave/planner/cluster_page.h"

namespace cleave::inline planner {
namespace {

using Object = nlohmann::ordered_json;
constexpr size_t kShown = 10;

/// A size in config.json. Its key is `name` in most families; GPT-2 and DistilBERT have other keys.
int64_t size_of(const Json& config, std::string_view name, std::string_view gpt2_name,
                std::string_view distilbert_name) {
  constexpr int64_t kLargest = 1 << 24;
  for (const std::string_view other : {gpt2_name, distilbert_name}) {
    if (config.has(other)) return config.at(other).as_int(1, kLargest);
  }
  return config.at(name).as_int(1, kLargest);
}

Sharding sharding_of(const LayoutOptions& o) {
  if (o.fsdp) return Sharding::kFsdp;
  return o.zero == 1 ? Sharding::kZero1 : Sharding::kNone;
}

Keep recompute_of(const LayoutOptions& o) {
  if (o.recompute == "full") return Keep::kFull;
  return o.recompute == "selective" ? Keep::kSelective : Keep::kAll;
}

/// Whether a layout has the values of the flags that were given.
bool has_fixed(const PlanOptions& o, const ClusterRun& run) {
  const auto has = [&](const std::string& flag) {
    if (flag == "tp") return run.tp == o.tp;
    if (flag == "pp") return run.pp == o.pp;
    if (flag == "dp") return run.dp == o.dp;
    if (flag == "ep") return run.ep == o.ep;
    if (flag == "virtual-pipeline") return run.virtual_stages == o.virtual_pipeline;
    if (flag == "sequence-parallel") return run.sequence_parallel == o.sequence_parallel;
    if (flag == "zero" || flag == "fsdp") return run.sharding == sharding_of(o);
    if (flag == "recompute") return run.recompute == recompute_of(o);
    CLEAVE_BUG("--", flag, " does not restrict the layouts of a cluster");
  };
  return std::all_of(o.fixed_flags.begin(), o.fixed_flags.end(), has);
}

/// Refuses a search without layouts.
void check_any(const PlanOptions& o, const ClusterPlans& plans) {
  if (plans.considered > 0) return;
  std::string fixed;
  for (const std::string& flag : o.fixed_flags) fixed += " --" + flag;
  CLEAVE_CHECK(fixed.empty(), Code::kShape, "no layout of ", o.ranks, " ranks has the given", fixed,
               plans.refused.empty() ? "" : ": " + plans.refused, "; leave one of them out");
  throw Error(
      Code::kShape,
      str("no layout of ", o.ranks, " ranks divides a batch of ", o.batch_size, " sequences",
          o.micro_batch_size > 0 ? str(" in micro-batches of ", o.micro_batch_size) : "",
          "; choose a batch size that is a multiple of ranks / (tp x pp)",
          o.micro_batch_size > 0 ? " x micro-batch" : ""));
}

/// Batch, length, dtype and the bytes per parameter that Cleave holds.
ClusterTask task_of(const PlanOptions& o, const Cluster& cluster) {
  ClusterTask task{.devices = o.ranks,
                   .run = {},
                   .micro_batch = o.micro_batch_size,
                   .memory_bytes = cluster.memory_bytes};
  if (!o.memory.empty()) task.memory_bytes = memory_limit(o.memory);
  if (!o.fixed_flags.empty()) {
    task.takes = [&o](const ClusterRun& run) { return has_fixed(o, run); };
  }
  CLEAVE_CHECK(o.dtype != "fp64", Code::kUsage,
               "--dtype fp64: clusters have no speed for fp64; choose fp32, bf16 or fp16");
  ClusterRun& run = task.run;
  run.global_batch = o.batch_size;
  run.seq_len = o.seq_len;
  run.overlaps_dp = run.regathers = run.more_at_end = true;
  run.gradient_bytes = 4;
  run.sync_bytes = o.reduce_dtype == "bf16" ? 2 : 4;
  // Muon has one moment of the matrices of the layers, AdamW two of the rest.
  const bool is_muon = o.optimizer == "muon";
  const double moments = o.optimizer == "sgd" ? 0 : is_muon ? 4 : 8;
  run.more_end_bytes = is_muon ? 4 : 0;
  if (o.dtype == "fp32") {
    run.type = MatrixType::kFp32;
    run.element_bytes = run.weight_bytes = 4;
    run.state_bytes = moments;
  } else {
    run.state_bytes = 4 + moments;
  }
  return task;
}

/// What a layout achieves.
struct Rates {
  double tokens_per_s, mfu, days, device_hours;
};

Rates rates_of(const ClusterPlan& plan, const Cluster& c, const TransformerSize& m, double tokens) {
  const ClusterRun& r = plan.run;
  const double step_tokens = static_cast<double>(r.global_batch) * static_cast<double>(r.seq_len);
  const double speed = step_tokens / plan.cost.time.total();
  const double devices = static_cast<double>(r.devices());
  const double peak = c.matrix_flops.at(static_cast<size_t>(r.type)) * devices;
  constexpr double kHour = 3600;
  return {speed, speed * m.train_flops_per_token(r.seq_len) / peak, tokens / speed / kHour / 24,
          tokens / speed / kHour * devices};
}

template <class Kinds>
Object object_of(const Kinds& kinds) {
  Object out = Object::object();
  for (const auto& [name, value] : kinds) out[name] = value;
  return out;
}

/// time_kinds() with the keys that scripts read: the matrix products are "gemm".
Object time_object(const ClusterTime& time) {
  Object out = object_of(time_kinds(time));
  out.erase("matrix products");
  out["gemm"] = time.gemm;
  return out;
}

const char* sharding_name(Sharding sharding) {
  if (sharding == Sharding::kNone) return "none";
  return sharding == Sharding::kZero1 ? "zero1" : "fsdp";
}

Object json_of(const ClusterPlan& p, const ClusterPlan& best, const Rates& rates, double tokens) {
  Object out = {{"flags", flags_of(p.run)},
                {"tp", p.run.tp},
                {"pp", p.run.pp},
                {"dp", p.run.dp},
                {"ep", p.run.ep},
                {"micro_batch", p.run.micro_batch},
                {"virtual_stages", p.run.virtual_stages},
                {"sequence_parallel", p.run.sequence_parallel},
                {"sharding", sharding_name(p.run.sharding)},
                {"recompute", p.run.recompute == Keep::kAll    ? "none"
                              : p.run.recompute == Keep::kFull ? "full"
                                                               : "selective"},
                {"bytes", p.cost.memory.total()},
                {"memory", object_of(memory_kinds(p.cost.memory))},
                {"step_s", p.cost.time.total()},
                {"time", time_object(p.cost.time)},
                {"mfu", rates.mfu},
                {"tokens_per_s", rates.tokens_per_s}};
  if (tokens > 0) {
    out["days"] = rates.days;
    out["device_hours"] = rates.device_hours;
  }
  if (&p != &best) out["why"] = why_slower(best, p);
  return out;
}

template <class Kinds, class Text>
std::string kinds_text(const Kinds& kinds, const Text& text) {
  std::string out;
  for (const auto& [name, value] : kinds) {
    if (value <= 0) continue;
    out += str(out.empty() ? "" : ", ", name, ' ', text(value));
  }
  return out;
}

/// Prints `text` in lines of at most 80 columns; those after the first begin with `indent` spaces.
void print_wrapped(const std::string& text, size_t indent) {
  constexpr size_t kColumns = 80;
  std::string rest = text;
  while (rest.size() > kColumns) {
    const size_t space = rest.rfind(' ', kColumns);
    if (space == std::string::npos || space <= indent) break;
    log_info(rest.substr(0, space));
    rest = std::string(indent, ' ') + rest.substr(space + 1);
  }
  log_info(rest);
}

void print(const ClusterPlan& p, const Rates& rates, size_t place, double tokens) {
  const std::string days = tokens > 0 ? str(", ", fixed_text(rates.days, 1), " days, ",
                                            count_text(rates.device_hours), " device-hours")
                                      : "";
  log_info(place, ". ", flags_of(p.run));
  log_info("   ", duration_text(p.cost.time.total()), " a step, MFU ",
           fixed_text(100 * rates.mfu, 1), " %, ", count_text(rates.tokens_per_s), " tokens/s",
           days);
  const auto size = [](double b) { return bytes_text(b); };
  const auto seconds = [](double s) { return duration_text(s); };
  print_wrapped(str("   memory ", bytes_text(p.cost.memory.total()), ": ",
                    kinds_text(memory_kinds(p.cost.memory), size)),
                10);
  print_wrapped(str("   time   ", kinds_text(time_kinds(p.cost.time), seconds)), 10);
}

/// What to type to train with a layout.
std::string train_text(const PlanOptions& o, const ClusterPlan& plan, const Cluster& c) {
  return str("cleave train --model ", o.model, " --data FILES --out DIR --batch-size ",
             o.batch_size, " --seq-len ", o.seq_len, " --dtype ", o.dtype,
             o.reduce_dtype.empty() ? "" : " --reduce-dtype " + o.reduce_dtype,
             o.optimizer == "adamw" ? "" : " --optimizer " + o.optimizer,
             c.measured_here ? " " : " --device cuda ", flags_of(plan.run));
}

/// What follows from the list: the command of the best layout, or what could make one fit.
void print_next(const PlanOptions& o, const ClusterPlans& plans, const Cluster& c) {
  if (plans.best.empty()) {
    return print_wrapped(
        "no layout fits; try more --ranks, a shorter --seq-len, a model with fewer weights or a "
        "device with more memory",
        2);
  }
  log_info("to train with the first:");
  log_info("  ", train_text(o, plans.best[0], c));
  if (o.ranks > kMaxJobRanks) {
    log_info("  cleave train takes at most ", kMaxJobRanks, " ranks; this is a forecast only");
  } else if (o.ranks > c.devices_per_host) {
    log_info("  on each host, through torchrun, srun or mpirun: docs/hosts.md");
  }
}

/// Why the layouts that do not fit are too large.
std::string too_large_text(const ClusterPlans& plans, double limit) {
  std::string kinds;
  const auto names = memory_kinds({});
  for (size_t i = 0; i < names.size(); ++i) {
    if (plans.too_large_by.at(i) == 0) continue;
    kinds += str(kinds.empty() ? "" : ", ", names.at(i).first, ' ', plans.too_large_by.at(i));
  }
  return str(plans.too_large, " of ", plans.considered, " layouts need more than ",
             bytes_text(limit), "; the largest part of it: ", kinds);
}

/// Refuses a model whose number of experts is under another key, like DeepSeek's: it would count as
/// a dense model.
void check_no_experts(const Json& config) {
  if (config.has("num_local_experts") || config.has("num_experts")) return;  // which is 0
  for (const char* key : {"n_routed_experts", "num_experts_per_tok"}) {
    CLEAVE_CHECK(config.int_or(key, 0) == 0, Code::kFormat, "config.json has experts (", key,
                 "), but neither num_local_experts nor num_experts, from which --cluster reads "
                 "their number");
  }
}

/// The experts of the layers, as `cleave train` reads them. For a family that `cleave train` does
/// not know, the keys are those of other families, and every layer has experts. Empty if no layer
/// has any.
std::optional<ExpertsConfig> experts_of_layers(const Json& config, int64_t ffn) {
  const std::string type = config.string_or("model_type", "");
  if (type != "mixtral" && type != "qwen3_moe") {
    const bool has_experts =
        config.int_or("num_local_experts", 0) != 0 || config.int_or("num_experts", 0) != 0;
    if (!has_experts) {
      check_no_experts(config);
      return std::nullopt;
    }
    (void)config.at("num_experts_per_tok");  // has no default
    return read_experts(config, config.int_or("moe_intermediate_size", ffn, 1, kMostWidth), {});
  }
  const DecoderConfig c = type == "mixtral" ? mixtral_config(config) : qwen3_moe_config(config);
  const auto num_layers =
      std::count_if(c.layers.begin(), c.layers.end(),
                    [](const DecoderLayer& layer) { return layer.has_experts; });
  if (num_layers == 0) return std::nullopt;
  CLEAVE_CHECK(num_layers == std::ssize(c.layers), Code::kShape, "config.json has experts in ",
               num_layers, " of ", c.layers.size(),
               " layers; --cluster forecasts models with experts in all layers or in none");
  return c.experts;
}

/// What a family's config.json means where it lacks a key, as the family's reader in cleave/model
/// has it. transformers does not write values that are its defaults.
struct FamilyDefaults {
  std::string_view type;
  bool tied = false;
  int64_t kv_heads = 0;  ///< 0: as many as heads
  int64_t head_dim = 0;  ///< 0: width / heads
};
constexpr std::array<FamilyDefaults, 8> kFamilies{
    {{.type = "qwen2", .kv_heads = 32},
     {.type = "qwen3", .kv_heads = 32, .head_dim = 128},
     {.type = "qwen3_moe", .kv_heads = 4},
     {.type = "mistral", .kv_heads = 8},
     {.type = "mixtral", .kv_heads = 8},
     {.type = "smollm3", .tied = true, .kv_heads = 4},
     {.type = "gemma2", .tied = true, .kv_heads = 4, .head_dim = 256},
     {.type = "gemma3_text", .tied = true, .kv_heads = 4, .head_dim = 256}}};

bool is_encoder(std::string_view type) {
  return find_bert_type(type) != nullptr;
}

FamilyDefaults defaults_of(std::string_view type) {
  for (const FamilyDefaults& family : kFamilies) {
    if (family.type == type) return family;
  }
  const bool is_gemma = type.starts_with("gemma");
  return {.type = type, .tied = is_gemma || type == "gpt2" || is_encoder(type)};
}

/// Sets heads, KV heads and the size of a head; the width is known.
void read_heads(const Json& config, const FamilyDefaults& defaults, TransformerSize& m) {
  m.heads = size_of(config, "num_attention_heads", "n_head", "n_heads");
  // A key with null means the heads, and width / heads.
  const bool has_kv_default = defaults.kv_heads > 0 && !has_key(config, "num_key_value_heads");
  const bool has_dim_default = defaults.head_dim > 0 && !has_key(config, "head_dim");
  m.kv_heads =
      config.int_or("num_key_value_heads",
                    has_kv_default ? std::min(defaults.kv_heads, m.heads) : m.heads, 1, m.heads);
  CLEAVE_CHECK(m.heads % m.kv_heads == 0, Code::kFormat, "config.json has ", m.heads,
               " heads, not a multiple of its ", m.kv_heads, " KV heads");
  const bool computes_dim = !config.has("head_dim") && !has_dim_default;
  CLEAVE_CHECK(!computes_dim || m.hidden % m.heads == 0, Code::kFormat,
               "config.json has a width of ", m.hidden, ", not a multiple of its ", m.heads,
               " heads");
  m.head_dim =
      config.int_or("head_dim", computes_dim ? m.hidden / m.heads : defaults.head_dim, 1, 1 << 16);
}

}  // namespace

TransformerSize transformer_size(const Json& config) {
  TransformerSize m;
  m.hidden = size_of(config, "hidden_size", "n_embd", "dim");
  m.layers = size_of(config, "num_hidden_layers", "n_layer", "n_layers");
  const std::string type = config.string_or("model_type", "");
  const FamilyDefaults defaults = defaults_of(type);
  read_heads(config, defaults, m);
  m.vocab = config.at("vocab_size").as_int(1, 1 << 30);
  m.gated = type != "gpt2" && !is_encoder(type);
  const bool has_ffn = config.has("intermediate_size");
  m.ffn = has_ffn ? config.at("intermediate_size").as_int(1, 1 << 24)
                  : config.int_or(type == "distilbert" ? "hidden_dim" : "n_inner", 4 * m.hidden, 1,
                                  1 << 24);
  if (const auto experts = experts_of_layers(config, m.ffn)) {
    m.experts = experts->num_experts;
    m.top_k = experts->top_k;
    m.ffn = experts->intermediate;
  }
  m.tied = config.bool_or("tie_word_embeddings", defaults.tied);
  return m;
}

double tokens_from_text(const std::string& text) {
  double value = 0;
  const char* const last = text.data() + text.size();
  const auto [end, error] = std::from_chars(text.data(), last, value);
  const std::string unit(end, last);
  const size_t place =
      unit.size() == 1 ? std::string_view("KMBT").find(unit[0]) : std::string::npos;
  const bool is_known = unit.empty() || place != std::string::npos;
  CLEAVE_CHECK(error == std::errc() && is_known && value > 0 && value < 1e18, Code::kUsage,
               "--tokens '", text, "' is not a number of tokens; write it like 300B, 15T or 2e12");
  return unit.empty() ? value : value * std::pow(1000.0, static_cast<double>(place) + 1);
}

void plan_on_cluster(const PlanOptions& o, const Json& config, const Cluster& cluster) {
  const TransformerSize m = transformer_size(config);
  const double tokens = o.tokens.empty() ? 0 : tokens_from_text(o.tokens);
  const ClusterTask task = task_of(o, cluster);
  const ClusterPlans plans = search_cluster(cluster, m, task, kShown);
  check_any(o, plans);
  if (!o.html.empty()) {
    const std::string page = plan_page(cluster, m, task, {.model = o.model, .tokens = tokens});
    write_atomic(o.html, std::string_view(page));
    if (!o.json) log_info("page with sliders: ", o.html);
  }
  if (o.json) {
    Object out = {{"cluster", cluster.name},
                  {"sources", cluster.sources},
                  {"ranks", o.ranks},
                  {"memory_limit", task.memory_bytes},
                  {"considered", plans.considered},
                  {"too_large", plans.too_large}};
    out["layouts"] = Object::array();
    for (const ClusterPlan& p : plans.best) {
      out["layouts"].push_back(json_of(p, plans.best[0], rates_of(p, cluster, m, tokens), tokens));
    }
    if (!plans.best.empty()) out["command"] = train_text(o, plans.best[0], cluster);
    if (plans.too_large > 0) out["why_too_large"] = too_large_text(plans, task.memory_bytes);
    return log_info(out.dump(-1, ' ', false, Object::error_handler_t::replace));
  }
  log_info(o.ranks, " ranks on ", cluster.name, ": ", cluster.devices_per_host, " per host, ",
           bytes_text(task.memory_bytes), " each");
  log_info(o.model, ", ", count_text(m.parameters()), " parameters: ", o.batch_size,
           " sequences of ", o.seq_len, " tokens a step, ", o.dtype);
  for (const std::string& source : cluster.sources) print_wrapped("  " + source, 4);
  for (size_t i = 0; i < plans.best.size(); ++i) {
    print(plans.best[i], rates_of(plans.best[i], cluster, m, tokens), i + 1, tokens);
    if (i > 0) log_info("   ", why_slower(plans.best[0], plans.best[i]));
  }
  if (plans.too_large > 0) {
    print_wrapped(too_large_text(plans, task.memory_bytes), 2);
    const ClusterPlan& p = plans.smallest[0];
    log_info("the smallest of them needs ", bytes_text(p.cost.memory.total()), ": ",
             flags_of(p.run));
  }
  print_next(o, plans, cluster);
}

}  // namespace cleave::inline planner
