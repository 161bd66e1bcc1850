#include "cleave/planner/cluster_search.h"

#include <algorithm>
#include <cmath>
#include <numeric>

#include "cleave/base/error.h"

namespace cleave::inline planner {
namespace {

constexpr int64_t kLargestMicroBatch = 64;
constexpr int kMostVirtualStages = 8;

std::vector<int64_t> divisors(int64_t number, int64_t most) {
  std::vector<int64_t> out;
  for (int64_t d = 1; d <= std::min(number, most); ++d) {
    if (number % d == 0) out.push_back(d);
  }
  return out;
}

bool is_faster(const ClusterPlan& a, const ClusterPlan& b) {
  if (a.cost.time.total() != b.cost.time.total()) {
    return a.cost.time.total() < b.cost.time.total();
  }
  return a.cost.memory.total() < b.cost.memory.total();
}

/// The search over everything but tp and pp.
class Searcher {
 public:
  Searcher(const Cluster& c, const TransformerSize& m, const ClusterTask& task, size_t count)
      : c_(c), m_(m), task_(task), count_(count) {}

  void try_axes(int tp, int pp) {
    const int64_t dp = task_.devices / (int64_t{tp} * pp);
    if (task_.run.global_batch % dp != 0) return;
    ClusterRun run = task_.run;
    run.tp = tp;
    run.pp = pp;
    run.dp = static_cast<int>(dp);
    for (const int64_t micro_batch :
         divisors(run.global_batch / dp, std::max(kLargestMicroBatch, task_.micro_batch))) {
      if (task_.micro_batch != 0 && micro_batch != task_.micro_batch) continue;
      run.micro_batch = micro_batch;
      try_stages(run);
    }
  }

  ClusterPlans take() {
    keep_best();
    return std::move(out_);
  }

 private:
  void try_stages(ClusterRun run) {
    const int64_t dp = run.dp;
    for (run.virtual_stages = 1; run.virtual_stages <= kMostVirtualStages; ++run.virtual_stages) {
      if (run.virtual_stages > 1 && (run.pp == 1 || run.micro_batches() % run.pp != 0)) break;
      for (const int64_t ep : divisors(m_.experts > 0 ? std::gcd(dp, m_.experts) : 1, dp)) {
        run.ep = static_cast<int>(ep);
        try_options(run);
      }
    }
  }

  void try_options(ClusterRun run) {
    for (const Keep keep : {Keep::kAll, Keep::kSelective, Keep::kFull}) {
      // Fused attention stores no scores, so that selective recompute saves nothing.
      if (keep == Keep::kSelective && c_.fused_attention) continue;
      run.recompute = keep;
      for (const Sharding sharding : {Sharding::kNone, Sharding::kZero1, Sharding::kFsdp}) {
        if (sharding != Sharding::kNone && run.dp == 1) continue;
        run.sharding = sharding;
        run.sequence_parallel = false;
        try_run(run);
        if (run.tp == 1) continue;
        run.sequence_parallel = true;
        try_run(run);
      }
    }
  }

  void try_run(const ClusterRun& run) {
    if (task_.takes && !task_.takes(run)) return;
    const std::string refused = refusal(m_, run);
    if (!refused.empty()) {
      out_.refused = refused;
      return;
    }
    ++out_.considered;
    const ClusterMemory memory = cluster_memory(c_, m_, run);
    if (memory.total() > task_.memory_bytes) return too_large(run, memory);
    out_.best.push_back({run, cluster_cost(c_, m_, run)});
    constexpr size_t kMostKept = 4096;
    if (out_.best.size() >= kMostKept + 2 * count_) keep_best();
  }

  void too_large(const ClusterRun& run, const ClusterMemory& memory) {
    ++out_.too_large;
    const auto kinds = memory_kinds(memory);
    const auto largest =
        std::max_element(kinds.begin(), kinds.end(),
                         [](const auto& a, const auto& b) { return a.second < b.second; });
    ++out_.too_large_by.at(static_cast<size_t>(largest - kinds.begin()));
    if (out_.smallest.empty() || memory.total() < out_.smallest[0].cost.memory.total()) {
      out_.smallest = {{run, {.memory = memory, .time = {}, .fits = false}}};
    }
  }

  void keep_best() {
    const size_t kept = std::min(count_, out_.best.size());
    std::partial_sort(out_.best.begin(), out_.best.begin() + static_cast<std::ptrdiff_t>(kept),
                      out_.best.end(), is_faster);
    out_.best.resize(kept);
  }

  const Cluster& c_;
  const TransformerSize& m_;
  const ClusterTask& task_;
  size_t count_;
  ClusterPlans out_;
};

const char* recompute_name(Keep keep) {
  switch (keep) {
    case Keep::kAll:
      return "none";
    case Keep::kFull:
      return "full";
    case Keep::kSelective:
    case Keep::kSelectiveOps:
      return "selective";
  }
  CLEAVE_BUG("unknown recompute");
}

}  // namespace

ClusterPlans search_cluster(const Cluster& c, const TransformerSize& m, const ClusterTask& task,
                            size_t count) {
  Searcher searcher(c, m, task, count);
  const std::vector<int64_t> tps = divisors(task.devices, 2 * int64_t{c.devices_per_host});
  for (const int64_t tp : tps) {
    for (const int64_t pp : divisors(task.devices / tp, m.layers)) {
      searcher.try_axes(static_cast<int>(tp), static_cast<int>(pp));
    }
  }
  return searcher.take();
}

std::array<std::pair<const char*, double>, 6> memory_kinds(const ClusterMemory& m) {
  return {{{"weights", m.weights},
           {"gradients", m.gradients},
           {"optimizer", m.optimizer},
           {"activations", m.activations},
           {"logits", m.logits},
           {"runtime", m.runtime}}};
}

std::array<std::pair<const char*, double>, 6> time_kinds(const ClusterTime& t) {
  return {{{"matrix products", t.gemm},
           {"attention", t.attention},
           {"memory-bound", t.memory_bound + t.optimizer},
           {"launches", t.launch},
           {"communication", t.tp + t.pp + t.dp + t.ep},
           {"bubble", t.bubble}}};
}

std::string flags_of(const ClusterRun& r) {
  TextStream out;
  out << "--tp " << r.tp << " --pp " << r.pp << " --dp " << r.dp << " --micro-batch-size "
      << r.micro_batch;
  if (r.ep > 1) out << " --ep " << r.ep;
  if (r.virtual_stages > 1) out << " --virtual-pipeline " << r.virtual_stages;
  if (r.sequence_parallel) out << " --sequence-parallel";
  if (r.sharding == Sharding::kZero1) out << " --zero 1";
  if (r.sharding == Sharding::kFsdp) out << " --fsdp";
  if (r.recompute != Keep::kAll) out << " --recompute " << recompute_name(r.recompute);
  return out.str();
}

std::string why_slower(const ClusterPlan& best, const ClusterPlan& slower) {
  const auto a = time_kinds(best.cost.time);
  const auto b = time_kinds(slower.cost.time);
  size_t most = 0;
  for (size_t i = 1; i < a.size(); ++i) {
    if (b.at(i).second - a.at(i).second > b.at(most).second - a.at(most).second) most = i;
  }
  const double share = slower.cost.time.total() / best.cost.time.total() - 1;
  std::string text = fixed_text(100 * share, 1) + " % slower";
  const double more = b.at(most).second - a.at(most).second;
  if (more <= 0) return text;
  return str(text, ": ", b.at(most).first, " +", fixed_text(more, more < 1 ? 3 : 1), " s");
}

}  // namespace cleave::inline planner
