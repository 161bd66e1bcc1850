// A conversion:
//   1. Names, shapes and types decide which tensors, or which blocks of them, each file holds. The
//      disk's free space is compared with the files' sizes.
//   2. TO.partial is made with every file at its full size; tensors are copied in chunks.
//   3. config.json, tokenizer files and the manifest are written; the folder is renamed to TO.
// A failure or a signal before that removes TO.partial.
#include "cleave/checkpoint/convert.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <set>
#include <utility>
#include <vector>

#include <ATen/ATen.h>

#include "cleave/base/byte_progress.h"
#include "cleave/base/stop.h"
#include "cleave/checkpoint/gguf_tensors.h"
#include "cleave/checkpoint/int4_tensors.h"
#include "cleave/checkpoint/model_tensors.h"
#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/parts.h"
#include "cleave/checkpoint/save.h"
#include "cleave/checkpoint/shard_files.h"
#include "cleave/file/atomic_write.h"
#include "cleave/file/file_lock.h"
#include "cleave/file/model_path.h"
#include "cleave/format/manifest.h"
#include "cleave/format/safetensors.h"
#include "cleave/format/tensor_source.h"
#include "cleave/format/torch_bin.h"
#include "cleave/format/torch_writer.h"
#include "cleave/mesh/dry_axis.h"
#include "cleave/mesh/scalar_type.h"
#include "cleave/model/generation_config.h"
#include "cleave/model/gguf/tokenizer.h"
#include "cleave/parallel/plan.h"

