#include "cleave/planner/rank_layouts.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <map>
#include <mutex>
#include <system_error>
#include <thread>
#include <tuple>

#include "cleave/base/error.h"
#include "cleave/base/str.h"
#include "cleave/planner/layout_options.h"

namespace cleave::inline planner {
namespace {

/// The layouts with these sizes of tp, pp and dp: with and without sequence parallelism, times the
/// kinds of DataSharding.
std::vector<ParallelConfig> variants_of(const Model& model, const ParallelConfig& sizes) {
  std::vector<ParallelConfig> out;
  for (const auto sharding : {DataSharding::kNone, DataSharding::kZero1, DataSharding::kFsdp}) {
    if (sharding != DataSharding::kNone && sizes.dp == 1) continue;
    for (const bool sequence_parallel : {false, true}) {
      if (sequence_parallel && sizes.tp == 1) continue;
      out.push_back(sizes);
      out.back().plan = model.plan(sequence_parallel);
      out.back().sequence_parallel = sequence_parallel;
      out.back().sharding = sharding;
    }
  }
  return out;
}

std::vector<ParallelConfig> layouts_of(Model& model, int num_ranks, const ParallelConfig& common) {
  const int64_t most_ep = std::max<int64_t>(1, experts_of(model));
  std::vector<ParallelConfig> out;
  for (int tp = 1; tp <= num_ranks; ++tp) {
    for (int pp = 1; tp * pp <= num_ranks; ++pp) {
      if (num_ranks % (tp * pp) != 0) continue;
      ParallelConfig sizes = common;
      sizes.pp = pp;
      sizes.dp = num_ranks / (tp * pp);
      sizes.tp = tp;
      for (sizes.ep = 1; sizes.ep <= std::min<int64_t>(most_ep, sizes.dp); ++sizes.ep) {
        if (sizes.dp % sizes.ep != 0) continue;
        const auto variants = variants_of(model, sizes);
        out.insert(out.end(), variants.begin(), variants.end());
      }
    }
  }
  return out;
}

/// Why a size of tp or pp does not fit the model, whatever the rest of the layout; "" if it fits.
/// Each size is tried once: a hundred thousand ranks have thousands of layouts, but few sizes.
class Refusals {
 public:
  explicit Refusals(const Json& config) : config_(config) {}

  const std::string& of(const ParallelConfig& layout) {
    const std::string& of_pp = tried(pp_, layout.pp, {.pp = layout.pp});
    if (!of_pp.empty()) return of_pp;
    return tried(tp_, layout.tp, {.tp = layout.tp});
  }

 private:
  const std::string& tried(std::map<int, std::string>& known, int size, ParallelConfig layout) {
    const auto [at, is_new] = known.try_emplace(size);
    if (is_new) {
      try {
        const auto model = make_model(config_);
        layout.plan = model->plan(false);
        try_layout(*model, layout);
      } catch (const Error& error) {
        if (error.code() != Code::kShape) throw;
        at->second = error.what();
      }
    }
    return at->second;
  }

  const Json& config_;
  std::map<int, std::string> pp_, tp_;
};

/// Calls `work` with each number below `count`, on as many threads as the host has CPUs. Throws the
/// first error, after which no call begins.
void on_threads(size_t count, const std::function<void(size_t)>& work) {
  std::atomic<size_t> next = 0;
  std::mutex mutex;
  std::exception_ptr failure;
  const auto take_all = [&] {
    for (size_t i = next++; i < count; i = next++) {
      try {
        work(i);
      } catch (...) {
        next = count;
        const std::scoped_lock lock(mutex);
        if (!failure) failure = std::current_exception();
      }
    }
  };
  std::vector<std::thread> others;
  try {
    const size_t num_threads = std::min(count, static_cast<size_t>(cpus_here()));
    for (size_t i = 1; i < num_threads; ++i) others.emplace_back(take_all);
  } catch (const std::system_error&) {
    // No more threads: those that have started share the work.
  }
  take_all();
  for (std::thread& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
}

/// Forecasts a layout, or notes why it cannot run.
void add_forecast(const Json& config, const LayoutSearch& search, LayoutCandidate& c) {
  StepShape step = search.step;
  if (step.micro_batch_size == 0) {
    step.micro_batch_size = default_micro_batch_size(step.batch_size, c.layout);
  }
  try {
    c.forecast = forecast(config, c.layout, step);
    c.fits = c.forecast.most_bytes() <= search.limit;
  } catch (const Error& error) {
    if (error.code() != Code::kShape) throw;
    c.refused = error.what();
  }
}

/// Why `train` refuses to divide the batch so; "" if it does not.
std::string refusal_of_batch(const StepShape& step, int dp) {
  if (step.batch_size < dp) return str("batch-size=", step.batch_size, " is less than dp=", dp);
  const int64_t share = (step.batch_size + dp - 1) / dp;
  if (step.micro_batch_size <= share) return "";
  return str("micro-batch-size=", step.micro_batch_size, " is more than the ",
             counted(share, "sequence"), " of a data-parallel rank");
}

/// All layouts, with the forecasts of those that are not refused.
std::vector<LayoutCandidate> forecasts(const Json& config, const LayoutSearch& search) {
  std::vector<LayoutCandidate> out;
  Refusals refusals(config);
  for (const auto& layout : layouts_of(*make_model(config), search.num_ranks, search.common)) {
    out.push_back({.layout = layout, .forecast = {}, .time = {}, .refused = {}});
    out.back().refused = refusal_of_batch(search.step, layout.dp);
    if (out.back().refused.empty()) out.back().refused = refusals.of(layout);
  }
  std::mutex mutex;
  int64_t done = 0;
  on_threads(out.size(), [&](size_t i) {
    if (out[i].refused.empty()) add_forecast(config, search, out[i]);
    const std::scoped_lock lock(mutex);
    ++done;
    if (search.on_progress) search.on_progress(done, std::ssize(out));
  });
  return out;
}

/// Measures the machine for all layouts, and adds their times.
void add_times(const LayoutSearch& search, std::vector<LayoutCandidate>& layouts) {
  MeasuredRun run;
  for (const LayoutCandidate& c : layouts) {
    if (!c.refused.empty()) continue;
    run.work.add(c.forecast.work());
    run.rank_bytes = std::max(run.rank_bytes, c.forecast.most_bytes());
  }
  const Machine machine = search.measure(run);
  for (LayoutCandidate& c : layouts) {
    if (c.refused.empty()) c.time = step_time(c.forecast, c.layout, machine);
  }
}

}  // namespace

std::vector<LayoutCandidate> rank_layouts(const Json& config, const LayoutSearch& search) {
  std::vector<LayoutCandidate> out = forecasts(config, search);
  add_times(search, out);
  const auto place = [](const LayoutCandidate& c) {
    const double rest = c.fits ? c.time.total() : static_cast<double>(c.forecast.most_bytes());
    return std::tuple(!c.refused.empty(), !c.fits, rest);
  };
  std::stable_sort(out.begin(), out.end(), [&](const LayoutCandidate& a, const LayoutCandidate& b) {
    return place(a) < place(b);
  });
  return out;
}

}  // namespace cleave::inline planner
