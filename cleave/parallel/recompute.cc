#include "cleave/parallel/recompute.h"

#include "cleave/layout/node.h"

namespace cleave {
namespace {

class Recompute : public Wrap {
 public:
  DTensor call(Layer& /*layer*/, const DTensor& x, const Context& context,
               const Next& next) override {
    // The layout of the result is that of every run; the first one tells it.
    auto result = std::make_shared<DTensor>();
    const auto f = [next, result, axis = x.axis(), placement = x.placement(), context,
                    maker = maker_name(x.maker())](const variable_list& in) {
      const DTensor y = next(DTensor(in[0], axis, placement, maker), context);
      if (!result->local().defined()) *result = y.with(y.local().detach());
      return y.local();
    };
    const Tensor y = recomputed("recompute", {x.local()}, f);
    const DTensor layout = *result;
    // From now on only its layout and shape are asked for.
    const Tensor one = at::empty({}, layout.local().options().device(at::kMeta));
    *result = layout.with(one.expand(layout.local().sizes()));
    return layout.with(y);
  }
};

}  // namespace

void recompute(Layer& layer) {
  layer.attach(std::make_unique<Recompute>());
}

}  // namespace cleave
