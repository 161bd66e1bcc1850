#pragma once
#include <nlohmann/json.hpp>
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

/// Adds the options that a resumed run compares with its own (option::OnResume) to a checkpoint's
/// state: {"batch_size": 8, ...}.
void save_options(nlohmann::ordered_json& state, TrainOptions options);

/// Compares the options with those that save_options saved. Returns a warning for each change that
/// is allowed but easily overlooked; throws Error(kUsage) for one that is not.
std::vector<std::string> check_resumed(const Json& state, TrainOptions options);

}  // namespace cleave::inline train
