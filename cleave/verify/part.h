#pragma once
#include <functional>
#include <string>
#include <vector>

#include "cleave/verify/meter.h"
#include "cleave/verify/quantity.h"
#include "cleave/verify/verify.h"

namespace cleave::verifying {

/// A Layer's call, or the loss, to be run by itself.
struct Part {
  std::string name;
  VerifiedPart::Kind kind = VerifiedPart::Kind::kLayer;
  DTensor x;  ///< how the input comes to it
  std::function<DTensor(const DTensor&)> run;
  Parameters parameters{};  ///< of the Layer and all below it
  Axis tp{};
  bool is_leaf = true;  ///< no Layer is called inside it
};

/// Bytes that a part's collectives moved.
struct PartBytes {
  Moved forward{}, backward{};
};

/// Runs a part forward and backward on a whole input under an upstream gradient that depends on
/// shape, seed and the part's name alone: the same on one rank and on each of several. Returns
/// output, gradient of the input where it has one, and of the parameters norm and gradients.
std::vector<Quantity> run_part(const Part& part, const Tensor& whole_x,
                               const VerifySettings& settings, const Meter* meter = nullptr,
                               PartBytes* bytes = nullptr);

/// The loss of these settings.
DTensor loss_of(const VerifySettings& settings, const DTensor& logits, const Tensor& labels,
                int64_t valid_tokens);
/// Elements of all parameters, each whole.
int64_t num_elements(const Parameters& parameters);
/// The norm of these settings.
double norm_of(const VerifySettings& settings, const Parameters& parameters, const Axis& tp);

}  // namespace cleave::verifying
