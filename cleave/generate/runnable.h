#pragma once
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include <c10/core/Device.h>
#include <c10/core/ScalarType.h>

#include "cleave/generate/options.h"
#include "cleave/mesh/consistency.h"
#include "cleave/mesh/axis.h"
#include "cleave/model/model.h"
#include "cleave/tokenizer/tokenizer.h"
#include "cleave/train/task.h"

namespace cleave {

/// A model folder to be run, not trained, and how: worked out before any rank starts. Immutable.
class Runnable {
 public:
  /// `dtype` is a flag's value, "" = that of the files (fp16 files run in fp32 on the CPU), int8 =
  /// 8-bit weights made at load, with activations of fp32 between the products. Throws
  /// Error(kIo) when there is no model, Error(kUsage) for a dtype or device that does not run here
  /// or a model for another task than one of `tasks`.
  Runnable(const std::string& path, const std::string& dtype, const std::string& device,
           const std::vector<std::string>& tasks = {"lm"});

  [[nodiscard]] const ModelFolder& folder() const { return folder_; }
  [[nodiscard]] const ModelFacts& facts() const { return facts_; }
  [[nodiscard]] Task task() const { return task_; }
  [[nodiscard]] at::ScalarType dtype() const { return dtype_; }
  /// How text becomes ids: "bytes", a folder's tokenizer files, or with "" the model folder's own;
  /// null where that has none and no text is to be read. Throws Error(kUsage) where it is needed.
  [[nodiscard]] std::shared_ptr<const Tokenizer> tokenizer(const std::string& wanted,
                                                           bool is_needed) const;
  /// Ids that end a text: of generation_config.json where the folder has one, which may name none,
  /// else of config.json. As transformers.
  [[nodiscard]] const std::vector<int64_t>& eos_ids() const { return eos_ids_; }

  /// The model on this rank: cut over `tp`, its weights read, where they are used and in the form
  /// that running needs: they have no gradients, and some no leaf.
  [[nodiscard]] std::unique_ptr<Model> load(const Axis& tp) const;

  /// What of the model all ranks must have alike: its config, weights (as add_weights) and type,
  /// and of a run the checkpoint.
  [[nodiscard]] ConfigFingerprint told() const;

 private:
  ModelFolder folder_;
  ModelFacts facts_;
  Task task_ = Task::kLm;
  at::Device device_;
  bool is_int8_;
  at::ScalarType dtype_;
  std::vector<int64_t> eos_ids_;
};

/// Of rows of ids, for what ranks compare.
std::string checksum_of(const std::vector<std::vector<int64_t>>& rows);
/// Of a tokenizer; "none" where there is none.
std::string checksum_of(const Tokenizer* tokenizer);

/// Does `work` on all ranks of options.tp, with the options' library of matrix products. Throws as
/// run_job does, and as check_consistent where the ranks' `told` or the options of their machines
/// differ; threads are told the same, so `told` is called where ranks are processes alone.
void run_on_ranks(const RunOptions& options, const std::function<ConfigFingerprint()>& told,
                  const std::function<void(const Axis& tp)>& work);

}  // namespace cleave
