#pragma once
#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include <c10/core/Device.h>

#include "cleave/layout/dtensor.h"
#include "cleave/nn/context.h"
#include "cleave/nn/parameter.h"

namespace cleave::inline nn {

class Layer;

/// The rest of a call inside a wrap: inner wraps, then the layer.
using Next = std::function<DTensor(const DTensor&, const Context&)>;

/// Hook around a Layer's call (FSDP, recompute).
class Wrap {
 public:
  virtual ~Wrap() = default;
  /// Replaces the call of `layer`; `next` runs the rest of it.
  virtual DTensor call(Layer& layer, const DTensor& x, const Context& context,
                       const Next& next) = 0;
  /// Whether no other wrap may be attached outside it, because it provides the weights (FSDP).
  [[nodiscard]] virtual bool is_outermost() const { return false; }
};

/// The style of a layer in the plan that Model::plan() derives from the layers.
enum class DefaultStyle : uint8_t { kNone, kColwise, kRowwise };

/// A module of a model (torch.nn.Module): parameters, child layers and a forward function.
///
/// A parent calls its children only through operator(), the module boundary. Parallelism is applied
/// there from outside, so a model's author writes no collectives. Children are members, registered
/// by add(); their paths follow from the tree. docs/writing-a-model.md has a complete example.
class Layer {
 public:
  Layer() = default;
  /// A backward function that needs this layer after that (recompute) throws Error(kUsage).
  virtual ~Layer() { *self_ = nullptr; }
  Layer(const Layer&) = delete;
  Layer& operator=(const Layer&) = delete;

  /// The module boundary: runs the wraps, converts the input's layout, runs forward, converts the
  /// output's layout. Throws Error naming this layer's path.
  DTensor operator()(const DTensor& x, const Context& context);

  /// Throws Error(kUsage) if another rank thread of this process has called this: ranks that train
  /// one model would add their gradients to the same memory. Calls with grad mode, materialize(),
  /// parallelize_module() and loads call it.
  void check_own_rank();

  /// Adds a wrap outside the existing ones. Throws Error(kUsage) when an existing one must stay
  /// outermost.
  void attach(std::unique_ptr<Wrap> wrap);

  /// Full dotted path, "" for the root. Set by name_tree().
  [[nodiscard]] const std::string& path() const { return *path_; }
  /// All paths that plans may use for it: the path, and its variants with aliases.
  [[nodiscard]] const std::vector<std::string>& paths() const { return paths_; }

  /// Sets the paths of all layers and the names of all parameters of the whole tree, from the root
  /// down, whichever layer it is called on. A later call names what was added since.
  void name_tree();

  /// Visits this layer and all below it, parents first, in the order of add().
  void walk(const std::function<void(Layer&)>& visit);
  /// All parameters, each once, tied ones under their first name, in the order of add().
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> parameters();

  /// The parameters of this layer itself, without its children's.
  [[nodiscard]] std::vector<std::shared_ptr<Parameter>> own_parameters() const;
  /// The layers directly below this one, in the order of add().
  [[nodiscard]] std::vector<Layer*> children() const;
  /// Whether it only groups layers and is never called itself (LayerGroup).
  [[nodiscard]] virtual bool is_group() const { return false; }
  /// The style that a derived plan gives this layer.
  [[nodiscard]] virtual DefaultStyle default_style() const { return DefaultStyle::kNone; }
  /// Floating point operations of forward per token at a sequence length, without those of the
  /// children. Default: 2 for each element of its own parameters.
  [[nodiscard]] virtual double forward_flops_per_token(int64_t seq_len) const;
  /// The root of this layer's tree.
  [[nodiscard]] Layer& root();
  [[nodiscard]] bool has_wraps() const { return !wraps_.empty(); }
  /// Whether a wrap that must stay outermost (FSDP) is attached.
  [[nodiscard]] bool is_sealed() const { return !wraps_.empty() && wraps_.back()->is_outermost(); }

