// A save, on all ranks of the world:
//   1. Every rank plans the same files from the tensors' whole shapes. Before that they exchange
//      the numbers of TensorGroup::numbers, if there are any.
//   2. Rank 0 checks the free space and makes TARGET.partial with every file at its full size.
//      Barrier: the files exist.
//   3. Every rank writes the ranges that it owns into place, syncs and closes the files it touched.
//      All-gather of all blocks' checksums: all ranks have written.
//   4. Rank 0 writes the small files and the manifest, and renames the folder to TARGET.
//      Barrier: the folder is on the disk.
// A rank that fails throws; the others leave their next collective with its cause. Only step 3 may
// run in another thread: it has no collective, so the order of collectives does not change.
#include "cleave/checkpoint/sharded_folder.h"

#include <algorithm>
#include <set>
#include <utility>

#include <ATen/ATen.h>

#include "cleave/checkpoint/parts.h"
#include "cleave/file/atomic_write.h"
#include "cleave/format/manifest.h"
#include "cleave/mesh/scalar_type.h"

namespace cleave::inline checkpoint {
namespace {

namespace fs = std::filesystem;

SafetensorsPlan plan_of(const TensorGroup& group) {
  std::vector<TensorInfo> list;
  for (const ShardedTensor& tensor : group.tensors) list.push_back(tensor.info);
  for (const CarriedTensor& tensor : group.carried) list.push_back(tensor.info);
  return SafetensorsPlan(list, {.stem = group.stem, .metadata = group.metadata});
}

// Blocks are sent as int64: index of the tensor among all planned ones, checksum, number of slices,
// and for each slice its dim, number of ranges, and their begins and ends.
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
                                 const std::vector<SafetensorsPlan>& plans, const Axis& world) {
  std::vector<const StoredTensor*> tensors;
  std::vector<const PlannedFile*> files;
  std::map<std::pair<std::string_view, std::string_view>, int64_t> places;
  for (const SafetensorsPlan& plan : plans) {
    for (const StoredTensor& tensor : plan.tensors()) {
      files.push_back(&plan.files()[tensor.file]);
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

/// The most blocks of a tensor that all ranks together write: a range of a flattened tensor has up
/// to three.
uint64_t blocks_each(const TensorGroup& group, const Writers& writers) {
  const auto tp = static_cast<uint64_t>(writers.tp.size());
  const bool is_flat = std::any_of(group.tensors.begin(), group.tensors.end(),
                                   [](const auto& t) { return t.parameter->is_flat(); });
  return is_flat ? 3 * tp * static_cast<uint64_t>(writers.dp.size()) : tp;
}

/// Adds the group's numbers to its metadata, the same on every rank. Collective.
void agree_on_numbers(TensorGroup& group, const Axis& world) {
  if (group.numbers.empty()) return;
  std::vector<int64_t> own;
  for (const auto& [key, number] : group.numbers) own.push_back(number);
  const Tensor all =
      world.all_reduce(at::tensor(own, at::kLong), "save: numbers of the metadata", ReduceOp::kMax);
  for (size_t i = 0; i < own.size(); ++i) {
    const auto number = all[static_cast<int64_t>(i)].item<int64_t>();
    const bool is_written = number >= 0 && number != group.usual_number;
    if (is_written) group.metadata[group.numbers[i].first] = std::to_string(number);
  }
}

}  // namespace

uint64_t disk_bytes(const FolderContents& contents, const Writers& writers) {
  uint64_t bytes = 3 * kDiskBlock;  // the folder, its name in the one above, the manifest
  for (const TensorGroup& group : contents.groups) {
    const SafetensorsPlan plan = plan_of(group);
    bytes += plan.total_bytes() + plan.index_json().size();
    bytes += manifest_max_bytes(plan, plan.tensors().size() * blocks_each(group, writers));
    bytes += (plan.files().size() + 1) * kDiskBlock;
  }
  return bytes + disk_bytes(contents.files);
}

uint64_t disk_bytes(std::span<const NamedFile> files) {
  uint64_t bytes = 0;
  for (const NamedFile& file : files) {
    const uint64_t blocks = file.name.find('/') == std::string::npos ? 1 : 2;
    bytes += file.text.size() + blocks * kDiskBlock + kManifestBytesPerFile;
  }
  return bytes;
}

void write_files(FolderWriter& folder, std::span<const NamedFile> files) {
  std::set<std::string> made;
  for (const NamedFile& file : files) {
    const size_t slash = file.name.find('/');
    const std::string inside = slash == std::string::npos ? "" : file.name.substr(0, slash);
    if (!inside.empty() && made.insert(inside).second) folder.make_folder(inside);
    folder.write_file(file.name, file.text);
  }
}

ShardedSave::ShardedSave(fs::path target, FolderContents contents, Writers writers)
    : target_(std::move(target)), contents_(std::move(contents)), writers_(std::move(writers)) {
  if (!target_.has_filename()) target_ = target_.parent_path();  // "out/" is "out"
  for (TensorGroup& group : contents_.groups) {
    agree_on_numbers(group, writers_.world);
    plans_.push_back(plan_of(group));
  }
  if (is_first()) {
    require_free_space(make_folder_above(target_), disk_bytes(contents_, writers_));
    folder_ = std::make_unique<FolderWriter>(target_);
    for (const SafetensorsPlan& plan : plans_) plan.create_files(*folder_);
  }
  writers_.world.barrier("save: files made");
}

ShardedSave::~ShardedSave() {
  if (thread_.joinable()) thread_.join();
}

/// Whether this rank writes the tensor: the (i mod n)-th of n data-parallel copies writes tensor i.
bool ShardedSave::is_mine(const ShardedTensor& tensor, size_t index) const {
  if (!tensor.local.defined()) return false;  // of another pipeline stage, or another rank's expert
  const Axis& copies = tensor.parameter->copies().value_or(writers_.dp);
  const bool is_my_turn =
      static_cast<int>(index % static_cast<size_t>(copies.size())) == copies.rank();
  if (!tensor.parameter->is_flat() && !is_my_turn) return false;
  // Without a plan a parameter has no tp axis: all its copies would write.
  return tensor.parameter->axis().size() > 1 || writers_.tp.rank() == 0;
}

void ShardedSave::for_each_part(const Take& take) const {
  for (size_t g = 0; g < contents_.groups.size(); ++g) {
    const TensorGroup& group = contents_.groups[g];
    for (size_t i = 0; i < group.tensors.size(); ++i) {
      const ShardedTensor& tensor = group.tensors[i];
      if (!is_mine(tensor, i)) continue;
      const auto type = scalar_type(tensor.info.dtype);
      for (OwnedPart& part : owned_parts(*tensor.parameter, tensor.local, type)) {
        const auto bytes = bytes_of(part.values);
        take({g, tensor.info.name, std::move(part.slices), std::move(part.values), bytes});
      }
    }
    if (!is_first()) continue;
    for (const CarriedTensor& tensor : group.carried) {
      take({g, tensor.info.name, {}, Tensor(), std::as_bytes(std::span(tensor.bytes))});
    }
  }
}

std::vector<SafetensorsWriter> ShardedSave::open_writers() const {
  std::vector<SafetensorsWriter> writers;
  for (const SafetensorsPlan& plan : plans_) {
    writers.emplace_back(FolderWriter::partial_path(target_), plan);
  }
  return writers;
}

void ShardedSave::finish(std::vector<SafetensorsWriter>& writers) {
  for (SafetensorsWriter& writer : writers) {
    for (WrittenBlock& block : writer.finish()) blocks_.push_back(std::move(block));
  }
}

void ShardedSave::write() {
  auto writers = open_writers();
  for_each_part([&](Part part) {
    writers[part.group].write_block(part.tensor, std::move(part.slices), part.bytes);
  });
  finish(writers);
}

void ShardedSave::write_async() {
  std::vector<Part> parts;
  for_each_part([&](Part part) {
    if (part.values.defined()) {
      part.values = part.values.clone();
      part.bytes = bytes_of(part.values);
    }
    parts.push_back(std::move(part));
  });
  is_writing_ = true;
  thread_ = std::thread([this, parts = std::move(parts)]() mutable {
    try {
      auto writers = open_writers();
      for (Part& part : parts) {
        writers[part.group].write_block(part.tensor, std::move(part.slices), part.bytes);
        part.values = Tensor();  // free each copy as soon as it is written
      }
      finish(writers);
    } catch (...) {
      failure_ = std::current_exception();
    }
    is_writing_ = false;
  });
}

bool ShardedSave::is_written() const {
  if (is_writing_) return false;
  if (failure_) std::rethrow_exception(failure_);
  return true;
}

void ShardedSave::commit() {
  if (thread_.joinable()) thread_.join();
  if (failure_) std::rethrow_exception(failure_);
  const std::vector<WrittenBlock> blocks = gather(blocks_, plans_, writers_.world);
  if (is_first()) {
    write_files(*folder_, contents_.files);
    folder_->write_file(kManifestName, make_manifest(folder_->path(), blocks));
    folder_->commit();
  }
  writers_.world.barrier("save: folder committed");
}

}  // namespace cleave::inline checkpoint
