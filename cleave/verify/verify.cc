#include "cleave/verify/verify.h"

#include <algorithm>
#include <limits>
#include <mutex>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/comm/diagnostics/flight_file.h"
#include "cleave/mesh/consistency.h"
#include "cleave/mesh/cuda.h"
#include "cleave/mesh/dry_axis.h"
#include "cleave/mesh/job.h"
#include "cleave/mesh/mesh.h"
#include "cleave/nn/layer.h"
#include "cleave/parallel/parallelize.h"
#include "cleave/verify/numbers.h"
#include "cleave/verify/part.h"
#include "cleave/verify/reference.h"

namespace cleave::inline verify {
namespace {

using namespace verifying;  // NOLINT(google-build-using-namespace)
using Kind = VerifiedPart::Kind;

/// The result of the ranks, the same on all.
struct RankResult {
  std::vector<VerifiedPart> parts;
  std::vector<Measured> measured;  // of all parts' values, in order
  std::vector<std::string> notes;
  std::vector<std::vector<int64_t>> ids;
};

std::vector<int64_t> index_of(int64_t flat, at::IntArrayRef shape) {
  std::vector<int64_t> index(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    index[d] = flat % shape[d];
    flat /= shape[d];
  }
  return index;
}

/// Compares one rank of the sharded model with the reference.
class RankVerifier {
 public:
  RankVerifier(const Reference& reference, const VerifySettings& settings, ParallelAxes axes)
      : reference_(reference),
        settings_(settings),
        device_(device_of(settings.device)),
        axes_(std::move(axes)) {
    if (axes_.tp.size() == 1) return;
    meter_ = std::make_shared<Meter>(axes_.tp.group());
    axes_.tp = Axis(meter_);
  }

  RankResult run(const MakeModel& make) {
    const std::unique_ptr<Model> model = make();
    Probes probes(*model);
    parallelize_module(*model, axes_.tp,
                       settings_.plan ? *settings_.plan : model->plan(settings_.sequence_parallel));
    model->name_tree();
    share_out_experts(*model, axes_, RankTokens::kOwn);
    note_absent(*model);
    set_weights(*model, settings_, reference_.constants);
    move_to(*model, device_);
    compare_weights(*model);
    for (const WantedRun& run : reference_.runs) {
      compare_parts(*model, probes, run);
      compare_step(*model, run);
    }
    if (!reference_.prompts.empty()) {
      compare_decoding(*model);
      result_.ids = continued(*model, axes_.tp, reference_.prompts, settings_.num_new_tokens);
    }
    take_worst();
    return std::move(result_);
  }

 private:
  void compare(VerifiedPart part, const std::vector<Quantity>& got,
               const std::vector<Wanted>& want) {
    CLEAVE_CHECK(got.size() == want.size(), Code::kShape, part.name, ": the sharded model has ",
                 got.size(), " values to compare, the model on one rank ", want.size());
    for (size_t i = 0; i < got.size(); ++i) {
      result_.measured.push_back(measure(got[i], want[i], part.name));
      part.values.push_back({.of = want[i].of, .subject = want[i].subject});
      shapes_.push_back(want[i].value.sizes().vec());
    }
    result_.parts.push_back(std::move(part));
  }

  [[nodiscard]] StepInput on_device(const StepInput& input) const {
    return {.ids = input.ids.to(device_),
            .labels = input.labels.to(device_),
            .training = input.training};
  }

  void compare_weights(Model& model) {
    std::vector<Quantity> weights;
    for (const auto& p : model.parameters()) {
      weights.push_back(quantity_of(Of::kStart, *p, p->leaf()));
    }
    compare({.kind = Kind::kWeights, .name = "the weights"}, weights, reference_.initial);
  }

  /// Notes the layers of experts that other ranks have. This rank does not call them.
  void note_absent(Model& model) {
    model.walk([&](Layer& layer) {
      const Parameters parameters = layer.parameters();
      if (are_of_expert(parameters) && !parameters.front()->is_here()) absent_.insert(layer.path());
    });
  }

  /// A part that other ranks run.
  void skip_part(const WantedPart& want) {
    std::vector<Quantity> none;
    for (const Wanted& value : want.values) {
      none.push_back({.of = value.of, .subject = value.subject, .local = {}});
    }
    compare({.kind = Kind::kLayer, .name = want.name}, none, want.values);
  }

