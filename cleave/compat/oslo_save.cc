// A save over the ranks (each step ends with a barrier):
//   1. Rank 0 takes the lock next to the folder, checks free space and makes a new, empty folder
//      under a temporary name.
//   2. Sharded: each rank of the first data-parallel group writes a file. Merged: these ranks
//      gather tensor by tensor, and rank 0 writes. All files are synced. Where FSDP or ZeRO-1
//      shards values, all ranks gather them first.
//   3. Rank 0 adds config.json, hard links to the other files of DIR, and the manifest. It renames
//      the new folder to DIR; if DIR exists, it swaps the two names atomically and removes the old
//      folder.
#include <algorithm>
#include <filesystem>
#include <memory>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/base/byte_count.h"
#include "cleave/base/suggest.h"
#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/parts.h"
#include "cleave/checkpoint/save.h"
#include "cleave/checkpoint/shard_files.h"
#include "cleave/compat/oslo.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/file_lock.h"
#include "cleave/file/folder_writer.h"
#include "cleave/format/manifest.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/format/torch_bin.h"
#include "cleave/format/torch_writer.h"
#include "cleave/layout/shards.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave::oslo {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kConfigName = "config.json";

/// A parameter, and this rank's values to save for it.
struct Piece {
  const Parameter* parameter;
  Tensor local;  ///< of leaf_shape()

  /// As in the rank's file, and as in a merged file.
  [[nodiscard]] TensorInfo local_info() const { return info(parameter->local_shape()); }
  [[nodiscard]] TensorInfo whole_info() const { return info(parameter->shape()); }
  /// The values of the rank's file: gathered where FSDP or ZeRO-1 shards them over data-parallel
  /// ranks, and collective over these.
  [[nodiscard]] Tensor part() const {
    if (!parameter->is_flat()) return local;
    const Axis& data = parameter->data_axis();
    const std::vector<int64_t> one_each(static_cast<size_t>(data.size()), 1);
    const Tensor own = at::full({1}, local.numel(), local.options().dtype(at::kLong));
    const Tensor all = data.all_gather(own, 0, one_each, parameter->name() + " sizes").cpu();
    const auto* sizes = all.const_data_ptr<int64_t>();
    return data.all_gather(local, 0, {sizes, sizes + data.size()}, parameter->name())
        .view(parameter->local_shape());
  }
  /// The whole tensor, of part(). Collective over tp.
  [[nodiscard]] Tensor whole(const Tensor& part) const {
    if (!parameter->is_split()) return part;
    return Shards{parameter->axis(), parameter->placement(), parameter->name()}.gather(part);
  }

 private:
  [[nodiscard]] TensorInfo info(std::vector<int64_t> shape) const {
    return {parameter->name(), dtype_of(local.scalar_type()), std::move(shape)};
  }
};

std::vector<TensorInfo> whole_infos(const std::vector<Piece>& pieces) {
  std::vector<TensorInfo> infos;
  infos.reserve(pieces.size());
  for (const Piece& piece : pieces) infos.push_back(piece.whole_info());
  return infos;
}

/// The model's parameters, or those that `state_dict` has, with its values.
std::vector<Piece> pieces_of(const Parameters& parameters, const StateDict& state_dict) {
  std::vector<Piece> pieces;
  std::vector<std::string> names;
  for (const auto& p : parameters) {
    names.push_back(p->name());
    CLEAVE_CHECK(p->leaf().defined(), Code::kUsage, p->name(),
                 " has no memory yet; load or materialize the model first");
    const auto given = state_dict.find(p->name());
    if (given == state_dict.end()) {
      if (state_dict.empty()) pieces.push_back({p.get(), p->leaf().detach()});
      continue;
    }
    CLEAVE_CHECK(given->second.sizes() == at::IntArrayRef(p->leaf_shape()) &&
                     at::isFloatingType(given->second.scalar_type()),
                 Code::kUsage, "state_dict: ", p->name(), " is ", given->second.scalar_type(), " ",
                 given->second.sizes(), "; expected this rank's shard, floating-point of shape ",
                 at::IntArrayRef(p->leaf_shape()));
    pieces.push_back({p.get(), given->second.detach()});
  }
  for (const auto& [name, tensor] : state_dict) {
    CLEAVE_CHECK(std::find(names.begin(), names.end(), name) != names.end(), Code::kUsage,
                 "state_dict: the model has no parameter ", name, did_you_mean(name, names));
  }
  return pieces;
}

