#include <exception>
#include <new>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/model/model.h"
#include "cleave/planner/layout_options.h"
#include "cleave/planner/rank_layouts.h"

namespace cleave::inline planner {
namespace {

/// A layout with the flags that it adds to the command, and its largest micro-batch.
struct Variant {
  ParallelConfig layout;
  std::string flags;
  int64_t micro_batch_size = 1;
  bool is_given = false;  ///< the command's own micro-batch size is micro_batch_size
};

void add_flag(std::string& flags, const std::string& flag) {
  flags += (flags.empty() ? "" : " ") + flag;
}

/// The layout itself, and those that need less memory on its ranks.
std::vector<Variant> layouts_of(const Json& config, const ParallelConfig& layout,
                                const StepShape& step) {
  std::vector<Variant> out{
      {.layout = layout, .flags = "", .micro_batch_size = step.micro_batch_size, .is_given = true}};
  if (layout.dp == 1) return out;
  const auto add_sharded = [&](DataSharding sharding, std::string flags) {
    out.push_back(out.front());
    out.back().layout.sharding = sharding;
    out.back().flags = std::move(flags);
  };
  const bool has_zero1 = layout.sharding == DataSharding::kZero1;
  if (layout.sharding == DataSharding::kNone) add_sharded(DataSharding::kZero1, "--zero 1");
  if (layout.sharding != DataSharding::kFsdp) {
    add_sharded(DataSharding::kFsdp, has_zero1 ? "--zero 0 --fsdp" : "--fsdp");
  }
  Variant by_tp = out.front();
  by_tp.layout.tp = layout.tp * layout.dp;
  by_tp.layout.dp = by_tp.layout.ep = 1;
  by_tp.layout.sharding = DataSharding::kNone;
  if (layout.tp == 1) by_tp.layout.plan = make_model(config)->plan(layout.sequence_parallel);
  by_tp.flags = str("--tp ", by_tp.layout.tp, " --dp 1", layout.ep > 1 ? " --ep 1" : "");
  by_tp.micro_batch_size = default_micro_batch_size(step.batch_size, by_tp.layout);
  by_tp.is_given = false;
  out.push_back(std::move(by_tp));
  return out;
}

std::vector<Variant> variants_of(const Json& config, const ParallelConfig& layout,
                                 const StepShape& step) {
  const std::vector<Variant> layouts = layouts_of(config, layout, step);
  std::vector<at::ScalarType> types{layout.compute_type};
  const bool is_wide = layout.compute_type == at::kFloat || layout.compute_type == at::kDouble;
  if (is_wide) types.push_back(at::kBFloat16);
  std::vector<RecomputeKind> recomputes{layout.recompute};
  if (layout.recompute != RecomputeKind::kFull) recomputes.push_back(RecomputeKind::kFull);
  std::vector<Variant> out;
  for (const at::ScalarType type : types) {
    for (const RecomputeKind recompute : recomputes) {
      for (const Variant& each : layouts) {
        out.push_back(each);
        out.back().layout.compute_type = type;
        out.back().layout.recompute = recompute;
        if (recompute != layout.recompute) add_flag(out.back().flags, "--recompute full");
        if (type != layout.compute_type) add_flag(out.back().flags, "--dtype bf16");
      }
    }
  }
  return out;
}

class Search {
 public:
  Search(const Json& config, const StepShape& step, Range ranks, int64_t limit)
      : config_(config), step_(step), ranks_(ranks), limit_(limit) {}

  /// Whether the variant fits with some micro-batch size; keeps the largest.
  bool fits(const Variant& variant) {
    if (try_size(variant, variant.micro_batch_size)) return true;
    // The smallest next, since most variants do not fit with any.
    if (variant.micro_batch_size == 1 || !try_size(variant, 1)) return false;
    int64_t size = variant.micro_batch_size / 2;
    while (size > 1 && !try_size(variant, size)) size /= 2;
    return true;
  }

  [[nodiscard]] const Saving& best() const { return best_; }

 private:
  /// Tries a variant and returns whether it fits; if so, it becomes the best. Until one fits, the
  /// best is the smallest.
  bool try_size(const Variant& variant, int64_t size) {
    StepShape step = step_;
    step.micro_batch_size = size;
    Saving tried{.flags = variant.flags};
    const bool is_same = variant.is_given && size == variant.micro_batch_size;
    if (!is_same) add_flag(tried.flags, str("--micro-batch-size ", size));
    try {
      tried.bytes = bytes_of_ranks(forecast(config_, variant.layout, step), variant.layout, ranks_);
    } catch (const std::bad_alloc&) {
      throw;
    } catch (const std::exception&) {
      return false;  // the variant does not fit the model, or libtorch cannot run it
    }
    const bool does_fit = tried.bytes <= limit_;
    const bool is_first = best_.bytes == 0;
    if (does_fit || is_first || (best_.bytes > limit_ && tried.bytes < best_.bytes)) best_ = tried;
    return does_fit;
  }

  const Json& config_;
  const StepShape& step_;
  Range ranks_;
  int64_t limit_;
  Saving best_;
};

}  // namespace

int64_t bytes_of_ranks(const Forecast& forecast, const ParallelConfig& layout, Range ranks) {
  int64_t sum = 0;
  for (int64_t rank = ranks.begin; rank < ranks.end; ++rank) {
    sum += forecast.of_rank(layout, rank).memory.total();
  }
  return sum;
}

Saving find_saving(const Json& config, const ParallelConfig& layout, const StepShape& step,
                   Range ranks, int64_t limit) {
  Search search(config, step, ranks, limit);
  for (const Variant& variant : variants_of(config, layout, step)) {
    if (search.fits(variant)) break;
  }
  return search.best();
}

}  // namespace cleave::inline planner
