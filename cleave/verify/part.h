#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cleave/verify/meter.h"
#include "cleave/verify/quantity.h"
#include "cleave/verify/verify.h"

namespace cleave::verifying {

/// A call of a layer, or the loss, to be run by itself.
struct Part {
  std::string name;
  VerifiedPart::Kind kind = VerifiedPart::Kind::kLayer;
  DTensor x;  ///< the input, with its placement
  std::function<DTensor(const DTensor&)> run;
  Parameters parameters{};  ///< of the layer and all inside it
  Axis tp{};
  Axis ep{};            ///< ranks that share out experts; they run the part on the same input
  bool is_leaf = true;  ///< it calls no other layer
};

/// Bytes that the collectives of a part moved.
struct PartBytes {
  Moved forward{}, backward{};
};

/// Runs a part forward and backward on the input `whole_x`. The upstream gradient is a function of
/// shape, seed and the part's name, so it is the same on one rank and on several. Returns output,
/// gradient of the input if it has one, gradients of the parameters and their norm.
std::vector<Quantity> run_part(const Part& part, const Tensor& whole_x,
                               const VerifySettings& settings, const Meter* meter = nullptr,
                               PartBytes* bytes = nullptr);

/// The loss, by settings.loss if set.
DTensor loss_of(const VerifySettings& settings, const DTensor& logits, const Tensor& labels,
                int64_t valid_tokens);
/// Removes the gradients of the parameters that have memory.
void clear_gradients(const Parameters& parameters);
/// The number of elements of all whole parameters.
int64_t num_elements(const Parameters& parameters);
/// The gradient norm, by settings.norm if set. `ep`: ranks that have different experts.
double norm_of(const VerifySettings& settings, const Parameters& parameters, const Axis& tp,
               const Axis& ep);
/// Whether the parameters are those of an expert, or of a layer in it.
bool are_of_expert(const Parameters& parameters);

/// Notes on the costs of a plan: layer boundaries that gather or shard all features of the input,
/// with the bytes moved; and matrices that are not sharded.
std::vector<std::string> notes_on(const std::vector<Part>& parts,
                                  const std::vector<PartBytes>& bytes, Model& model);

}  // namespace cleave::verifying
