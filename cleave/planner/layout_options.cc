#include "cleave/planner/layout_options.h"

#include <algorithm>
#include <utility>

#include "cleave/comm/bootstrap/first_rank.h"
#include "cleave/mesh/dry_axis.h"
#include "cleave/parallel/parallelize.h"

namespace cleave::inline planner {
namespace {

RecomputeKind recompute_from_name(const std::string& name) {
  if (name == "none") return RecomputeKind::kNone;
  if (name == "full") return RecomputeKind::kFull;
  CLEAVE_CHECK(name == "selective", Code::kUsage, "recompute '", name,
               "' is unknown; expected none, full or selective");
  return RecomputeKind::kSelective;
}

DataSharding sharding_of(const LayoutOptions& o) {
  CLEAVE_CHECK(o.zero == 0 || o.zero == 1, Code::kUsage, "--zero ", o.zero,
               " is unknown; choose 0 or 1, or --fsdp");
  CLEAVE_CHECK(!o.fsdp || o.zero == 0, Code::kUsage,
               "--fsdp shards everything that --zero 1 shards; give one of them");
  if (o.dp > 1 || (!o.fsdp && o.zero == 0)) {
    if (o.fsdp) return DataSharding::kFsdp;
    return o.zero == 1 ? DataSharding::kZero1 : DataSharding::kNone;
  }
  log_warning_once(
      o.fsdp ? "--fsdp" : "--zero 1",
      " shards over data-parallel ranks and dp=1: nothing is sharded; give --dp 2 or more");
  return DataSharding::kNone;
}

}  // namespace

std::optional<at::ScalarType> reduce_type_of(const LayoutOptions& o) {
  if (o.reduce_dtype.empty()) return std::nullopt;
  CLEAVE_CHECK(o.reduce_dtype == "fp32" || o.reduce_dtype == "bf16", Code::kUsage,
               "--reduce-dtype ", o.reduce_dtype, " is unknown; choose fp32 or bf16");
  return o.reduce_dtype == "bf16" ? at::kBFloat16 : at::kFloat;
}

ParallelConfig make_parallel_config(const LayoutOptions& o, const Model& model,
                                    at::ScalarType compute_type, int world_size) {
  ParallelConfig l{.pp = o.pp,
                   .dp = o.dp,
                   .tp = o.tp > 0 ? o.tp : std::max(1, world_size / (o.dp * o.pp)),
                   .ep = o.ep,
                   .stages_per_rank = o.virtual_pipeline,
                   .sequence_parallel = o.sequence_parallel,
                   .sharding = sharding_of(o),
                   .recompute = recompute_from_name(o.recompute),
                   .compute_type = compute_type,
                   .reduce_type = reduce_type_of(o)};
  const bool is_whole_world = world_size == 0 || l.num_ranks() == world_size;
  CLEAVE_CHECK(is_whole_world, Code::kShape, "tp=", l.tp, " x pp=", l.pp, " x dp=", l.dp, " needs ",
               l.num_ranks(), " ranks; the launcher started ", world_size);
  if (!o.schedule_pp.empty() && o.pp == 1) {
    log_warning_once("--schedule-pp ", o.schedule_pp,
                     " orders a pipeline's work and pp=1: it has no effect; give --pp 2 or more");
  }
  if (l.reduce_type && l.dp == 1) {
    log_warning_once(
        "--reduce-dtype ", o.reduce_dtype,
        " is for gradients that pass between data-parallel ranks and dp=1: it has no effect; "
        "give --dp 2 or more");
  }
  if (l.tp == 1 && (o.sequence_parallel || !o.plan.empty())) {
    log_warning_once(
        o.plan.empty() ? "--sequence-parallel" : "--plan",
        " shards over tensor-parallel ranks and tp=1: nothing is sharded; give --tp 2 or more");
  }
  const char* by_stages = l.stages_per_rank > 1 ? "interleaved" : "1f1b";
  l.schedule = schedule_from_name(o.schedule_pp.empty() ? by_stages : o.schedule_pp);
  CLEAVE_CHECK(
      o.plan.empty() || !o.sequence_parallel, Code::kUsage,
      "--plan decides where sequences are sharded; --sequence-parallel needs the model's own plan");
  l.plan = o.plan.empty() ? model.plan(o.sequence_parallel) : read_plan(o.plan);
  return l;
}

std::optional<LoraOptions> lora_from(const LoraFlags& o) {
  if (o.lora == 0) {
    const bool has_any = o.lora_alpha != 0 || !o.lora_targets.empty() || o.lora_dropout != 0 ||
                         o.lora_base != LoraFlags{}.lora_base || o.rslora || o.dora;
    CLEAVE_CHECK(!has_any, Code::kUsage,
                 "--lora-alpha, --lora-targets, --lora-dropout, --lora-base, --rslora and --dora "
                 "need --lora RANK; give it too");
    return std::nullopt;
  }
  LoraOptions lora{.rank = o.lora, .alpha = 2.0 * static_cast<double>(o.lora)};
  if (o.lora_alpha > 0) lora.alpha = o.lora_alpha;
  lora.is_rank_stabilized = o.rslora;
  lora.dropout = o.lora_dropout;
  lora.is_dora = o.dora;
  lora.base_form = base_form_from_name(o.lora_base);
  std::vector<std::string> targets;
  for (const std::string& names : o.lora_targets) {
    for (size_t begin = 0, end = 0; end != std::string::npos; begin = end + 1) {
      end = names.find(',', begin);
      targets.push_back(names.substr(begin, end - begin));
    }
    CLEAVE_CHECK(std::find(targets.begin(), targets.end(), "") == targets.end(), Code::kUsage,
                 "--lora-targets '", names,
                 "' has an empty name; give layers between commas, as in q_proj,v_proj, or leave "
                 "it out for all-linear");
  }
  if (!targets.empty()) lora.targets = std::move(targets);
  return lora;
}

std::string cross_host_warning(const ParallelConfig& layout, int ranks_of_host) {
  if (layout.num_ranks() <= ranks_of_host || ranks_of_host % layout.tp == 0) return "";
  std::string fits;
  for (int tp = 1; tp <= ranks_of_host; ++tp) {
    if (ranks_of_host % tp == 0) fits += str(fits.empty() ? "" : ", ", tp);
  }
  return str("tp=", layout.tp, " spans several hosts of ", ranks_of_host,
             " ranks, so every layer's sums cross the network; a tp of ", fits,
             " stays on one host");
}

int64_t default_micro_batch_size(int64_t batch_size, const ParallelConfig& layout) {
  const int64_t rows = (batch_size + layout.dp - 1) / layout.dp;
  return layout.pp > 1 ? std::max<int64_t>(1, rows / (int64_t{4} * layout.pp)) : rows;
}

RankPlace place_of(int rank, const ParallelConfig& l) {
  return {.pp = rank / (l.tp * l.dp), .dp = rank / l.tp % l.dp, .tp = rank % l.tp};
}

ParallelAxes dry_axes(const ParallelConfig& l, const RankPlace& place) {
  // Blocks of ep neighbours share out the experts, as in with_experts().
  return {.pp = dry_axis("pp", place.pp, l.pp),
          .dp = dry_axis("dp", place.dp, l.dp),
          .tp = dry_axis("tp", place.tp, l.tp),
          .ep = dry_axis("ep", place.dp % l.ep, l.ep),
          .copies = dry_axis("copies of experts", place.dp / l.ep, std::max(1, l.dp / l.ep))};
}

void try_layout(Model& model, const ParallelConfig& layout) {
  (void)parallelize(model, model.sequence(), dry_axes(layout), layout);
}

}  // namespace cleave::inline planner
