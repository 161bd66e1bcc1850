// A save, on all ranks of the world:
//   1. Everyone plans the same files from the parameters' whole shapes.
//   2. Rank 0 asks for free space and makes TARGET.partial with every file at its whole size.
//      Agreement: the files are there.
//   3. Everyone writes the ranges it owns into place, syncs and closes the files it touched.
//      Agreement: the checksums of all blocks are gathered, so all ranks are done.
//   4. Rank 0 writes the small files and the manifest, and renames the folder to TARGET.
//      Agreement: the checkpoint is on the disk.
// A rank that fails throws; the others leave their next agreement with its cause.
#include "cleave/checkpoint/save.h"

#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/checkpoint/names.h"
#include "cleave/checkpoint/parts.h"
#include "cleave/file/atomic_write.h"
#include "cleave/format/manifest.h"
#include "cleave/format/safetensors_writer.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

constexpr uint64_t kSmallFiles = uint64_t{1} << 20;  // space for config, state, manifest

/// A parameter's tensor in a file: the weight, the master or a moment.
struct Entry {
  TensorInfo info;
  const Parameter* parameter;
  Tensor local;  ///< of parameter->leaf_shape(); undefined: another rank has it
};

/// The tensors of the model's files and of the optimizer's, in order.
struct Contents {
  std::vector<Entry> model, optimizer;
};

// Every rank lists the same tensors; those of other pipeline stages without values.
Contents contents_of(const Checkpoint& checkpoint) {
  Contents contents;
  const DType dtype = dtype_of(checkpoint.dtype);
  const Parameters parameters = checkpoint.model->parameters();
  for (const auto& p : parameters) {
    contents.model.push_back({{p->name(), dtype, p->shape()}, p.get(), p->leaf()});
  }
  if (checkpoint.optimizer == nullptr) return contents;
  std::map<const Parameter*, const Optimizer::State*> mine;
  for (const auto& state : checkpoint.optimizer->states()) mine[state.parameter.get()] = &state;
  CLEAVE_CHECK(!mine.empty(), Code::kUsage, "an optimizer without parameters cannot be saved");
  const at::ScalarType leaf_type = mine.begin()->first->leaf().scalar_type();
  for (const auto& p : parameters) {
    const auto add = [&](std::string_view part, const Tensor& local) {
      contents.optimizer.push_back(
          {{state_name(part, p->name()), dtype_of(leaf_type), p->shape()}, p.get(), local});
    };
    const auto state = mine.find(p.get());
    const bool is_mine = state != mine.end();
    // A master of the files' own type is the weight itself.
    if (leaf_type != checkpoint.dtype) add(kMaster, p->leaf());
    if (!checkpoint.optimizer->has_moments()) continue;
    add(kExpAvg, is_mine ? state->second->exp_avg : Tensor());
    add(kExpAvgSq, is_mine ? state->second->exp_avg_sq : Tensor());
  }
  return contents;
}

std::vector<TensorInfo> infos(const std::vector<Entry>& entries) {
  std::vector<TensorInfo> list;
  for (const Entry& entry : entries) list.push_back(entry.info);
  return list;
}

SafetensorsPlan model_plan(const Contents& contents, const Checkpoint& checkpoint) {
  std::vector<TensorInfo> list = infos(contents.model);
  for (const CarriedTensor& tensor : checkpoint.carried) list.push_back(tensor.info);
  return SafetensorsPlan(list);
}

SafetensorsPlan optimizer_plan(const Contents& contents, const Optimizer& optimizer) {
  SafetensorsPlanOptions options;
  options.stem = kOptimizerStem;
  options.metadata = {{std::string(kNumSteps), std::to_string(optimizer.num_steps())}};
  return SafetensorsPlan(infos(contents.optimizer), options);
}

/// Writes what this rank owns; tensor i is written by the (i mod dp)-th copy.
std::vector<WrittenBlock> write_owned(SafetensorsWriter& writer, const std::vector<Entry>& entries,
                                      const Writers& writers) {
  for (size_t i = 0; i < entries.size(); ++i) {
    const Entry& entry = entries[i];
    if (!entry.local.defined()) continue;  // of another pipeline stage
    const bool is_my_turn =
        static_cast<int>(i % static_cast<size_t>(writers.dp.size())) == writers.dp.rank();
    if (!entry.parameter->is_flat() && !is_my_turn) continue;
    // A parameter that no plan touched knows no axis: all its copies believe to be the first.
    if (entry.parameter->axis().size() == 1 && writers.tp.rank() != 0) continue;
    const auto type = scalar_type(entry.info.dtype);
    for (OwnedPart& part : owned_parts(*entry.parameter, entry.local, type)) {
      writer.write_block(entry.info.name, std::move(part.slices), bytes_of(part.values));
    }
  }
  return writer.finish();
}

std::vector<WrittenBlock> write_carried(SafetensorsWriter& writer, const Checkpoint& checkpoint,
                                        const Writers& writers) {
  if (writers.world.rank() != 0) return {};
  for (const CarriedTensor& tensor : checkpoint.carried) {
    writer.write_block(tensor.info.name, {}, std::as_bytes(std::span(tensor.bytes)));
  }
  return writer.finish();
}

