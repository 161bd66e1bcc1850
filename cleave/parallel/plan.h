#pragma once
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "cleave/nn/layer.h"
#include "cleave/text/json.h"

namespace cleave {

/// Linear: output columns are cut; Embedding: the hidden dimension is.
struct Colwise {
  std::optional<Placement> input{};   ///< checked against what the layer needs
  std::optional<Placement> output{};  ///< default: Shard(-1), as it comes
};
/// Linear: input columns are cut; Embedding: the vocabulary is.
struct Rowwise {
  std::optional<Placement> input{};
  std::optional<Placement> output{};  ///< default: Replicate
};

/// What a plan does to one module.
class Style {
 public:
  enum class Kind : uint8_t { kColwise, kRowwise };
  Style(Colwise s)
      : kind_(Kind::kColwise),
        input_(s.input),
        output_(s.output) {}  // NOLINT(google-explicit-constructor)
  Style(Rowwise s)
      : kind_(Kind::kRowwise),
        input_(s.input),
        output_(s.output) {}  // NOLINT(google-explicit-constructor)

  [[nodiscard]] Kind kind() const { return kind_; }
  [[nodiscard]] const std::optional<Placement>& input() const { return input_; }
  [[nodiscard]] const std::optional<Placement>& output() const { return output_; }

 private:
  Kind kind_;
  std::optional<Placement> input_, output_;
};

/// A table from module paths to styles. A token of a path may hold * (any characters) and {a,b}.
using Plan = std::vector<std::pair<std::string, Style>>;

/// From JSON, an object of pattern to {"style": "colwise" | "rowwise", "input": L, "output": L}
/// with L one of "replicate", "shard(DIM)". Throws Error(kFormat) naming key and byte.
Plan plan_from_json(const Json& json);

/// Puts tensor parallelism on a model that has no memory yet: cuts parameters, sets layouts at
/// doors.
///
/// Throws Error(kShape) for a key that matches no module (naming the nearest), a module that two
/// keys match, a style that does not apply, or parts that do not belong together.
void parallelize_module(Layer& model, const Axis& axis, const Plan& plan);

}  // namespace cleave