namespace cleave::inline checkpoint {
namespace {

namespace fs = std::filesystem;

/// A tensor of a new file: a block of a source tensor.
struct Wanted {
  TensorInfo info;  ///< in the new file
  std::vector<Slice> slices;
};

/// A torch file to write.
struct WantedFile {
  std::string path;  ///< below the folder
  std::vector<Wanted> tensors;
};

bool is_sharded(ModelFormat format) {
  return format == ModelFormat::kOslo || format == ModelFormat::kNxd;
}

void check(const ConvertOptions& o) {
  CLEAVE_CHECK(o.tp >= 1 && o.pp >= 1, Code::kUsage, "tp=", o.tp, " pp=", o.pp,
               " is not possible; expected 1 or more");
  CLEAVE_CHECK(is_sharded(o.format) || (o.tp == 1 && o.pp == 1), Code::kUsage, "tp=", o.tp,
               " pp=", o.pp,
               " is only for the formats oslo and nxd; the files of the others are whole, ",
               "and any tp and pp can load them");
}

DType new_dtype(DType stored, const std::string& wanted) {
  if (wanted.empty() || !at::isFloatingType(scalar_type(stored))) return stored;
  const auto dtype = dtype_from_name(wanted);
  CLEAVE_CHECK(dtype && at::isFloatingType(scalar_type(*dtype)), Code::kUsage, "dtype '", wanted,
               "' is not possible; choose fp32, bf16, fp16 or fp64");
  return *dtype;
}

/// Copies a block from the source in chunks, converted to the new type.
void copy(const TensorSource& source, const Wanted& wanted,
          const std::function<void(const std::vector<Slice>&, std::span<const std::byte>)>& write) {
  const TensorInfo& stored = source.at(wanted.info.name);
  // Reused for every piece: allocating each time would fragment the heap.
  std::vector<std::byte> bytes, converted;
  for_each_chunk(stored, wanted.slices, [&](const std::vector<Slice>& slices) {
    if (const int signal = StopSignal::pending(); signal != 0) throw Stopped{signal};
    bytes.resize(block_bytes(stored, slices));
    source.read_block(stored.name, slices, bytes);
    if (stored.dtype == wanted.info.dtype) return write(slices, bytes);
    const auto count = static_cast<int64_t>(bytes.size()) / item_bytes(stored.dtype);
    converted.resize(static_cast<size_t>(count * item_bytes(wanted.info.dtype)));
    const auto values_in = [count](std::vector<std::byte>& memory, DType dtype) {
      return at::from_blob(memory.data(), {count}, at::dtype(scalar_type(dtype)));
    };
    const at::Tensor values = values_in(bytes, stored.dtype);
    const at::Tensor rounded = values_in(converted, wanted.info.dtype).copy_(values);
    check_range(values, rounded, stored.name);
    write(slices, converted);
  });
}

/// All tensors of the source, whole.
std::vector<Wanted> whole_tensors(const TensorSource& source, const std::string& dtype) {
  std::vector<Wanted> tensors;
  for (TensorInfo& info : source.list()) {
    info.dtype = new_dtype(info.dtype, dtype);
    tensors.push_back({std::move(info), {}});
  }
  return tensors;
}

/// "pytorch_model-00001-of-00002.bin", ...: a new part begins when the next tensor would not fit.
std::vector<WantedFile> bin_parts(std::vector<Wanted> tensors, uint64_t max_file_bytes) {
  std::vector<WantedFile> files(1);
  uint64_t filled = 0;
  for (Wanted& tensor : tensors) {
    const uint64_t bytes = block_bytes(tensor.info, {});
    if (!files.back().tensors.empty() &&
        bytes > max_file_bytes - std::min(filled, max_file_bytes)) {
      files.emplace_back();
      filled = 0;
    }
    filled += bytes;
    files.back().tensors.push_back(std::move(tensor));
  }
  for (size_t i = 0; i < files.size(); ++i) {
    files[i].path = part_file_name(kTorchBinStem, ".bin", i, files.size());
  }
  return files;
}

/// The parameters of each stage: balanced ranges of the model's sequence. Heads that are not in the
/// sequence (a pooler on hidden states) are in the last stage.
std::vector<std::set<std::string>> stages_of(Model& model, int pp) {
  const std::vector<Layer*> sequence = model.sequence();
  const auto count = static_cast<int>(sequence.size());
  CLEAVE_CHECK(pp <= count, Code::kShape, "pp=", pp, " is more than the ", count,
               " layers of the model; choose pp from 1 to ", count);
  std::vector<std::set<std::string>> stages(static_cast<size_t>(pp));
  for (int i = 0; i < count; ++i) {
    auto& stage = stages[static_cast<size_t>(int64_t{i} * pp / count)];
    for (const auto& p : sequence[static_cast<size_t>(i)]->parameters()) stage.insert(p->name());
  }
  for (const auto& p : model.parameters()) {
    const auto has_it = [&](const auto& stage) { return stage.contains(p->name()); };
    if (std::none_of(stages.begin(), stages.end(), has_it)) stages.back().insert(p->name());
  }
  return stages;
}

/// The files of a job of tp x pp ranks.
std::vector<WantedFile> sharded_files(const ModelTensors& source, const Json& config,
                                      const ConvertOptions& o) {
  std::vector<WantedFile> files(static_cast<size_t>(o.tp * o.pp));
  for (int tp = 0; tp < o.tp; ++tp) {
    const auto model = make_model(config);
    parallelize_module(*model, dry_axis("tp", tp, o.tp), model->plan());
    const auto stages = stages_of(*model, o.pp);
    for (int pp = 0; pp < o.pp; ++pp) {
      const int rank = pp * o.tp + tp;
      WantedFile& file = files[static_cast<size_t>(rank)];
      file.path = o.format == ModelFormat::kOslo ? oslo_file_name(tp, pp)
                                                 : str(nxd_folder_name(tp, pp), "/", kNxdFileName);
      for (const auto& parameter : model->parameters()) {
        if (!stages[static_cast<size_t>(pp)].contains(parameter->name())) continue;
        const DType dtype = new_dtype(source.at(parameter->name()).dtype, o.dtype);
        file.tensors.push_back(
            {{parameter->name(), dtype, parameter->local_shape()}, held_blocks(*parameter).at(0)});
      }
      if (pp > 0) continue;
      for (TensorInfo& info : source.additions()) file.tensors.push_back({std::move(info), {}});
    }
  }
  return files;
}

/// The number of pieces in which the tensors are copied.
uint64_t num_chunks(const std::vector<Wanted>& tensors) {
  uint64_t count = 0;
  for (const Wanted& tensor : tensors) {
    for_each_chunk(tensor.info, tensor.slices, [&](const auto&) { ++count; });
  }
  return count;
}

/// A bound on the bytes of an index of the files: a line for each tensor.
uint64_t index_bytes(const std::vector<WantedFile>& files) {
  uint64_t bytes = 0;
  for (const WantedFile& file : files) {
    for (const Wanted& tensor : file.tensors) {
      bytes += 2 * tensor.info.name.size() + file.path.size() + 16;
    }
  }
  return bytes;
}

/// Writes the files of one conversion and counts them.
class Output {
 public:
  Output(const ConvertOptions& options, const ModelFolder& from, const TensorSource& source)
      : options_(options),
        from_(from),
        source_(source),
        target_(fs::absolute(options.to)),
        other_files_(other_files(from)) {
    target_ = target_.lexically_normal();
    if (!target_.has_filename()) target_ = target_.parent_path();  // "out/" is "out"
  }
  ~Output() {
    if (folder_ && !is_committed_) folder_->abandon();
  }
  Output(const Output&) = delete;
  Output& operator=(const Output&) = delete;

