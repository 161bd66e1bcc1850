#pragma once
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "cleave/nn/parameter.h"

namespace cleave::inline optim {

struct OptimizerOptions {
  enum class Kind : uint8_t { kAdamW, kAdam, kSgd, kMuon } kind = Kind::kAdamW;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  /// Which tensors decay: those with two or more dims (not norms and biases), or all.
  enum class DecayOn : uint8_t { kMatrices, kAll } decay_on = DecayOn::kMatrices;
  /// Settings of a single parameter, instead of those above.
  struct Own {
    double lr_factor = 1;                  ///< multiplies the rate of step()
    std::optional<double> weight_decay{};  ///< nullopt: as above
  };
  using OwnSettings = std::map<std::string, Own>;
  /// By the parameter's full name, of the whole model.
  OwnSettings own{};
  /// For kMuon, the full names of the parameters [R, C] that Muon updates, of the whole model;
  /// AdamW updates the others. parallelize() takes the matrices of the blocks if it is empty.
  std::set<std::string> matrices{};
  double momentum = 0.95;  ///< of Muon
  /// Decay of an exponential moving average of the weights; nullopt: none is kept.
  std::optional<double> ema{};

  /// From flags: adamw | adam | sgd | muon, matrices | all. Throws Error(kUsage).
  static Kind kind_from_name(const std::string& name);
  static DecayOn decay_from_name(const std::string& name);
};

/// AdamW, Adam, SGD or Muon on this rank's part of the parameters, as torch.optim defines them.
/// Leaves are the fp32 (or fp64) master weights; moments have the same type and sharding.
///
/// Muon is that of torch.optim.Muon with Nesterov momentum and adjust_lr_fn "match_rms_adamw": the
/// update of a matrix [R, C] is orthogonal and multiplied by 0.2 sqrt(max(R, C)). So it is about as
/// large as AdamW's updates, and both use one learning rate. Source: Liu and others, "Muon is
/// scalable for LLM training", arXiv:2502.16982. Each parameter is one matrix, even if it is a
/// fused query-key-value matrix.
class Optimizer {
 public:
  /// Frozen parameters are ignored. The others may be allocated and sharded later. For Muon, and
  /// with settings of single parameters, they must already have names. `model`: the parameters of
  /// the whole model if `parameters` are only those of one pipeline stage. Throws Error(kUsage) for
  /// Muon without matrices, and for settings of a name that is in neither list.
  Optimizer(const Parameters& parameters, const OptimizerOptions& options,
            const Parameters& model = {});
  virtual ~Optimizer() = default;
  Optimizer(const Optimizer&) = delete;
  Optimizer& operator=(const Optimizer&) = delete;

  /// One update from the leaves' complete gradients, times `gradient_scale` (a clip_factor() here
  /// saves the pass of clip_gradients). Also updates the bf16 copies of whole leaves that forward
  /// reads. Leaves that do not require grad now stay as they are. If a gradient is missing or
  /// partial (over tp, over pipeline stages, over the ranks of a GradientSync), throws
  /// Error(kUsage) naming the missing call, and changes nothing. For Muon collective over the axes
  /// of its matrices.
  virtual void step(double lr, double gradient_scale = 1);
  /// Frees all gradients, also those that a GradientSync has not completed.
  void zero_grad();

  /// What a checkpoint keeps in addition to the weights. Moments are undefined for SGD, the second
  /// one also for Muon's matrices, whose momentum is `exp_avg`. `ema` is the averaged weight: after
  /// the first step the weight itself, after each other ema * decay + weight * (1 - decay), as in
  /// torch.optim.swa_utils.get_ema_multi_avg_fn. Undefined if none is kept.
  struct State {
    std::shared_ptr<Parameter> parameter;
    Tensor exp_avg, exp_avg_sq, ema;
    int64_t num_steps = 0;  ///< that updated the weight; Adam's bias correction depends on it
  };
  /// All states, with moments for all parameters that have memory.
  [[nodiscard]] const std::vector<State>& states() const;
  [[nodiscard]] bool has_moments() const { return options_.kind != OptimizerOptions::Kind::kSgd; }
  /// Whether a parameter, which may be another rank's, has a second moment.
  [[nodiscard]] bool has_second_moment(const Parameter& p) const {
    return has_moments() && !options_.matrices.contains(p.name());
  }
  [[nodiscard]] bool has_ema() const { return options_.ema.has_value(); }
  /// Swaps the weights of this rank's leaves with their averages; a second call restores both. The
  /// weights that forward reads do not change: refresh them after each call.
  void swap_ema();
  /// Bytes that a step allocates for a while: Muon's largest whole matrix and its products.
  [[nodiscard]] int64_t step_bytes() const;
  /// Steps so far. Those of a single weight are fewer if it did not require grad in some of them.
  [[nodiscard]] int64_t num_steps() const { return num_steps_; }
  /// Sets the steps of the optimizer and of all its weights.
  void set_num_steps(int64_t steps);
  /// Sets the steps of one of states().
  void set_num_steps(const Parameter& weight, int64_t steps);

 private:
  /// How a step updates some of the states.
  struct Update {
    double lr = 0, gradient_scale = 1, weight_decay = 0;
  };
  void step_group(const std::vector<size_t>& group, const Update& update);
  /// Adam's step of one state by Cleave's kernel; false if the kernel does not support it.
  bool step_fused(const State& state, const Update& update) const;
  void step_by_libtorch(const std::vector<const State*>& states, const Update& update) const;
  void step_matrices(double lr, double gradient_scale);
  void update_ema();
  OptimizerOptions options_;
  mutable std::vector<State> states_;  // states() makes and shards moments like the leaves
  /// Indices of states_ by lr_factor and weight decay.
  std::map<std::pair<double, double>, std::vector<size_t>> groups_;
  /// One of states_ that Muon updates.
  struct Matrix {
    size_t state = 0;
    double lr_factor = 1, weight_decay = 0;
  };
  std::vector<Matrix> matrices_;
  int64_t num_steps_ = 0;
};

/// Learning rate over a run: a linear rise to the peak, then one of these forms. kWsd is
/// warmup-stable-decay: the peak until the last `decay` steps, which fall in a line. After
/// `num_steps` the rate stays where it ended. Source: Hu and others, arXiv:2404.06395, section 4;
/// the numbers are those of transformers' get_wsd_schedule (decay_type linear) and
/// get_cosine_with_min_lr_schedule_with_warmup, and of Megatron's OptimizerParamScheduler.
struct LrSchedule {
  enum class Kind : uint8_t { kCosine, kLinear, kConstant, kWsd } kind = Kind::kCosine;
  double peak = 3e-4;
  double min = 0;         ///< where all but kConstant end
  int64_t warmup = 0;     ///< steps of linear rise from 0
  int64_t decay = 0;      ///< steps of the fall of kWsd
  int64_t num_steps = 1;  ///< of the whole run

  /// From a flag: cosine | linear | constant | wsd. Throws Error(kUsage).
  static Kind kind_from_name(const std::string& name);
  /// The rate of step 0, 1, ...: the first is peak / warmup, not 0.
  [[nodiscard]] double at(int64_t step) const;
};

}  // namespace cleave::inline optim