  /// Where a model's sequence calls this layer, its input is the value of this name in
  /// Context::values instead of the output of the layer before it.
  void set_input_name(const std::string& name) { input_name_ = name; }
  /// Where a model's sequence calls this layer, the layers after it also find its output under this
  /// name in Context::values, on later pipeline stages too. Its gradient is the sum of theirs.
  void set_output_name(const std::string& name) { output_name_ = name; }
  [[nodiscard]] const std::string& input_name() const { return input_name_; }    ///< "": none
  [[nodiscard]] const std::string& output_name() const { return output_name_; }  ///< "": none

  /// Apply the styles Colwise (shard outputs) and Rowwise (shard inputs) of parallel/plan.h. The
  /// defaults throw Error(kShape).
  virtual void split_columns(const Axis& axis);
  virtual void split_rows(const Axis& axis);
  /// Called before the plan is applied: attention layers decide how heads are sharded.
  virtual void prepare_split(const Axis& axis);
  /// Called after the plan was applied: checks that the children are sharded consistently.
  virtual void check_split(const Axis& axis);
  /// Layouts that a plan sets at the module boundary: inputs are converted to `input` before
  /// forward, the result of forward to `output`.
  void set_input_layout(Placement input) { input_layout_ = input; }
  void set_output_layout(Placement output) { output_layout_ = output; }
  /// Layouts that a plan asserts: any other layout at the module boundary is Error(kShape).
  void expect_input_layout(Placement input) { expected_input_ = input; }
  void expect_output_layout(Placement output) { expected_output_ = output; }

 protected:
  virtual DTensor forward(const DTensor& x, const Context& context) = 0;
  /// The input layout that this rank's weights need; empty: any.
  [[nodiscard]] virtual std::optional<Placement> accepts(const DTensor& x) const;
  [[nodiscard]] const std::optional<Placement>& output_layout() const { return output_layout_; }
  /// Whether a plan sets or asserts the input layout.
  [[nodiscard]] bool states_input() const { return input_layout_ || expected_input_; }

  /// Registers a child under its name in paths, and an alias that plans may use instead ("-" =
  /// none; "" = plans may omit the name). The child must not move.
  void add(const std::string& name, Layer& child, const std::string& alias = "-");
  /// Registers a parameter. Keeps the address of the pointer, since models tie weights by changing
  /// it: the member must not move (no std::vector that grows later).
  void add(const std::string& name, std::shared_ptr<Parameter>& parameter);
  /// `y` with this layer as its maker, for messages.
  [[nodiscard]] DTensor mine(const DTensor& y) const { return y.made_by(path_); }

 private:
  /// `x` in another layout; errors name this layer and the maker.
  [[nodiscard]] DTensor converted(const DTensor& x, const Placement& to) const;
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
  std::atomic<const void*> rank_ = nullptr;  // see check_own_rank
  std::weak_ptr<const char> rank_is_alive_;
  // For backward functions that call this layer again; points to null once it is destroyed.
  std::shared_ptr<Layer*> self_ = std::make_shared<Layer*>(this);
  std::optional<Placement> input_layout_, output_layout_;
  std::optional<Placement> expected_input_, expected_output_;
  std::string input_name_, output_name_;
  const std::string* path_ = maker_name("");
  std::vector<std::string> paths_;
};

/// Calls layers one after another, each with the output of the one before it or with the value that
/// it names (Layer::set_input_name), and adds named outputs to `context`. Returns the last output.
DTensor call_in_order(std::span<Layer* const> layers, const DTensor& x, Context& context);

/// A node of the path that is never called itself, e.g. "model" in "model.layers.0". A plan cannot
/// set its input or output layout.
class LayerGroup : public Layer {
 public:
  using Layer::add;
  [[nodiscard]] bool is_group() const override { return true; }

 protected:
  DTensor forward(const DTensor& x, const Context& context) final;
};

struct MaterializeOptions {
  uint64_t seed = 0;
  at::ScalarType dtype = at::kFloat;
};

/// Allocates this rank's part of every parameter without memory, and fills it with initial values.
void materialize(Layer& model, const MaterializeOptions& options = {});

/// Moves the memory of the model's parameters to another device; parameters without memory stay
/// without. Call it before an optimizer holds the leaves, since leaves are replaced.
void move_to(Layer& model, at::Device device);

}  // namespace cleave::inline nn
