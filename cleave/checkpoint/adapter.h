#pragma once
#include <filesystem>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>

#include "cleave/checkpoint/adapter_config.h"
#include "cleave/format/tensor_source.h"
#include "cleave/model/model.h"
#include "cleave/parallel/lora.h"

namespace cleave::inline nn {
class Linear;
}

namespace cleave::inline checkpoint {

/// Stem of the tensor files of an adapter's folder, in PEFT's form.
inline constexpr std::string_view kAdapterStem = "adapter_model";

/// The name of a parameter of an adapter in PEFT's files:
/// "base_model.model.model.layers.0.mlp.up_proj.lora_A.weight".
std::string adapter_name(const std::string& parameter);

/// Reads a block of a stored tensor, as TensorSource::read_block does.
using BlockReader = std::function<void(std::span<const Slice> slices, std::span<std::byte> out)>;

/// The products scale B A of an adapter's files, to be added to the weights of a model, and the
/// weights that take the place of the model's (modules_to_save and bias of PEFT).
class AdapterDelta {
 public:
  /// Each tensor of the folder must belong to a Linear layer of `model` and fit its weight. If the
  /// adapter has modules_to_save or biases, it may also be a parameter of the model. For a head
  /// with an adapter, PEFT adds a copy of the base model's weight. Any other tensor is
  /// Error(kFormat), but with `left_out` it is added there: the model may have another head than
  /// the adapter's. `is_averaged`: reads the averages of a checkpoint (train --ema); throws as
  /// EmaTensors does.
  AdapterDelta(const std::filesystem::path& folder, Model& model,
               std::set<std::string>* left_out = nullptr, bool is_averaged = false);

  /// Throws Error(kFormat) naming the tensor if the files have a copy of the base model's weight
  /// `stored.name` with other values: the adapter is of another model. `read_base` as in merge().
  void require_same_base(const TensorInfo& stored, const BlockReader& read_base) const;

  /// The name, in the adapter's files, of the tensor that replaces a parameter; "" if there is
  /// none.
  [[nodiscard]] std::string whole(const std::string& parameter) const;
  [[nodiscard]] const TensorSource& files() const { return *files_; }

  /// Whether merge() changes a weight.
  [[nodiscard]] bool changes(const std::string& weight) const { return targets_.contains(weight); }

  /// Merges the block `slices` of the weight `stored.name`, whose values are in `out`: adds its
  /// part of the product, and with magnitudes (DoRA) multiplies the rows of the sum with magnitude
  /// / norm. In fp32 (fp64 if the values are), rounded once. Other tensors do not change.
  /// `read_base`: reads the weight without the adapter, for the norms of whole rows. Any number of
  /// threads may call it.
  void merge(const TensorInfo& stored, std::span<const Slice> slices, std::span<std::byte> out,
             const BlockReader& read_base) const;

 private:
  struct Target {
    std::string a, b;            // names in the files
    std::string magnitudes;      // "" without
    std::string base{};          // the copy of the base model's weight; "" without
    bool is_transposed = false;  // the weight is stored [in, out]
    double scale = 1;
  };
  /// Block `slices` of the product, in the weight's orientation.
  struct Factors {
    Tensor left, right;
  };
  [[nodiscard]] Factors factors_of(const Target& target, std::span<const Slice> slices,
                                   at::ScalarType type) const;
  /// Magnitude / norm of each row of the whole sum: [out] of `type`.
  [[nodiscard]] Tensor row_factors(const TensorInfo& stored, const Target& target,
                                   at::ScalarType type, const BlockReader& read_base) const;
  /// Adds a layer's tensors, if the files have any, and takes them out of `unexpected`. Returns
  /// those that the files lack.
  std::set<std::string> add_target(const Linear& linear, const LoraOptions& lora,
                                   std::set<std::string>& unexpected);
  /// Adds the parameters whose values the files have.
  void add_wholes(Model& model, const AdapterSettings& settings, std::set<std::string>& unexpected);
  void require_shape(const std::string& name, const std::vector<int64_t>& expected) const;

  std::unique_ptr<TensorSource> files_;
  std::map<std::string, std::string, std::less<>> wholes_;  // names in the files, by parameter
  std::map<std::string, Target, std::less<>> targets_;      // by the weight's name
  mutable std::mutex mutex_;
  mutable std::map<std::string, Tensor> row_factors_;  // by the weight's name; guarded by mutex_
};

}  // namespace cleave::inline checkpoint
