#include "cleave/train/fingerprint.h"

#include <algorithm>
#include <array>
#include <charconv>
#include <filesystem>
#include <map>

#include "cleave/base/hash.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/file/file.h"
#include "cleave/format/manifest.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

void add_optimizer(ConfigFingerprint& fingerprint, const TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  fingerprint.emplace_back("--optimizer", o.optimizer);
  fingerprint.emplace_back("--lr", text_of(o.lr));
  fingerprint.emplace_back("--schedule", o.schedule);
  fingerprint.emplace_back("--warmup", str(setup.schedule.warmup));
  fingerprint.emplace_back("--beta1", text_of(o.beta1));
  fingerprint.emplace_back("--beta2", text_of(o.beta2));
  fingerprint.emplace_back("--adam-eps", text_of(o.adam_eps));
  fingerprint.emplace_back("--weight-decay", text_of(o.weight_decay));
  fingerprint.emplace_back("--decay-on", o.decay_on);
  fingerprint.emplace_back("--clip", text_of(o.clip));
}

void add_data(ConfigFingerprint& fingerprint, const TrainSetup& setup) {
  const auto checksum = [](const auto& data) {
    return data ? to_hex(data->fingerprint()) : std::string("none");
  };
  fingerprint.emplace_back("--data with checksum", checksum(setup.data));
  fingerprint.emplace_back("--eval-data with checksum", checksum(setup.eval_data));
}

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

std::string text_of(double number) {
  std::array<char, 32> text{};
  return {text.data(), std::to_chars(text.data(), text.data() + text.size(), number).ptr};
}

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

void add_weights(ConfigFingerprint& fingerprint, const ModelFolder& folder) {
  const fs::path manifest = fs::path(folder.path) / kManifestName;
  if (fs::exists(manifest)) {
    fingerprint.emplace_back("a manifest with checksum", to_hex(hash_bytes(read_file(manifest))));
    return;
  }
  const auto files = open_model_files(folder);
  Hasher tensors;
  for (const TensorInfo& info : files->list()) {
    const std::string text = str(info.name, ' ', file_name(info.dtype), info.shape, '\n');
    tensors.update(std::as_bytes(std::span(text)));
    tensors.update(first_numbers(*files, info));
  }
  fingerprint.emplace_back("weights with checksum", to_hex(tensors.digest()));
}

void add_machine(ConfigFingerprint& fingerprint, const MachineOptions& options) {
  fingerprint.emplace_back("--gemm", options.gemm);
  fingerprint.emplace_back("--plain-kernels", options.plain_kernels);
  fingerprint.emplace_back("--device", options.device);
}

ConfigFingerprint fingerprint_of(const TrainSetup& setup) {
  const TrainOptions& o = setup.options;
  ConfigFingerprint fingerprint{
      {"the layout", setup.layout.describe()},
      {"--plan with checksum", o.plan.empty() ? "" : to_hex(hash_bytes(read_file(o.plan)))},
      {"--steps", str(setup.num_steps)},
      {"--batch-size", str(o.batch_size)},
      {"--micro-batch-size", str(setup.micro_batch_size)},
      {"--seq-len", str(o.seq_len)},
      {"--dtype", o.dtype},
      {"--seed", str(o.seed)},
      {"--shuffle", o.shuffle ? "on" : "off"},
      {"--save-every", str(o.save_every)},
      {"--async-save", o.async_save ? "on" : "off"},
      {"--keep-last", str(o.keep_last)},
      {"--eval-every", str(o.eval_every)},
      {"--resume", setup.resumes ? "on" : "off"}};
  if (setup.resumes) {
    fingerprint.emplace_back("the checkpoint", fs::path(setup.folder->path).filename().string());
  }
  add_machine(fingerprint, o);
  if (setup.folder) add_weights(fingerprint, *setup.folder);
  add_config(fingerprint, setup.config);
  add_optimizer(fingerprint, setup);
  add_data(fingerprint, setup);
  return fingerprint;
}

}  // namespace cleave
