#include "cleave/generate/rank_weights.h"

#include <set>

#include "cleave/mesh/scalar_type.h"
#include "cleave/nn/embedding.h"
#include "cleave/nn/linear.h"

namespace cleave {

at::ScalarType weight_type(const std::string& dtype) {
  if (dtype == "int8") return at::kFloat;
  const auto type = dtype_from_name(dtype);
  CLEAVE_CHECK(type == DType::kF32 || type == DType::kBf16 || type == DType::kF64, Code::kUsage,
               "--dtype ", dtype, " does not run here; choose fp32, bf16, int8 or fp64");
  return scalar_type(*type);
}

void prepare_weights(Layer& model, const std::string& dtype) {
  if (dtype != "int8") return;
  std::set<const Parameter*> looked_up;
  model.walk([&](Layer& layer) {
    if (const auto* table = dynamic_cast<Embedding*>(&layer))
      looked_up.insert(table->weight().get());
  });
  model.walk([&](Layer& layer) {
    auto* linear = dynamic_cast<Linear*>(&layer);
    if (linear == nullptr) return;
    linear->to_int8();
    if (!looked_up.contains(linear->weight().get())) linear->weight()->drop();
  });
}

}  // namespace cleave
