#include "cleave/train/fingerprint.h"

#include <algorithm>
#include <array>
#include <filesystem>
#include <map>

#include "cleave/base/hash.h"
#include "cleave/checkpoint/adapter.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/file/file.h"
#include "cleave/file/model_path.h"
#include "cleave/format/manifest.h"

namespace cleave::inline train {
namespace {

namespace fs = std::filesystem;

/// At most the first 64 numbers of a tensor's first row. A step of training changes them.
std::vector<std::byte> first_numbers(const TensorSource& files, const TensorInfo& info) {
  std::vector<Slice> first;
  for (size_t dim = 0; dim < info.shape.size(); ++dim) {
    const int64_t most = dim + 1 == info.shape.size() ? 64 : 1;
    first.push_back({static_cast<int64_t>(dim), {{0, std::min(most, info.shape[dim])}}});
  }
  std::vector<std::byte> bytes(block_bytes(info, first));
  files.read_block(info.name, first, bytes);
  return bytes;
}

}  // namespace

void add_config(ConfigFingerprint& fingerprint, const Json& config) {
  // Notes about the writing program and the source folder do not affect the run.
  constexpr std::array<std::string_view, 2> kNotes{"_name_or_path", "transformers_version"};
  std::map<std::string, std::string> values;  // sorted, whatever the order in the file
  for (size_t i = 0; i < config.size(); ++i) values[config.key(i)] = config.at(i).dump();
  for (const std::string_view note : kNotes) values.erase(std::string(note));
  for (const auto& [key, value] : values) {
    fingerprint.emplace_back("config.json's " + key, value);
  }
}

namespace {

/// Adds the tensors of a folder, which `open` opens if it has no manifest.
template <class Open>
void add_tensors(ConfigFingerprint& fingerprint, const fs::path& folder, const Open& open) {
  const fs::path manifest = folder / kManifestName;
  if (fs::exists(manifest)) {
    fingerprint.emplace_back("a manifest with checksum", to_hex(hash_bytes(read_file(manifest))));
    return;
  }
  const std::unique_ptr<TensorSource> files = open();
  Hasher tensors;
  for (const TensorInfo& info : files->list()) {
    const std::string text = str(info.name, ' ', file_name(info.dtype), info.shape, '\n');
    tensors.update(std::as_bytes(std::span(text)));
    tensors.update(first_numbers(*files, info));
  }
  fingerprint.emplace_back("weights with checksum", to_hex(tensors.digest()));
}

}  // namespace

void add_weights(ConfigFingerprint& fingerprint, const ModelFolder& folder) {
  add_tensors(fingerprint, folder.weights_path(), [&] { return open_model_files(folder); });
  if (folder.adapter.empty()) return;
  add_tensors(fingerprint, folder.adapter,
              [&] { return open_tensors(folder.adapter, kAdapterStem); });
}

std::string base_fingerprint(const ModelFolder& folder) {
  ModelFolder base = folder;
  base.adapter.clear();
  // An adapter with a head has a config of its own.
  if (!folder.adapter.empty()) base.config = ModelFolder::open(folder.weights_path()).config;
  ConfigFingerprint fingerprint;
  add_config(fingerprint, base.config);
  add_weights(fingerprint, base);
  Hasher all;
  for (const auto& [key, value] : fingerprint) {
    const std::string line = str(key, ' ', value, '\n');
    all.update(std::as_bytes(std::span(line)));
  }
  return to_hex(all.digest());
}

ConfigFingerprint fingerprint_of(const TrainSetup& setup) {
  TrainOptions o = setup.options;
  // The values that the run uses: --steps 20 and --epochs 2 may mean the same.
  o.steps = setup.num_steps;
  o.epochs.reset();
  o.micro_batch_size = setup.micro_batch_size;
  o.warmup = setup.schedule.warmup;
  o.decay_steps = setup.schedule.decay;
  o.resume = setup.resumes;
  const auto checksum = [](const auto& data) {
    return data ? to_hex(data->fingerprint()) : std::string("none");
  };
  const std::string checkpoint =
      setup.resumes ? fs::path(setup.folder->path).filename().string() : "none";
  // The checkpoint comes first: on a host whose --out is on another disk, --resume, --dtype and
  // other options have no effect, so they would differ too.
  ConfigFingerprint fingerprint{
      {"the newest checkpoint of --out, a folder that all hosts must share:", checkpoint},
      {"the layout", setup.layout.describe()},
      {"--plan with checksum", o.plan.empty() ? "" : to_hex(hash_bytes(read_file(o.plan)))}};
  add_options(fingerprint, o);
  if (setup.folder) {
    read_from(setup.folder->folders(), [&] { add_weights(fingerprint, *setup.folder); });
  }
  add_config(fingerprint, setup.config);
  fingerprint.emplace_back("--data with checksum", checksum(setup.data));
  fingerprint.emplace_back("--eval-data with checksum", checksum(setup.eval_data));
  return fingerprint;
}

}  // namespace cleave::inline train