  void compare_parts(Model& model, Probes& probes, const WantedRun& run) {
    const StepInput input = on_device(run.input);
    const auto calls = recorded(model, probes, axes_.tp, input, settings_.seed);
    const auto parts = parts_of(calls, settings_, input, axes_);
    std::vector<PartBytes> bytes(parts.size());
    size_t next = 0;
    for (const WantedPart& want : run.parts) {
      if (absent_.contains(want.path)) {
        if (want.is_run) skip_part(want);
        continue;
      }
      const size_t i = next++;
      const bool is_there = i < parts.size();
      CLEAVE_CHECK(is_there && parts[i].name == want.name, Code::kShape, "the sharded model calls ",
                   is_there ? parts[i].name : "no more layers", ", the model on one rank ",
                   want.name, "; a model must call the same layers on every layout");
      if (!want.is_run) continue;
      const Tensor x = want.x.to(device_, parts[i].x.local().scalar_type());
      const auto got = run_part(parts[i], x, settings_, meter_.get(), &bytes[i]);
      const int64_t moved = bytes[i].forward.bytes + bytes[i].backward.bytes;
      compare({.kind = parts[i].kind, .name = want.name, .bytes = moved}, got, want.values);
    }
    if (meter_ && !run.input.training) result_.notes = notes_on(parts, bytes, model);
  }

  void compare_step(Model& model, const WantedRun& run) {
    auto got = run_step(model, axes_, on_device(run.input), settings_);
    if (!run.input.training) {
      std::vector<Quantity> weights = stepped_weights(model);
      std::move(weights.begin(), weights.end(), std::back_inserter(got));
    }
    const std::string how = run.input.training ? " with dropout" : "";
    compare({.kind = Kind::kStep, .name = "a training step" + how}, got, run.step);
  }

  /// Compares the last logits of decoding with those of the whole sequences on one rank.
  void compare_decoding(Model& model) {
    const WantedRun& run = reference_.runs.front();
    const auto decoded = decoded_logits(model, axes_, on_device(run.input));
    if (decoded.empty()) return;
    constexpr size_t kOutput = 1;  // after the loss
    const Wanted& output = run.step[kOutput];
    const Tensor last = output.value.narrow(1, output.value.size(1) - 1, 1);
    std::vector<Wanted> want;
    want.reserve(decoded.size());
    for (const Quantity& q : decoded) {
      want.push_back({.of = q.of, .subject = q.subject, .value = last, .bound = output.bound});
    }
    compare({.kind = Kind::kDecode, .name = "decoding with the KV cache"}, decoded, want);
  }

  /// Sets each comparison to the worst over all ranks.
  void take_worst() {
    const auto all = worst(worst(result_.measured, axes_.tp), axes_.dp);
    std::vector<int64_t> moved;  // by each part; nothing where this rank did not run it
    for (const VerifiedPart& part : result_.parts) moved.push_back(part.bytes);
    const Tensor most = axes_.ep.all_reduce(at::tensor(moved), "bytes", ReduceOp::kMax);
    size_t at = 0;
    for (size_t i = 0; i < result_.parts.size(); ++i) {
      VerifiedPart& part = result_.parts[i];
      part.bytes = most.const_data_ptr<int64_t>()[i];
      for (Comparison& c : part.values) {
        const Measured& m = all[at];
        c.distance = m.distance;
        c.bound = m.bound;
        c.split = m.split;
        c.whole = m.whole;
        if (m.at >= 0) c.at = index_of(m.at, shapes_[at]);
        ++at;
      }
    }
  }

