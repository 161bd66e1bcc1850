#include "cleave/generate/rank_weights.h"

#include <set>

#include <ATen/ATen.h>

#include "cleave/nn/attention.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/linear.h"

namespace cleave {

void prepare_weights(Layer& model, bool to_int8) {
  std::set<const Parameter*> embedding_weights;
  model.walk([&](Layer& layer) {
    if (const auto* table = dynamic_cast<Embedding*>(&layer)) {
      embedding_weights.insert(table->weight().get());
    }
  });
  model.walk([&](Layer& layer) {
    auto* linear = dynamic_cast<Linear*>(&layer);
    if (linear == nullptr) return;
    const bool is_shared = embedding_weights.contains(linear->weight().get());
    // An embedding reads the original matrix, so panels would double its memory.
    const bool is_changed =
        to_int8 ? linear->to_int8() : (!is_shared && linear->to_panels()) || linear->to_rows();
    if (is_changed && !is_shared) linear->weight()->drop();
  });
  if (!to_int8) return;
  model.walk([](Layer& layer) {
    if (auto* attention = dynamic_cast<HasHeads*>(&layer)) attention->heads().cast_kv_bf16();
  });
  for (const auto& p : model.parameters()) {
    if (p->is_readable()) p->set_leaf(p->leaf().detach().to(at::kFloat));
  }
}

}  // namespace cleave
