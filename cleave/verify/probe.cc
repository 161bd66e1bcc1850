#include "cleave/verify/probe.h"

#include <ATen/ATen.h>

#include "cleave/torch_internals/node.h"
#include "cleave/verify/numbers.h"

namespace cleave::verifying {

struct Probes::State {
  enum class Mode : uint8_t { kOff, kRecord, kPerturb } mode = Mode::kOff;
  std::vector<LayerCall> calls{};
  int depth = 0;
  double size = 0;
  uint64_t seed = 0;
  int64_t draws = 0;

  /// y with injected rounding of its value and its gradient.
  Tensor perturbed(const Tensor& y) {
    const std::string name = str("rounding ", draws++);
    const double relative = size;
    const uint64_t key = seed;
    return differentiable(
        "rounding", y, [&](const Tensor& t) { return rounded(t, relative, key, name); },
        [relative, key, name](const Tensor& g) {
          return rounded(g, relative, key, name + " back");
        });
  }
};

class Probes::Probe : public Wrap {
 public:
  explicit Probe(std::shared_ptr<State> state) : state_(std::move(state)) {}

  DTensor call(Layer& layer, const DTensor& x, const Context& context, const Next& next) override {
    using Mode = State::Mode;
    if (state_->mode == Mode::kOff) return next(x, context);
    const int depth = state_->depth++;
    const DTensor y = next(x, context);
    state_->depth = depth;
    if (state_->mode == Mode::kPerturb) {
      return y.local().is_floating_point() ? y.with(state_->perturbed(y.local())) : y;
    }
    state_->calls.push_back({.layer = &layer,
                             .x = x.with(x.local().detach()),
                             .y = y.with(y.local().detach()),
                             .context = context,
                             .depth = depth});
    return y;
  }

 private:
  std::shared_ptr<State> state_;
};

Probes::Probes(Layer& model) : state_(std::make_shared<State>()) {
  model.walk([&](Layer& layer) { layer.attach(std::make_unique<Probe>(state_)); });
}

std::vector<LayerCall> Probes::record(const std::function<void()>& forward) {
  state_->mode = State::Mode::kRecord;
  state_->depth = 0;
  forward();
  state_->mode = State::Mode::kOff;
  std::vector<LayerCall> calls = std::exchange(state_->calls, {});
  for (size_t i = 1; i < calls.size(); ++i) {
    // Calls are in the order in which they end, so a call inside this one would be just before it.
    calls[i].is_leaf = calls[i - 1].depth <= calls[i].depth;
  }
  return calls;
}

void Probes::perturb(double size, uint64_t seed, const std::function<void()>& work) {
  state_->mode = State::Mode::kPerturb;
  state_->size = size;
  state_->seed = seed;
  state_->draws = 0;
  work();
  state_->mode = State::Mode::kOff;
}

}  // namespace cleave::verifying