std::span<const std::byte> bytes_on(Tensor& kept, const Tensor& values) {
  kept = values.to(at::kCPU).contiguous();
  return bytes_of(kept);
}

/// Whether a new save replaces this file of the old folder; it keeps all others.
bool is_replaced(const std::string& name, bool writes_config) {
  if (name == kManifestName || (writes_config && name == kConfigName)) return true;
  const bool is_bin = name.ends_with(".bin") || name.ends_with(".bin.index.json");
  const bool is_safe = name.ends_with(".safetensors") || name.ends_with(".safetensors.index.json");
  return (name.starts_with(kTorchBinStem) && is_bin) || (name.starts_with("model") && is_safe);
}

/// DIRECTORY, without a slash at its end.
fs::path target_of(const std::string& directory) {
  const fs::path path = fs::absolute(directory).lexically_normal();
  return path.has_filename() ? path : path.parent_path();
}

/// Temporary name of the new folder. If a save dies, every later writer treats it as a leftover.
fs::path next_of(const fs::path& target) {
  return target.string() + ".next" + std::string(kPartialSuffix);
}

/// The folder of a save, on rank 0: new, or replacing the existing one.
class Target {
 public:
  Target(fs::path target, uint64_t bytes) : target_(std::move(target)) {
    const fs::path parent = make_folder_above(target_);
    CLEAVE_CHECK(!fs::exists(target_) || fs::is_directory(target_), Code::kIo, target_.string(),
                 " is a file; give the name of a folder");
    lock_ = std::make_unique<FileLock>(parent, target_.filename());
    require_free_space(parent, bytes);
    if (fs::exists(target_)) check_old_folder();
    if (fs::exists(next_of(target_))) remove_folder(next_of(target_));  // of a writer that died
    folder_.emplace(next_of(target_));
  }

  FolderWriter& folder() { return *folder_; }

  /// Writes the remaining files and puts the folder in place.
  void commit(const std::optional<std::string>& config, const std::vector<WrittenBlock>& blocks) {
    if (config) folder_->write_file(kConfigName, *config);
    for (const std::string& name : others_) {
      if (is_replaced(name, config.has_value())) continue;
      std::error_code code;
      fs::create_hard_link(target_ / name, folder_->path() / name, code);
      if (code) fs::copy(target_ / name, folder_->path() / name, code);  // no links on this disk
      if (code) throw_io((target_ / name).string(), "copy", code.value());
    }
    folder_->write_file(kManifestName, make_manifest(folder_->path(), blocks));
    folder_->commit();
    if (!fs::exists(target_)) return rename_durably(next_of(target_), target_);
    swap_durably(next_of(target_), target_);
    remove_folder(next_of(target_));
  }

 private:
  void check_old_folder() {
    CLEAVE_CHECK(!fs::exists(target_ / kStateName), Code::kUsage, target_.string(),
                 " is a checkpoint of a run, with its optimizer; save into another folder");
    for (const auto& entry : fs::directory_iterator(target_)) {
      const std::string name = entry.path().filename().string();
      if (name.starts_with('.') && name.ends_with(".lock")) continue;
      CLEAVE_CHECK(entry.is_regular_file() && !entry.is_symlink() && is_file_name(name),
                   Code::kUsage, entry.path().string(),
                   " is not a regular file and would be lost; save into another folder");
      others_.push_back(name);
    }
  }

  fs::path target_;
  std::vector<std::string> others_;  ///< files of the old folder
  std::unique_ptr<FileLock> lock_;
  std::optional<FolderWriter> folder_;
};

