#include "cleave/generate/rank_weights.h"

#include <set>

#include "cleave/nn/embedding.h"
#include "cleave/nn/linear.h"

namespace cleave {

void prepare_weights(Layer& model, bool to_int8) {
  std::set<const Parameter*> looked_up;
  model.walk([&](Layer& layer) {
    if (const auto* table = dynamic_cast<Embedding*>(&layer)) {
      looked_up.insert(table->weight().get());
    }
  });
  model.walk([&](Layer& layer) {
    auto* linear = dynamic_cast<Linear*>(&layer);
    if (linear == nullptr) return;
    const bool is_changed = to_int8 ? (linear->to_int8(), true) : linear->to_rows();
    if (is_changed && !looked_up.contains(linear->weight().get())) linear->weight()->drop();
  });
}

}  // namespace cleave