  const Reference& reference_;
  const VerifySettings& settings_;
  at::Device device_;
  ParallelAxes axes_;
  std::set<std::string> absent_;  // paths of layers of other ranks' experts
  std::shared_ptr<Meter> meter_;
  RankResult result_;
  std::vector<std::vector<int64_t>> shapes_;  // of the values, in order
};

/// Compares generated ids. At the first different id, the difference of the two scores on one rank
/// must be within the bound of rounding; the ids after it are not compared.
VerifiedPart compared_ids(const Reference& reference,
                          const std::vector<std::vector<int64_t>>& split) {
  VerifiedPart part{.kind = Kind::kIds, .name = "generated ids"};
  const double bound = reference.runs.front().step[1].bound.item<double>();
  for (size_t i = 0; i < split.size(); ++i) {
    const auto& want = reference.ids[i];
    Comparison c{.of = Of::kIds, .subject = str(i + 1), .bound = 2 * bound};
    const auto [here, there] =
        std::mismatch(split[i].begin(), split[i].end(), want.begin(), want.end());
    if (split[i].size() != want.size()) {
      c.distance = std::numeric_limits<double>::infinity();
    } else if (here != split[i].end()) {
      auto row = reference.prompts[i];
      row.insert(row.end(), want.begin(), there);
      const Tensor scores = reference.scores(row).to(at::kDouble);
      c.distance = (scores[*there] - scores[*here]).abs().item<double>();
      c.split = static_cast<double>(*here);
      c.whole = static_cast<double>(*there);
      c.at = {there - want.begin()};
    }
    part.values.push_back(c);
  }
  return part;
}

}  // namespace

std::string Comparison::quantity() const {
  switch (of) {
    case Of::kOutput:
      return "output";
    case Of::kInputGradient:
      return "gradient of the input";
    case Of::kGradient:
      return "gradient of " + subject;
    case Of::kNorm:
      return "norm of the gradients";
    case Of::kLoss:
      return "loss";
    case Of::kStart:
      return subject + " at the start";
    case Of::kStepped:
      return subject + " after a step";
    case Of::kIds:
      return "ids after prompt " + subject;
    case Of::kDecoded:
      return "logits of " + subject;
  }
  CLEAVE_BUG("no quantity has the number ", static_cast<int>(of));
}

const Comparison* VerifiedPart::first_difference() const {
  for (const Comparison& c : values) {
    if (!c.agrees()) return &c;
  }
  return nullptr;
}

const VerifiedPart* VerifyReport::first_difference() const {
  for (const VerifiedPart& part : parts) {
    if (part.first_difference() != nullptr) return &part;
  }
  return nullptr;
}

VerifyReport verify_model(const MakeModel& make, const VerifySettings& settings) {
  CLEAVE_CHECK(settings.tp >= 1 && settings.dp >= 1, Code::kUsage, "tp=", settings.tp,
               " and dp=", settings.dp, " must be at least 1");
  check_expert_ranks(settings.ep, settings.dp);
  CLEAVE_CHECK(settings.dtype == at::kDouble || settings.dtype == at::kFloat ||
                   settings.dtype == at::kBFloat16 || settings.dtype == at::kHalf,
               Code::kUsage, "the dtype of verify is ", toString(settings.dtype),
               "; expected fp32, bf16, fp16 or fp64");
  CLEAVE_CHECK(settings.num_rows >= 1 && settings.num_tokens >= 1, Code::kUsage,
               "num_rows=", settings.num_rows, " and num_tokens=", settings.num_tokens,
               " must be at least 1");
  {
    // Reports a plan that does not fit the model before anything is computed.
    const std::unique_ptr<Model> model = make();
    const Plan plan = settings.plan ? *settings.plan : model->plan(settings.sequence_parallel);
    if (settings.tp > 1) parallelize_module(*model, dry_axis("tp", 0, settings.tp), plan);
    model->name_tree();
    const Axis ep = settings.ep > 1 ? dry_axis("ep", 0, settings.ep) : Axis();
    share_out_experts(*model, {.pp = {}, .dp = {}, .tp = {}, .ep = ep}, RankTokens::kOwn);
  }
  const Reference reference = make_reference(make, settings);
  std::mutex mutex;
  RankResult found;
  run_job({.num_ranks = settings.tp * settings.dp,
           .threads_per_rank = settings.threads_per_rank,
           .ranks = {.timeout_s = settings.timeout_s,
                     .flight_log_folder = temporary_flight_logs(),
                     .transport = settings.transport,
                     .fast_sums = settings.fast_sums},
           .device = settings.device},
          [&](World& world) {
            if (!settings.fingerprint.empty()) {
              const Mesh all = Mesh::build(world, {{"verify", world.size()}});
              check_consistent(settings.fingerprint, all["verify"]);
            }
            const Mesh mesh = Mesh::build(world, {{"dp", settings.dp}, {"tp", settings.tp}});
            const ParallelAxes axes =
                with_experts({.pp = {}, .dp = mesh["dp"], .tp = mesh["tp"]}, world, settings.ep);
            RankResult own = RankVerifier(reference, settings, axes).run(make);
            const std::lock_guard lock(mutex);
            // Ranks have notes on their own experts.
            if (!world.ranks_are_threads() || world.rank() == 0) found = std::move(own);
          });
  VerifyReport report{.settings = settings, .parts = found.parts, .notes = found.notes};
  if (!found.ids.empty()) report.parts.push_back(compared_ids(reference, found.ids));
  return report;
}

}  // namespace cleave::inline verify
