#pragma once
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cleave/nn/layer.h"
#include "cleave/text/json.h"

namespace cleave::inline parallel {

/// Linear: shards the output columns. Embedding: shards the hidden dimension.
struct Colwise {
  std::optional<Placement> input{};   ///< expected; checked at each call
  std::optional<Placement> output{};  ///< default: Shard(-1)
};
/// Linear: shards the input columns. Embedding: shards the vocabulary.
struct Rowwise {
  std::optional<Placement> input{};   ///< expected; checked at each call
  std::optional<Placement> output{};  ///< default: Replicate
};
/// Norms, dropout, any element-wise layer: works on a shard of the sequence. Its parameters stay
/// whole; their gradients are summed over the axis after backward.
struct SequenceParallel {
  int dim = 1;  ///< of [B, T, D]; the axis need not divide its length
};
/// Checks that the module's input has the placement `input` and changes it to `desired`.
struct PrepareModuleInput {
  std::optional<Placement> input{};
  std::optional<Placement> desired{};
};
/// Checks that the module's output has the placement `output` and changes it to `desired`.
struct PrepareModuleOutput {
  std::optional<Placement> output{};
  std::optional<Placement> desired{};
};
/// Both PrepareModuleInput and PrepareModuleOutput.
struct PrepareModuleInputOutput {
  PrepareModuleInput input{};
  PrepareModuleOutput output{};
};

/// What a plan does to one module. PyTorch's use_local_output has no counterpart: values between
/// modules keep their placement, and local() is the plain tensor.
struct Style {
  enum class Kind : uint8_t { kColwise, kRowwise, kSequence, kPrepare } kind = Kind::kPrepare;
  std::optional<Placement> input{}, desired_input{};    ///< expected; changed to
  std::optional<Placement> output{}, desired_output{};  ///< the same for the output

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
/// "replicate", "shard(DIM)". The desired ones need "prepare"; with the other styles "output" is
/// the placement that the module's result is changed to. Throws Error(kFormat) naming key and byte.
Plan plan_from_json(const Json& json);
/// The same from a file. Throws Error(kIo) if it cannot be read.
Plan read_plan(const std::string& path);

/// Applies tensor parallelism to a model: shards parameters, sets placements at module boundaries.
/// A model without memory is never allocated whole on a rank. A model with memory keeps this rank's
/// shards, and an optimizer made before continues with them. Keys are paths below `model`, which
/// may be a part of a larger tree (one block). Applying the same plan again changes nothing.
///
/// Throws Error(kShape) for a key that matches no module (naming the nearest), a module that two
/// keys match, a style that does not apply, as none does to a LayerGroup, or styles that do not fit
/// together (of a block's projections).
void parallelize_module(Layer& model, const Axis& axis, const Plan& plan);

/// The layout of a model, a line per parameter: name, whole shape, placement, and this rank's
/// shape. Needs no memory: with dry_axis() (mesh/dry_axis.h) it shows a layout before a run.
std::string describe_split(Layer& model);

/// Whether a dotted pattern matches one of the paths, token by token: * stands for any characters
/// within a token, {a,b} for one of its alternatives.
bool matches_any(std::string_view pattern, const std::vector<std::string>& paths);
bool matches(std::string_view pattern, std::string_view path);

}  // namespace cleave::inline parallel