// Blocks travel as int64: index of the tensor among all planned ones, checksum, number of slices,
// and for each slice its dim, number of ranges, and their ends.
void encode(const WrittenBlock& block, int64_t tensor, std::vector<int64_t>& to) {
  to.push_back(tensor);
  to.push_back(static_cast<int64_t>(block.checksum));
  to.push_back(static_cast<int64_t>(block.slices.size()));
  for (const Slice& slice : block.slices) {
    to.push_back(slice.dim);
    to.push_back(static_cast<int64_t>(slice.ranges.size()));
    for (const Range& range : slice.ranges) to.insert(to.end(), {range.begin, range.end});
  }
}

WrittenBlock decode(const int64_t*& from, const std::vector<const StoredTensor*>& tensors,
                    const std::vector<const PlannedFile*>& files) {
  WrittenBlock block;
  const auto tensor = static_cast<size_t>(*from++);
  block.tensor = tensors[tensor]->name;
  block.file = files[tensor]->name;
  block.checksum = static_cast<uint64_t>(*from++);
  block.slices.resize(static_cast<size_t>(*from++));
  for (Slice& slice : block.slices) {
    slice.dim = *from++;
    slice.ranges.resize(static_cast<size_t>(*from++));
    for (Range& range : slice.ranges) {
      range.begin = *from++;
      range.end = *from++;
    }
  }
  return block;
}

/// The blocks of all ranks, on every rank.
std::vector<WrittenBlock> gather(const std::vector<WrittenBlock>& mine,
                                 const std::vector<const SafetensorsPlan*>& plans,
                                 const Axis& world) {
  std::vector<const StoredTensor*> tensors;
  std::vector<const PlannedFile*> files;
  std::map<std::pair<std::string_view, std::string_view>, int64_t> places;
  for (const SafetensorsPlan* plan : plans) {
    for (const StoredTensor& tensor : plan->tensors()) {
      files.push_back(&plan->files()[tensor.file]);
      places[{files.back()->name, tensor.name}] = static_cast<int64_t>(tensors.size());
      tensors.push_back(&tensor);
    }
  }
  std::vector<int64_t> encoded;
  for (const WrittenBlock& block : mine) {
    encode(block, places.at({block.file, block.tensor}), encoded);
  }
  const auto count = static_cast<int64_t>(encoded.size());
  const std::vector<int64_t> ones(static_cast<size_t>(world.size()), 1);
  const Tensor counts =
      world.all_gather(at::tensor({count}, at::kLong), 0, ones, "save: blocks written");
  const std::vector<int64_t> widths(counts.const_data_ptr<int64_t>(),
                                    counts.const_data_ptr<int64_t>() + counts.numel());
  const Tensor all =
      world.all_gather(at::tensor(encoded, at::kLong), 0, widths, "save: checksums of blocks");
  std::vector<WrittenBlock> blocks;
  const int64_t* from = all.const_data_ptr<int64_t>();
  for (const int64_t* end = from + all.numel(); from < end;) {
    blocks.push_back(decode(from, tensors, files));
  }
  return blocks;
}

}  // namespace

std::string config_with_dtype(const Json& config, at::ScalarType dtype) {
  auto json = nlohmann::ordered_json::parse(config.dump());
  const std::string value = dtype == at::kBFloat16 ? "bfloat16"
                            : dtype == at::kHalf   ? "float16"
                            : dtype == at::kDouble ? "float64"
                                                   : "float32";
  const bool is_newer_form = json.contains("dtype");
  if (is_newer_form) json["dtype"] = value;
  if (!is_newer_form || json.contains("torch_dtype")) json["torch_dtype"] = value;
  return json.dump(2) + "\n";
}

void save_checkpoint(const fs::path& target, const Checkpoint& checkpoint, const Writers& writers) {
  const Contents contents = contents_of(checkpoint);
  std::vector<SafetensorsPlan> plans = {model_plan(contents, checkpoint)};
  if (checkpoint.optimizer != nullptr) {
    plans.push_back(optimizer_plan(contents, *checkpoint.optimizer));
  }
  std::vector<const SafetensorsPlan*> plan_list;
  uint64_t bytes = kSmallFiles;
  for (const SafetensorsPlan& plan : plans) {
    plan_list.push_back(&plan);
    bytes += plan.total_bytes();
  }

  const bool is_first = writers.world.rank() == 0;
  std::unique_ptr<FolderWriter> folder;
  if (is_first) {
    require_free_space(std::filesystem::absolute(target).parent_path(), bytes);
    folder = std::make_unique<FolderWriter>(target);
    for (const SafetensorsPlan& plan : plans) plan.create_files(*folder);
  }
  writers.world.barrier("save: files made");

  std::vector<WrittenBlock> blocks;
  const auto add = [&](std::vector<WrittenBlock> more) {
    for (WrittenBlock& block : more) blocks.push_back(std::move(block));
  };
  const fs::path partial = FolderWriter::partial_path(target);
  SafetensorsWriter model_writer(partial, plans[0]);
  add(write_owned(model_writer, contents.model, writers));
  add(write_carried(model_writer, checkpoint, writers));
  if (plans.size() > 1) {
    SafetensorsWriter optimizer_writer(partial, plans[1]);
    add(write_owned(optimizer_writer, contents.optimizer, writers));
  }
  blocks = gather(blocks, plan_list, writers.world);

  if (is_first) {
    folder->write_file("config.json",
                       config_with_dtype(checkpoint.model->config(), checkpoint.dtype));
    for (const NamedFile& file : checkpoint.files) folder->write_file(file.name, file.text);
    folder->write_file(kStateName, checkpoint.state_json);
    folder->write_file(kManifestName, make_manifest(folder->path(), blocks));
    folder->commit();
  }
  writers.world.barrier("save: checkpoint committed");
}

}  // namespace cleave
