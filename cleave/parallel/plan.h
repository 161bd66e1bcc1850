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
  std::optional<Placement> input{};   ///< checked at the door
  std::optional<Placement> output{};  ///< default: Shard(-1), as it comes
};
/// Linear: input columns are cut; Embedding: the vocabulary is.
struct Rowwise {
  std::optional<Placement> input{};   ///< checked at the door
  std::optional<Placement> output{};  ///< default: Replicate
};
/// Norms, dropout, any element-wise layer: works on a slice of the sequence. Its parameters stay
/// whole, their gradients are summed over the axis after backward.
struct SequenceParallel {
  int dim = 1;  ///< of [B, T, D]; lengths that the axis does not divide are legal
};
/// What comes in is stated (and checked) as `input` and changed to `desired`.
struct PrepareModuleInput {
  std::optional<Placement> input{};
  std::optional<Placement> desired{};
};
/// What forward gives is stated (and checked) as `output` and changed to `desired`.
struct PrepareModuleOutput {
  std::optional<Placement> output{};
  std::optional<Placement> desired{};
};
/// Both.
struct PrepareModuleInputOutput {
  PrepareModuleInput input{};
  PrepareModuleOutput output{};
};

/// What a plan does to one module. PyTorch's use_local_output has no counterpart: the value between
/// modules keeps its layout, and local() is the plain tensor.
struct Style {
  enum class Kind : uint8_t { kColwise, kRowwise, kSequence, kPrepare } kind = Kind::kPrepare;
  std::optional<Placement> input{}, desired_input{};    ///< as stated; what it is changed to
  std::optional<Placement> output{}, desired_output{};  ///< likewise

  Style(Colwise s);                   // NOLINT(google-explicit-constructor)
  Style(Rowwise s);                   // NOLINT(google-explicit-constructor)
  Style(SequenceParallel s);          // NOLINT(google-explicit-constructor)
  Style(PrepareModuleInput s);        // NOLINT(google-explicit-constructor)
  Style(PrepareModuleOutput s);       // NOLINT(google-explicit-constructor)
  Style(PrepareModuleInputOutput s);  // NOLINT(google-explicit-constructor)
};

/// A table from module paths to styles. A token of a path may hold * (any characters) and {a,b}.
using Plan = std::vector<std::pair<std::string, Style>>;

/// From JSON, an object of pattern to {"style": S, "input": L, "output": L, "desired_input": L,
/// "desired_output": L} with S one of "colwise", "rowwise", "sequence" and "prepare", and L one of
/// "replicate", "shard(DIM)". The desired layouts belong to "prepare"; of the others "output" is
/// what the module gives. Throws Error(kFormat) naming key and byte.
Plan plan_from_json(const Json& json);

/// Puts tensor parallelism on a model: cuts parameters, sets layouts at doors. A model without
/// memory never has the whole of it on a rank; one that has its memory keeps this rank's part, and
/// an optimizer made before goes on with it. Keys are paths below `model`, which may be a part of a
/// larger tree (one block). The same plan again changes nothing.
///
/// Throws Error(kShape) for a key that matches no module (naming the nearest), a module that two
/// keys match, a style that does not apply, or parts that do not belong together.
void parallelize_module(Layer& model, const Axis& axis, const Plan& plan);

/// What a plan made of a model, a line per parameter: name, whole shape, layout, and this rank's
/// shape. Needs no memory: with dry_axis() (mesh/dry_axis.h) it shows a layout before a run.
std::string describe_split(Layer& model);

}  // namespace cleave
