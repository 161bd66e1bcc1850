#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/model/model.h"
#include "cleave/parallel/gradients.h"

namespace cleave::inline verify {

/// Makes a model without allocating weights: make_model for a config.json, or a program's
/// constructor. Called for the reference on one rank and on every rank of the sharded model.
using MakeModel = std::function<std::unique_ptr<Model>()>;

/// The loss of logits: the sum over labels divided by `valid_tokens`, one number, Replicate.
using LossFunction =
    std::function<DTensor(const DTensor& logits, const Tensor& labels, int64_t valid_tokens)>;

/// The norm of all gradients over the tensor-parallel axis.
using NormFunction = std::function<double(const Parameters& parameters, const Axis& tp)>;

/// Layout, dtype and size of a verification.
struct VerifySettings {
  int tp = 2;
  int dp = 1;
  int ep = 1;                  ///< data-parallel ranks that share out the experts; divides dp
  std::optional<Plan> plan{};  ///< default: the model's
  bool sequence_parallel = false;
  at::ScalarType dtype = at::kDouble;    ///< of the sharded model; one rank is always fp64
  uint64_t seed = 0;                     ///< of weights, ids and upstream gradients
  std::string layer{};                   ///< pattern of paths of the layers to run; "" = all
  std::optional<ModelFolder> weights{};  ///< default: random
  int64_t num_rows = 2;                  ///< sequences per data-parallel rank
  int64_t num_tokens = 16;               ///< per sequence; at most the model's positions
  /// Generated if the model's task is "lm"; 0 = none, then decoding is not compared either.
  int64_t num_new_tokens = 8;
  LossFunction loss{};             ///< default: label_loss
  NormFunction norm{};             ///< default: gradient_norm
  int threads_per_rank = 0;        ///< 0 = cores / ranks
  double timeout_s = 60;           ///< longest wait of a rank for another
  std::string transport = "auto";  ///< RankOptions::transport
  bool fast_sums = false;          ///< RankOptions::fast_sums
  std::string device = "cpu";      ///< of the sharded model: cpu | cuda; one rank is on the CPU
  /// Settings that must be the same on all ranks (mesh/consistency.h), where each rank is a process
  /// with options of its own. Empty: they are not compared.
  std::vector<std::pair<std::string, std::string>> fingerprint{};
};

/// The comparison of one value, at the element with the largest ratio of distance to bound.
struct Comparison {
  /// The kind of the value.
  enum class Of : uint8_t {
    kOutput,
    kInputGradient,
    kGradient,  ///< of the parameter `subject`
    kNorm,
    kLoss,
    kStart,    ///< initial value of the parameter `subject`
    kStepped,  ///< the parameter `subject` after one step
    kIds,      ///< generated after prompt `subject`
    kDecoded,  ///< logits of the last token, after a prefill of those before it
  } of = Of::kOutput;
  std::string subject{};
  double distance = 0;
  double bound = 0;             ///< largest distance that rounding explains
  double split = 0, whole = 0;  ///< the element of the sharded model, and on one rank
  std::vector<int64_t> at{};    ///< index in the whole tensor
  [[nodiscard]] bool agrees() const { return distance <= bound; }
  /// "output", "gradient of NAME", ...
  [[nodiscard]] std::string quantity() const;
};

/// All values of one layer call, or of a step of the whole model.
struct VerifiedPart {
  enum class Kind : uint8_t { kWeights, kLayer, kLoss, kStep, kDecode, kIds } kind = Kind::kLayer;
  std::string name;  ///< path of the layer ("the model" is the root), or "the loss", ...
  /// Size of the whole tensors that collectives over tp moved in forward and backward, inner layers
  /// included. Less than the sum over inner layers if these share a conversion (q, k and v).
  int64_t bytes = 0;
  std::vector<Comparison> values{};
  [[nodiscard]] const Comparison* first_difference() const;
};

/// The result of a verification.
struct VerifyReport {
  VerifySettings settings;
  std::vector<VerifiedPart> parts{};  ///< in the order of first_difference()
  std::vector<std::string> notes{};   ///< avoidable costs of the plan
  /// The first part that differs; null if all agree. Each layer runs by itself on its input on one
  /// rank, children before parents, so the first one that differs is the faulty one.
  [[nodiscard]] const VerifiedPart* first_difference() const;
};

/// Compares a sharded model with the same model on one rank in fp64: every layer by itself (output,
/// gradients of input and parameters, norm), then a whole training step (loss, output, gradients,
/// norm, weights after AdamW), another step with dropout if the model has dropout, decoding with
/// the KV cache (with the whole sequence on one rank, without a cache), and generated ids.
///
/// Ranks are threads, or the processes of a launcher; all return the same report. Weights are
/// random, or those of `settings.weights`. Noise is added to constant parameters (zero biases,
/// norms of ones), since a constant hides faults. docs/verify.md derives the bounds.
///
/// Throws Error as parallelize_module and the layers do (for a missing plan entry with the names of
/// the modules), Error(kUsage) for a `layer` that matches none, Error(kNumerics) if the model on
/// one rank gives values that are not finite.
VerifyReport verify_model(const MakeModel& make, const VerifySettings& settings);

/// A table of layers (largest distances; "!" marks one beyond its bound), a table of the whole
/// step, notes, and the verdict.
std::string report_text(const VerifyReport& report);

/// The last line of the text: that all values agree, or the first part that differs and by how
/// much.
std::string verdict(const VerifyReport& report);

/// All values as a JSON object: {"model", "tp", "dp", ..., "agrees", "first_difference", "parts",
/// "notes"}. A distance that is not finite is null.
std::string report_json(const VerifyReport& report, const std::string& model);

}  // namespace cleave::inline verify
