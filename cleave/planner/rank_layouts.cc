#include "cleave/planner/rank_layouts.h"

#include <algorithm>
#include <map>
#include <tuple>

#include "cleave/base/error.h"

namespace cleave {
namespace {

/// With one size of tp, pp and dp: sequences cut or not, times what is cut over dp.
std::vector<TrainLayout> variants_of(const Model& model, const TrainLayout& sizes) {
  std::vector<TrainLayout> out;
  for (const auto sharding : {DataSharding::kNone, DataSharding::kZero1, DataSharding::kFsdp}) {
    if (sharding != DataSharding::kNone && sizes.dp == 1) continue;
    for (const bool cuts_sequences : {false, true}) {
      if (cuts_sequences && sizes.tp == 1) continue;
      out.push_back(sizes);
      out.back().plan = model.plan(cuts_sequences);
      out.back().sequence_parallel = cuts_sequences;
      out.back().sharding = sharding;
    }
  }
  return out;
}

std::vector<TrainLayout> layouts_of(const Model& model, int num_ranks, at::ScalarType type) {
  std::vector<TrainLayout> out;
  for (int tp = 1; tp <= num_ranks; ++tp) {
    for (int pp = 1; tp * pp <= num_ranks; ++pp) {
      if (num_ranks % (tp * pp) != 0) continue;
      const auto variants = variants_of(
          model, {.pp = pp, .dp = num_ranks / (tp * pp), .tp = tp, .compute_type = type});
      out.insert(out.end(), variants.begin(), variants.end());
    }
  }
  return out;
}

/// Why one size of tp or pp cannot be, whatever the rest of the layout is; "" where it can. A model
/// of a hundred thousand ranks has thousands of layouts, nearly all refused for one of these few.
class Refusals {
 public:
  explicit Refusals(const Json& config) : config_(config) {}

  const std::string& of(const TrainLayout& layout) {
    const std::string& of_pp = tried(pp_, layout.pp, {.pp = layout.pp});
    if (!of_pp.empty()) return of_pp;
    return tried(tp_, layout.tp, {.tp = layout.tp});
  }

 private:
  const std::string& tried(std::map<int, std::string>& known, int size, TrainLayout layout) {
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

}  // namespace

std::vector<Candidate> rank_layouts(const Json& config, int num_ranks, const StepShape& step,
                                    at::ScalarType compute_type, const Machine& machine,
                                    int64_t limit) {
  std::vector<Candidate> out;
  Refusals refusals(config);
  for (const TrainLayout& layout : layouts_of(*make_model(config), num_ranks, compute_type)) {
    Candidate c{.layout = layout, .forecast = {}, .time = {}, .refused = {}};
    StepShape own = step;
    if (own.micro_batch_size == 0) {
      own.micro_batch_size = default_micro_batch_size(step.batch_size, layout);
    }
    try {
      CLEAVE_CHECK(step.batch_size >= layout.dp, Code::kShape, "batch-size=", step.batch_size,
                   " is less than dp=", layout.dp);
      const std::string& refusal = refusals.of(layout);
      CLEAVE_CHECK(refusal.empty(), Code::kShape, refusal);
      c.forecast = forecast(config, layout, own);
      c.time = step_time(c.forecast, layout, machine);
      c.fits = c.forecast.most_bytes() <= limit;
    } catch (const Error& error) {
      if (error.code() != Code::kShape) throw;
      c.refused = error.what();
    }
    out.push_back(std::move(c));
  }
  const auto place = [](const Candidate& c) {
    const double rest = c.fits ? c.time.total() : static_cast<double>(c.forecast.most_bytes());
    return std::tuple(!c.refused.empty(), !c.fits, rest);
  };
  std::stable_sort(out.begin(), out.end(),
                   [&](const Candidate& a, const Candidate& b) { return place(a) < place(b); });
  return out;
}

}  // namespace cleave
