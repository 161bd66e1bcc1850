#pragma once
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "cleave/layout/dtensor.h"
#include "cleave/nn/context.h"
#include "cleave/nn/parameter.h"

namespace cleave {

class Layer;

/// The rest of a call behind a wrap.
using Next = std::function<DTensor(const DTensor&, const Context&)>;

/// Something put around a Layer's call from outside (FSDP, recompute).
class Wrap {
 public:
  virtual ~Wrap() = default;
  /// Stands in for the call of `layer`; `next` makes the rest of it.
  virtual DTensor call(Layer& layer, const DTensor& x, const Context& context,
                       const Next& next) = 0;
  /// Nothing may be put around it: it provides the weights that all inside it read.
  [[nodiscard]] virtual bool is_outermost() const { return false; }
};

/// A part of a model: it has parameters, children, or changes shapes.
///
/// A parent calls a child only through operator(), and all parallelism comes in there, put on from
/// outside; a model's author writes no collective. Children are members; their paths come from the
/// tree. docs/writing-a-model.md shows one from start to end.
class Layer {
 public:
  Layer() = default;
  /// Backward functions that would call this layer again throw Error(kUsage) from here on.
  virtual ~Layer() { *self_ = nullptr; }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  /// The one door: wraps, change of the input's layout, forward, change of the output's layout.
  /// Throws Error naming this layer's path.
  DTensor operator()(const DTensor& x, const Context& context);

  /// Puts a wrap around the call, outside those already on. Throws Error(kUsage) when one that must
  /// stay outermost is on already.
  void attach(std::unique_ptr<Wrap> wrap);

  /// Full dotted path, "" for the root. Set when the tree is named.
  [[nodiscard]] const std::string& path() const { return *path_; }
  /// Every path by which plans may call it: the path, and with aliases in place of names.
  [[nodiscard]] const std::vector<std::string>& paths() const { return paths_; }

  /// Gives every layer of the tree its paths and every parameter its name, from the root down,
  /// wherever in the tree it is called; again it does nothing.
  void name_tree();

  /// This layer and all below it, parents first, in the order of forward.
  void walk(const std::function<void(Layer&)>& visit);
  /// Every parameter once, tied ones under their first name, in the order of forward.
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters();

  /// Those that this layer holds itself, not below it.
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> own_parameters() const;
  /// The layer at the top of this one's tree.
  [[nodiscard]] Layer& root();
  [[nodiscard]] bool has_wraps() const { return !wraps_.empty(); }
  /// Whether a wrap that must stay outermost is on (FSDP).
  [[nodiscard]] bool is_sealed() const { return !wraps_.empty() && wraps_.back()->is_outermost(); }

  /// What a plan's style asks of a layer (parallel/plan.h): cut outputs, or cut inputs. The default
  /// refuses with Error(kShape).
  virtual void split_columns(const Axis& axis);
  virtual void split_rows(const Axis& axis);
  /// The owner of heads decides their cut before the plan's table is applied.
  virtual void prepare_split(const Axis& axis);
  /// After the table: checks that the parts belong together.
  virtual void check_split(const Axis& axis);
  /// Layouts that a plan asks for at the door: what comes in is changed to `input` before forward,
  /// what forward gives to `output`.
  void set_input_layout(Placement input) { input_layout_ = input; }
  void set_output_layout(Placement output) { output_layout_ = output; }
  /// Layouts that a plan states: anything else at the door is Error(kShape).
  void expect_input_layout(Placement input) { expected_input_ = input; }
  void expect_output_layout(Placement output) { expected_output_ = output; }

 protected:
  virtual DTensor forward(const DTensor& x, const Context& context) = 0;
  /// The layout that the held weights need; nothing: as it comes.
  [[nodiscard]] virtual std::optional<Placement> accepts(const DTensor& x) const;
  [[nodiscard]] const std::optional<Placement>& output_layout() const { return output_layout_; }
  /// Whether a plan says anything of what comes in.
  [[nodiscard]] bool states_input() const { return input_layout_ || expected_input_; }

  /// Registers a child under its name in paths, and under another name that plans may use ("-" =
  /// none; "" = plans may leave the token out).
  void add(const std::string& name, Layer& child, const std::string& alias = "-");
  void add(const std::string& name, std::shared_ptr<Parameter>& parameter);
  /// `y` as made by this layer.
  [[nodiscard]] DTensor mine(const DTensor& y) const { return y.made_by(path_); }

 private:
  /// `x` in another layout; errors name this layer beside the maker.
  [[nodiscard]] DTensor changed(const DTensor& x, const Placement& to) const;
  void check_layout(const char* what, const DTensor& value, const Placement& expected) const;
  DTensor step(const DTensor& x, const Context& context);
  DTensor through_wraps(size_t depth, const DTensor& x, const Context& context);
  void name_below(const std::vector<std::string>& paths);

  struct Child {
    std::string name, alias;
    Layer* layer;
  };
  struct Own {
    std::string name;
    std::shared_ptr<Parameter>* parameter;
  };
  std::vector<Child> children_;
  std::vector<Own> parameters_;
  std::vector<std::unique_ptr<Wrap>> wraps_;
  Layer* parent_ = nullptr;
  // For backward functions that call this layer again: null once it is destroyed.
  std::shared_ptr<Layer*> self_ = std::make_shared<Layer*>(this);
  std::optional<Placement> input_layout_, output_layout_;
  std::optional<Placement> expected_input_, expected_output_;
  const std::string* path_ = maker_name("");
  std::vector<std::string> paths_;
};

/// Names above other layers that are never called themselves: "model" in "model.layers.0".
/// A plan cannot lay out its input or output.
class LayerGroup : public Layer {
 public:
  using Layer::add;

 protected:
  DTensor forward(const DTensor& x, const Context& context) final;
};

struct MaterializeOptions {
  uint64_t seed = 0;
  at::ScalarType dtype = at::kFloat;
};

/// Gives every parameter that has none memory for this rank's part, filled with its starting value.
void materialize(Layer& model, const MaterializeOptions& options = {});

}  // namespace cleave