/// Writes this rank's file. Without a path it only takes part in gathering values.
void write_shards(const std::optional<fs::path>& path, const std::vector<Piece>& pieces) {
  std::vector<TensorInfo> infos;
  infos.reserve(pieces.size());
  for (const Piece& piece : pieces) infos.push_back(piece.local_info());
  const TorchPlan plan(state_dict_of(infos));
  std::optional<TorchWriter> writer;
  if (path) writer.emplace(File::create(*path), plan);
  Tensor kept;
  for (size_t i = 0; i < pieces.size(); ++i) {
    const Tensor part = pieces[i].part();
    if (writer) writer->write(i, bytes_on(kept, part));
  }
  if (writer) writer->finish();
}

/// Writes whole tensors in order into pytorch_model.bin or its parts, divided as in a
/// SafetensorsPlan.
class BinFiles {
 public:
  BinFiles(FolderWriter& folder, const SafetensorsPlan& plan) : folder_(folder), plan_(plan) {}

  void write(size_t index, std::span<const std::byte> bytes) {
    const StoredTensor& tensor = plan_.tensors()[index];
    if (tensor.file == num_begun_) begin_file(index);
    writer_->write(index - first_, bytes);
    const std::string name = file_name(tensor.file);
    places_.emplace_back(tensor.name, name);
    total_ += bytes.size();
    const bool is_last = index + 1 == plan_.tensors().size();
    if (is_last || plan_.tensors()[index + 1].file != tensor.file) writer_->finish();
    if (!is_last || plan_.files().size() == 1) return;
    folder_.write_file(str(kTorchBinStem, ".bin.index.json"), index_json(places_, total_));
  }

 private:
  [[nodiscard]] std::string file_name(size_t file) const {
    return part_file_name(kTorchBinStem, ".bin", file, plan_.files().size());
  }
  void begin_file(size_t first) {
    std::vector<TensorInfo> infos;
    for (size_t i = first; i < plan_.tensors().size(); ++i) {
      if (plan_.tensors()[i].file == num_begun_) infos.push_back(plan_.tensors()[i]);
    }
    torch_ = std::make_unique<TorchPlan>(state_dict_of(infos));
    writer_.emplace(File::create(folder_.path() / file_name(num_begun_)), *torch_);
    first_ = first;
    ++num_begun_;
  }

  FolderWriter& folder_;
  const SafetensorsPlan& plan_;
  std::unique_ptr<TorchPlan> torch_;
  std::optional<TorchWriter> writer_;
  size_t num_begun_ = 0, first_ = 0;  ///< files begun; index of the current file's first tensor
  std::vector<std::pair<std::string, std::string>> places_;
  uint64_t total_ = 0;
};

uint64_t max_file_bytes(const SaveOptions& options, bool is_merged) {
  CLEAVE_CHECK(is_merged || (options.max_shard_size.empty() && !options.safe_serialization),
               Code::kUsage,
               "max_shard_size and safe_serialization apply to merged checkpoints; set "
               "merge_checkpoints, or omit them");
  const std::string text = options.max_shard_size.empty() ? "5GB" : options.max_shard_size;
  const auto bytes = bytes_from_text(text);
  CLEAVE_CHECK(bytes, Code::kUsage, "max_shard_size='", text,
               "' is not a size; expected one above 0 such as 5GB, 200MB or 1GiB");
  return *bytes;
}

struct MergeOptions {
  bool is_safe = false;
  bool gathers = false;
};

