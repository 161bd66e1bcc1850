#pragma once
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "cleave/layout/dtensor.h"

namespace cleave::inline nn {

/// Values that layers read by name beside their input: further inputs of the model, e.g. a
/// decoder's ids, and outputs that layers have named (Layer::set_output_name), e.g. an encoder's
/// states. Values may need a gradient. Copies share the values, so all layers that read a value in
/// another placement share one conversion of it, forward and backward.
class NamedValues {
 public:
  /// These values and one more, which replaces one of the same name.
  [[nodiscard]] NamedValues with(const std::string& name, DTensor value) const;

  [[nodiscard]] bool empty() const { return values_ == nullptr; }
  /// Whether one has this name.
  [[nodiscard]] bool has(const std::string& name) const;
  /// Throws Error(kUsage), with the names that there are, if none has this name.
  [[nodiscard]] const DTensor& at(const std::string& name) const;

  /// The local tensors in the order of the names.
  [[nodiscard]] std::vector<Tensor> locals() const;
  /// Values with the same names and placements, and these local tensors in the order of the names.
  [[nodiscard]] NamedValues with_locals(const std::vector<Tensor>& locals) const;

 private:
  using Map = std::map<std::string, DTensor>;
  std::shared_ptr<const Map> values_;  // null: none
};

}  // namespace cleave::inline nn
