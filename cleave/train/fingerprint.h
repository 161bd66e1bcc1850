#pragma once
#include "cleave/mesh/consistency.h"
#include "cleave/train/setup.h"

namespace cleave {

/// The settings that must match on all ranks: those that determine what a run computes and when it
/// saves. Paths of files are not included, since they may differ between hosts.
ConfigFingerprint fingerprint_of(const TrainSetup& setup);

// For other commands that compare the settings of their ranks.
std::string text_of(double number);  ///< the shortest text that reads back as the same number
/// Adds each key of the model's config.json separately, so that a reported difference is short.
void add_config(ConfigFingerprint& fingerprint, const Json& config);
/// Adds the checksum of the model's manifest, which has the checksums of all its files. Without a
/// manifest: the tensors' names and shapes and the first numbers of each, which differ between a
/// model and a further trained one. Throws as open_model_files.
void add_weights(ConfigFingerprint& fingerprint, const ModelFolder& folder);
/// Adds the options that choose the kernels and the device.
void add_machine(ConfigFingerprint& fingerprint, const MachineOptions& options);

}  // namespace cleave