/// Gathers whole tensors one by one and writes them; `target` is null except on rank 0. Only ranks
/// of the first tp axis gather (`gathers`); the others have copies of their parts.
std::vector<WrittenBlock> write_merged(Target* target, const std::vector<Piece>& pieces,
                                       const SafetensorsPlan& plan, const MergeOptions& options) {
  const auto [is_safe, gathers] = options;
  std::optional<SafetensorsWriter> safe;
  std::optional<BinFiles> bin;
  if (target != nullptr && is_safe) {
    plan.create_files(target->folder());
    safe.emplace(target->folder().path(), plan);
  } else if (target != nullptr) {
    bin.emplace(target->folder(), plan);
  }
  std::map<std::string_view, const Piece*> by_name;
  for (const Piece& piece : pieces) by_name.emplace(piece.parameter->name(), &piece);
  Tensor kept;
  for (size_t i = 0; i < plan.tensors().size(); ++i) {  // in the order of the files
    const Piece& piece = *by_name.at(plan.tensors()[i].name);
    const Tensor part = piece.part();
    if (!gathers) continue;
    const Tensor whole = piece.whole(part);
    if (safe) safe->write_block(plan.tensors()[i].name, {}, bytes_on(kept, whole));
    if (bin) bin->write(i, bytes_on(kept, whole));
  }
  return safe ? safe->finish() : std::vector<WrittenBlock>{};
}

/// Disk space of a save: tensor files, config, manifest and index.
uint64_t disk_bytes(const std::vector<Piece>& pieces, const SafetensorsPlan& plan,
                    const std::string& config, int num_shards) {
  uint64_t bytes = plan.total_bytes();
  if (num_shards > 0) {
    std::vector<TensorInfo> infos;
    infos.reserve(pieces.size());
    for (const Piece& piece : pieces) infos.push_back(piece.local_info());
    // No rank has larger shards than the first.
    bytes = static_cast<uint64_t>(num_shards) * TorchPlan(state_dict_of(infos)).total_bytes();
  } else if (plan.files().front().name.starts_with(kTorchBinStem)) {
    bytes = TorchPlan(state_dict_of(whole_infos(pieces))).total_bytes();
  }
  const uint64_t num_files = plan.files().size() + static_cast<uint64_t>(num_shards) + 5;
  return bytes + manifest_max_bytes(plan, pieces.size()) + plan.index_json().size() +
         config.size() + num_files * kDiskBlock;
}

/// config.json's dtype: that of the largest tensor.
std::string config_text(const Model& model, const std::vector<Piece>& pieces) {
  const auto largest = std::max_element(
      pieces.begin(), pieces.end(),
      [](const Piece& a, const Piece& b) { return a.parameter->numel() < b.parameter->numel(); });
  return config_with_dtype(model.config(), largest->local.scalar_type());
}

}  // namespace

void ParallelModel::save_parallelized(const std::string& save_directory,
                                      const SaveOptions& options) const {
  const bool is_merged = options.merge_checkpoints || tp_.size() == 1;
  const uint64_t max_bytes = max_file_bytes(options, is_merged);
  const std::vector<Piece> pieces = pieces_of(model_->parameters(), options.state_dict);
  const SafetensorsPlan plan(
      whole_infos(pieces),
      {.stem = options.safe_serialization ? "model" : std::string(kTorchBinStem),
       .max_file_bytes = max_bytes});
  const fs::path path = target_of(save_directory);
  std::optional<Target> target;
  if (world_.rank() == 0) {
    const int num_shards = is_merged ? 0 : tp_.size();
    target.emplace(path, disk_bytes(pieces, plan, config_text(*model_, pieces), num_shards));
  }
  world_.barrier("save_parallelized: folder made");
  std::vector<WrittenBlock> blocks;
  const bool is_first = dp_.rank() == 0;  // of the ranks with copies of the same part
  if (is_merged) {
    blocks = write_merged(target ? &*target : nullptr, pieces, plan,
                          {.is_safe = options.safe_serialization, .gathers = is_first});
  } else {
    const fs::path file = FolderWriter::partial_path(next_of(path)) / oslo_file_name(tp_.rank(), 0);
    write_shards(is_first ? std::optional(file) : std::nullopt, pieces);
  }
  world_.barrier("save_parallelized: files written");
  if (target) {
    std::optional<std::string> config;
    if (options.save_config) config = config_text(*model_, pieces);
    target->commit(config, blocks);
  }
  world_.barrier("save_parallelized: model committed");
}

}  // namespace cleave::oslo
