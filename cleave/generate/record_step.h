#pragma once
#include <optional>

#include "cleave/generate/runnable.h"
#include "cleave/generate/settings.h"
#include "cleave/parallel/step_recording.h"

namespace cleave::inline generation {

/// Throws Error(kUsage) unless --record-step and --out fit each other and the other options.
void check_recording(const GenerateOptions& options);

/// Records step --record-step of generate() on one rank; without the flag it does nothing. A step
/// is a pass of the model and the choice of the tokens that follow from it. Collective.
class RecordStep {
 public:
  /// To be made before the model: it counts the tensors of this thread from here on. Both must
  /// outlive it.
  RecordStep(const GenerateOptions& options, const RunAxes& axes);

  /// The settings with which generate() of this loaded model is recorded.
  [[nodiscard]] GenerateSettings watch(Model& model, GenerateSettings settings);
  /// To be called after generate(): writes the files of the step, or warns that it did not come.
  void finish();

 private:
  void begin_pass(Model& model);

  const GenerateOptions& options_;
  const RunAxes& axes_;
  std::optional<CpuMemory> counter_;
  int64_t weight_bytes_ = 0;
  int64_t step_ = 0;  // that runs; the last one in the end
  std::optional<StepRecording> recording_;
};

}  // namespace cleave::inline generation
