#include "cleave/generate/record_step.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "cleave/base/log.h"

namespace cleave::inline generation {

void check_recording(const GenerateOptions& o) {
  if (o.record_step == 0) {
    CLEAVE_CHECK(o.out.empty(), Code::kUsage, "--out ", o.out,
                 " is the folder of --record-step, which is not given; give both or neither");
    return;
  }
  CLEAVE_CHECK(!o.out.empty(), Code::kUsage,
               "--record-step writes replay.html into a folder; give it with --out DIR");
  CLEAVE_CHECK(!std::filesystem::exists(o.out) || std::filesystem::is_directory(o.out),
               Code::kUsage, "--out ", o.out, " is a file; give a folder");
  CLEAVE_CHECK(!o.chat, Code::kUsage,
               "--record-step records a step of --prompt, not of --chat; leave one of them out");
  CLEAVE_CHECK(o.record_step <= o.max_new_tokens, Code::kUsage, "--record-step is ", o.record_step,
               "; expected at most the ", o.max_new_tokens,
               " steps of --max-new-tokens, one for each token");
  CLEAVE_CHECK(o.device == "cpu", Code::kUsage, "--record-step records ranks on the CPU and does ",
               "not support --device ", o.device, "; leave it out");
}

RecordStep::RecordStep(const GenerateOptions& options, const RunAxes& axes)
    : options_(options), axes_(axes) {
  if (options_.record_step > 0) counter_.emplace();
}

GenerateSettings RecordStep::watch(Model& model, GenerateSettings settings) {
  if (!counter_) return settings;
  weight_bytes_ = counter_->live();
  settings.before_pass = [this, &model] { begin_pass(model); };
  return settings;
}

void RecordStep::begin_pass(Model& model) {
  if (step_ == options_.record_step) recording_->end();
  if (++step_ != options_.record_step) return;
  const auto memory = [this] {
    KindBytes bytes{};
    bytes[kWeightBytes] = weight_bytes_;
    bytes[kRestBytes] = std::max<int64_t>(0, counter_->live() - weight_bytes_);
    return bytes;
  };
  recording_.emplace(StepRecording::Subject{.mesh = axes_.mesh,
                                            .everyone = axes_.all,
                                            .parameters = model.parameters(),
                                            .memory = memory});
}

void RecordStep::finish() {
  if (!counter_) return;
  if (recording_) {
    const int ranks = axes_.mesh.size();
    recording_->write(options_.out,
                      {.title = str(options_.model, " on ", ranks, ranks == 1 ? " rank" : " ranks",
                                    ", step ", options_.record_step, " of generate"),
                       .metrics = {.step = options_.record_step}});
  } else if (axes_.is_first()) {
    log_warning("the texts ended after step ", step_, ", before --record-step ",
                options_.record_step, "; no step is recorded");
  }
}

}  // namespace cleave::inline generation