  void write_safetensors(const std::vector<Wanted>& tensors) {
    std::vector<TensorInfo> infos;
    infos.reserve(tensors.size());
    for (const Wanted& tensor : tensors) infos.push_back(tensor.info);
    const SafetensorsPlan plan(infos, {.max_file_bytes = options_.max_file_bytes});
    begin(plan.total_bytes(),
          manifest_max_bytes(plan, num_chunks(tensors)) + plan.index_json().size());
    plan.create_files(*folder_);
    SafetensorsWriter writer(folder_->path(), plan);
    for (const Wanted& tensor : tensors) {
      copy(source_, tensor, [&](const std::vector<Slice>& slices, std::span<const std::byte> data) {
        writer.write_block(tensor.info.name, slices, data);
        bytes_.add(data.size());
      });
    }
    blocks_ = writer.finish();
    for (const PlannedFile& file : plan.files()) report_.bytes += file.size;  // without the index
    report_.num_files = static_cast<int64_t>(plan.files().size());
    report_.num_tensors = static_cast<int64_t>(infos.size());
  }

  void write_torch(const std::vector<WantedFile>& files) {
    std::vector<TorchPlan> plans;
    uint64_t bytes = 0;
    for (const WantedFile& file : files) {
      std::vector<TensorInfo> infos;
      for (const Wanted& tensor : file.tensors) infos.push_back(tensor.info);
      SavedValue value = state_dict_of(infos);
      if (options_.format == ModelFormat::kNxd) {
        value = {SavedDict{{std::string("model"), std::move(value)}}};
      }
      plans.emplace_back(value);
      bytes += plans.back().total_bytes();
      report_.num_tensors += static_cast<int64_t>(infos.size());
    }
    begin(bytes, files.size() * (kDiskBlock + kManifestBytesPerFile) + index_bytes(files));
    for (size_t i = 0; i < files.size(); ++i) write_one(files[i], plans[i]);
    report_.num_files = static_cast<int64_t>(files.size());
    report_.bytes = bytes;
  }

  void write_bin_index(const std::vector<WantedFile>& files) {
    std::vector<std::pair<std::string, std::string>> places;
    uint64_t bytes = 0;
    for (const WantedFile& file : files) {
      for (const Wanted& tensor : file.tensors) {
        places.emplace_back(tensor.info.name, file.path);
        bytes += block_bytes(tensor.info, {});
      }
    }
    folder_->write_file(str(kTorchBinStem, ".bin.index.json"), index_json(places, bytes));
  }

  /// Writes the small files and the manifest and renames the folder.
  ConvertReport finish() {
    folder_->write_file("config.json", config_with_dtype(from_.config, largest_type()));
    write_files(*folder_, other_files_);
    folder_->write_file(kManifestName, make_manifest(folder_->path(), blocks_));
    folder_->commit();
    is_committed_ = true;
    return report_;
  }

 private:
  /// The files that are copied unchanged.
  static std::vector<NamedFile> other_files(const ModelFolder& from) {
    std::vector<NamedFile> files = model_tokenizer_files(tokenizer_source(from));
    const fs::path path = generation_config_path(from);
    if (!path.empty()) files.push_back({.name = path.filename().string(), .text = read_file(path)});
    return files;
  }

  /// Checks the free space and makes the folder. `bytes`: of tensor files; `overhead`: of index and
  /// manifest.
  void begin(uint64_t bytes, uint64_t overhead) {
    const fs::path parent = target_.parent_path();
    CLEAVE_CHECK(fs::is_directory(parent), Code::kIo, parent.string(),
                 " is not a folder; make it first, so that '", options_.to,
                 "' can be written in it");
    lock_ = std::make_unique<FileLock>(parent, target_.filename());
    const uint64_t small = 4 * kDiskBlock + config_with_dtype(from_.config, at::kBFloat16).size() +
                           disk_bytes(other_files_);
    require_free_space(parent, bytes + overhead + small);
    bytes_.expect(bytes);
    folder_ = std::make_unique<FolderWriter>(target_);
    require_intact_source(from_);
  }

