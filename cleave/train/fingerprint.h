#pragma once
#include "cleave/mesh/consistency.h"
#include "cleave/train/setup.h"

namespace cleave {

/// All that decides what a run computes and when it saves, but not where its files lie, which may
/// differ from host to host.
ConfigFingerprint fingerprint_of(const TrainSetup& setup);

// For other commands that compare what their ranks were told.
std::string text_of(double number);  ///< as few digits as tell it from every other number
/// Each key of the model's config.json by itself, so that a difference is short.
void add_config(ConfigFingerprint& told, const Json& config);
/// A model's manifest, which has the checksums of all its files; without one its tensors and the
/// first numbers of each, which tell a model from the same one that trained on. Throws as
/// open_model_files.
void add_weights(ConfigFingerprint& told, const ModelFolder& folder);
/// How ranks compute.
void add_machine(ConfigFingerprint& told, const MachineOptions& options);

}  // namespace cleave
