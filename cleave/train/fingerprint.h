#pragma once
#include <string>
#include <vector>

#include "cleave/mesh/consistency.h"
#include "cleave/text/json.h"
#include "cleave/train/options.h"
#include "cleave/train/setup.h"

namespace cleave::inline train {

/// The settings that must match on all ranks: those that determine what a run computes and when it
/// saves. Paths of files are not included, since they may differ between hosts.
ConfigFingerprint fingerprint_of(const TrainSetup& setup);

// For other commands that compare the settings of their ranks.
/// Adds the options that the table of their struct marks as kMustMatch.
template <class Options>
void add_options(ConfigFingerprint& fingerprint, Options options) {
  const auto found = option::matching(option::sections(options));
  fingerprint.insert(fingerprint.end(), found.begin(), found.end());
}
/// Adds each key of the model's config.json separately, so that a reported difference is short.
void add_config(ConfigFingerprint& fingerprint, const Json& config);
/// Adds the checksum of the model's manifest, which has the checksums of all its files. Without a
/// manifest: the tensors' names and shapes and the first numbers of each, which differ between a
/// model and a further trained one. Then the same of its adapter. Throws as open_model_files.
void add_weights(ConfigFingerprint& fingerprint, const ModelFolder& folder);
/// A checksum of config and weights of a model, or of the base model of an adapter.
std::string base_fingerprint(const ModelFolder& folder);

}  // namespace cleave::inline train