  void write_one(const WantedFile& file, const TorchPlan& plan) {
    const size_t slash = file.path.find('/');
    if (slash != std::string::npos) folder_->make_folder(file.path.substr(0, slash));
    folder_->allocate_file(file.path, plan.total_bytes(), "");
    TorchWriter writer(File::open_write(folder_->path() / file.path), plan);
    for (size_t i = 0; i < file.tensors.size(); ++i) {
      copy(source_, file.tensors[i],
           [&](const std::vector<Slice>&, std::span<const std::byte> data) {
             writer.write(i, data);
             bytes_.add(data.size());
           });
    }
    writer.finish();
  }

  [[nodiscard]] at::ScalarType largest_type() const {
    uint64_t most = 0;
    DType dtype = DType::kF32;
    for (const TensorInfo& info : source_.list()) {
      const bool has_floats = at::isFloatingType(scalar_type(info.dtype));
      if (!has_floats || block_bytes(info, {}) <= most) continue;
      most = block_bytes(info, {});
      dtype = new_dtype(info.dtype, options_.dtype);
    }
    return scalar_type(dtype);
  }

  const ConvertOptions& options_;
  const ModelFolder& from_;
  const TensorSource& source_;
  fs::path target_;
  std::vector<NamedFile> other_files_;
  std::unique_ptr<FileLock> lock_;
  std::unique_ptr<FolderWriter> folder_;
  bool is_committed_ = false;
  ByteCount bytes_{terminal_progress("converted MiB")};  // of tensor files
  std::vector<WrittenBlock> blocks_;
  ConvertReport report_;
};

bool is_int4(const std::string& dtype) {
  return dtype == "int4" || dtype == "int4_sym";
}

/// Matrices in 4 bits; other tensors keep their type.
ConvertReport write_int4(ConvertOptions options, const ModelFolder& from) {
  CLEAVE_CHECK(options.format == ModelFormat::kSafetensors, Code::kUsage, "dtype ", options.dtype,
               " is possible only in the format safetensors");
  warn_of_lost_adapter(from, "--dtype " + options.dtype);
  const auto model = make_model(from.config);
  model->name_tree();
  const ModelTensors whole(from, *model, merged_dtype(options.dtype));
  const Int4Source source(whole, *model, /*has_mins=*/options.dtype == "int4");
  options.dtype.clear();
  Output output(options, from, source);
  output.write_safetensors(whole_tensors(source, options.dtype));
  return output.finish();
}

ConvertReport write(const ConvertOptions& options, const ModelFolder& from) {
  if (options.format == ModelFormat::kGguf) return write_gguf(options, from);
  if (is_sharded(options.format)) {
    const auto model = make_model(from.config);
    const ModelTensors source(from, *model, merged_dtype(options.dtype));
    Output output(options, from, source);
    output.write_torch(sharded_files(source, from.config, options));
    return output.finish();
  }
  if (is_int4(options.dtype)) return write_int4(options, from);
  const auto source = open_whole_tensors(from, merged_dtype(options.dtype));
  Output output(options, from, *source);
  std::vector<Wanted> tensors = whole_tensors(*source, options.dtype);
  if (options.format == ModelFormat::kSafetensors) {
    output.write_safetensors(tensors);
  } else {
    const auto files = bin_parts(std::move(tensors), options.max_file_bytes);
    output.write_torch(files);
    if (files.size() > 1) output.write_bin_index(files);
  }
  return output.finish();
}

ConvertReport convert_folder(const ConvertOptions& options) {
  ModelFolder from = ModelFolder::open(options.from, options.adapter);
  from.averaged = options.ema;
  // Their scales are tensors too.
  for (const char* key : {"quantization_config", "compression_config"}) {
    CLEAVE_CHECK(options.dtype.empty() || !from.config.has(key), Code::kUsage, from.path,
                 " has quantised weights of another program (", key, " in its config.json), which ",
                 "dtype ", options.dtype, " would change; leave the dtype as it is");
  }
  ConvertReport report = write(options, from);
  // An adapter's training, not its base model's, is what a user may resume.
  report.left_state =
      has_safetensors(from.adapter.empty() ? from.path : from.adapter, kOptimizerStem);
  return report;
}

}  // namespace

ConvertReport convert(const ConvertOptions& options) {
  check(options);
  return read_from(folders_of({options.from, options.adapter}),
                   [&] { return convert_folder(options); });
}

}  // namespace cleave::inline checkpoint

void cleave_convert(const cleave::ConvertOptions& options, cleave::ConvertReport& report) {
  const cleave::StopSignal stop(cleave::kStopsSoon);
  report = cleave::convert(options);
}
