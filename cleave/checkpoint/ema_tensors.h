#pragma once
#include <memory>
#include <string>
#include <vector>

#include "cleave/format/safetensors.h"

namespace cleave::inline checkpoint {

/// The tensors of a checkpoint with the averaged weights of its optimizer's files (train --ema), in
/// fp32, in place of the weights.
class EmaTensors : public ListedTensors<TensorInfo> {
 public:
  /// `weights` are the checkpoint's own, whose names have `prefix` before the parameter's. Throws
  /// Error(kFormat) if the optimizer's files have no averages, Error(kIo) if there are no such
  /// files.
  EmaTensors(std::unique_ptr<TensorSource> weights, const std::string& checkpoint,
             std::string_view prefix = "");

  void read_block(std::string_view name, std::span<const Slice> slices,
                  std::span<std::byte> out) const override;
  [[nodiscard]] std::string path() const override { return optimizer_.path(); }
  [[nodiscard]] std::vector<std::string> file_names() const override;

 private:
  /// The average of a weight; null if it has none.
  [[nodiscard]] const StoredTensor* average_of(std::string_view name) const;

  std::unique_ptr<TensorSource> weights_;
  Safetensors optimizer_;
  std::string prefix_;
};

}  // namespace cleave::inline checkpoint
