#pragma once
#include <string>
#include <vector>

#include "cleave/model/model.h"
#include "cleave/optim/optimizer.h"

namespace cleave {

/// Whether a glob (parallel/plan.h) matches a run of whole parts of a dotted name: "*.bias",
/// "norm" and "model.norm" match "model.norm.bias", "nor" does not.
bool matches_parts(const std::string& glob, const std::string& name);

/// The settings of single parameters that --param-group gives: "GLOB:SETTING=VALUE,...", with the
/// settings lr-factor and weight-decay. Where several groups match, the last one decides. Throws
/// Error(kUsage) for a text of another form, and for a glob that matches no trained parameter of
/// the model, with the nearest names.
OptimizerOptions::OwnSettings parameter_groups(const std::vector<std::string>& groups,
                                               Model& model);

}  // namespace cleave
