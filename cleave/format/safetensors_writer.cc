#include "cleave/format/safetensors_writer.h"

#include <algorithm>
#include <nlohmann/json.hpp>
#include <set>
#include <utility>

#include "cleave/base/checked.h"
#include "cleave/base/hash.h"
#include "cleave/format/block.h"

namespace cleave::inline format {
namespace {

constexpr size_t kMaxTensorsPerFile = 16384;  // far below the reader's limits

uint64_t bytes_of(const TensorInfo& tensor) {
  return checked_mul(num_elements(tensor.shape, tensor.name),
                     static_cast<uint64_t>(item_bytes(tensor.dtype)), tensor.name);
}

/// Distributes the tensors over files in order; a tensor that does not fit begins a new file.
std::vector<std::vector<StoredTensor>> fill_files(const std::vector<TensorInfo>& tensors,
                                                  uint64_t max_file_bytes) {
  std::vector<std::vector<StoredTensor>> files(1);
  uint64_t filled = 0;
  for (const TensorInfo& tensor : tensors) {
    const uint64_t bytes = bytes_of(tensor);
    const bool is_full = checked_add(filled, bytes, tensor.name) > max_file_bytes ||
                         files.back().size() >= kMaxTensorsPerFile;
    if (!files.back().empty() && is_full) {
      files.emplace_back();
      filled = 0;
    }
    files.back().push_back({tensor, files.size() - 1, 0, 0});
    filled += bytes;
  }
  return files;
}

/// Assigns offsets to the tensors of one file, large elements first so that all are aligned, and
/// creates the file's head.
PlannedFile place(std::vector<StoredTensor>& tensors, const SafetensorsPlanOptions& options) {
  std::stable_sort(tensors.begin(), tensors.end(), [](const auto& a, const auto& b) {
    return item_bytes(a.dtype) > item_bytes(b.dtype);
  });
  nlohmann::ordered_json header;
  if (!options.metadata.empty()) header["__metadata__"] = options.metadata;
  uint64_t filled = 0;
  for (StoredTensor& tensor : tensors) {
    tensor.begin = filled;
    tensor.end = filled = checked_add(filled, bytes_of(tensor), tensor.name);
    header[tensor.name] = {{"dtype", file_name(tensor.dtype)},
                           {"shape", tensor.shape},
                           {"data_offsets", {tensor.begin, tensor.end}}};
  }
  std::string json = header.is_null() ? "{}" : header.dump();
  json.resize((json.size() + 7) / 8 * 8, ' ');
  PlannedFile file;
  for (uint64_t size = json.size(), i = 0; i < 8; ++i, size >>= 8) {
    file.head.push_back(static_cast<char>(size & 0xff));
  }
  file.head += json;
  file.size = checked_add(file.head.size(), filled, "file");
  for (StoredTensor& tensor : tensors) {
    tensor.begin += file.head.size();
    tensor.end += file.head.size();
  }
  return file;
}

}  // namespace

std::string part_file_name(std::string_view stem, std::string_view extension, size_t number,
                           size_t count) {
  if (count == 1) return str(stem, extension);
  const auto five = [](size_t n) {
    const std::string digits = std::to_string(n);
    return std::string(digits.size() < 5 ? 5 - digits.size() : 0, '0') + digits;
  };
  return str(stem, "-", five(number + 1), "-of-", five(count), extension);
}

std::string index_json(const std::vector<std::pair<std::string, std::string>>& tensor_files,
                       uint64_t total_bytes) {
  nlohmann::ordered_json weight_map;
  for (const auto& [tensor, file] : tensor_files) weight_map[tensor] = file;
  const nlohmann::ordered_json index = {{"metadata", {{"total_size", total_bytes}}},
                                        {"weight_map", std::move(weight_map)}};
  return index.dump(2) + "\n";
}

SafetensorsPlan::SafetensorsPlan(const std::vector<TensorInfo>& tensors,
                                 const SafetensorsPlanOptions& options) {
  std::set<std::string_view> names;
  for (const TensorInfo& tensor : tensors) {
    CLEAVE_CHECK(names.insert(tensor.name).second && tensor.name != "__metadata__", Code::kUsage,
                 "tensor '", tensor.name, "' has a reserved or duplicate name");
  }
  auto files = fill_files(tensors, options.max_file_bytes);
  std::vector<std::pair<std::string, std::string>> places;
  uint64_t total_size = 0;
  for (size_t i = 0; i < files.size(); ++i) {
    PlannedFile file = place(files[i], options);
    file.name = part_file_name(options.stem, ".safetensors", i, files.size());
    for (StoredTensor& tensor : files[i]) {
      places.emplace_back(tensor.name, file.name);
      total_size += tensor.end - tensor.begin;
      tensors_.push_back(std::move(tensor));
    }
    files_.push_back(std::move(file));
  }
  if (files.size() == 1) return;
  index_name_ = options.stem + ".safetensors.index.json";
  index_json_ = cleave::index_json(places, total_size);
}

uint64_t SafetensorsPlan::total_bytes() const {
  uint64_t total = index_json_.size();
  for (const PlannedFile& file : files_) total += file.size;
  return total;
}

void SafetensorsPlan::create_files(FolderWriter& folder) const {
  for (const PlannedFile& file : files_) folder.allocate_file(file.name, file.size, file.head);
  if (!index_json_.empty()) folder.write_file(index_name_, index_json_);
}

SafetensorsWriter::SafetensorsWriter(std::filesystem::path folder, const SafetensorsPlan& plan)
    : folder_(std::move(folder)), plan_(plan) {
  for (const StoredTensor& tensor : plan.tensors()) by_name_[tensor.name] = &tensor;
}

void SafetensorsWriter::write_block(std::string_view name, std::vector<Slice> slices,
                                    std::span<const std::byte> data) {
  const auto found = by_name_.find(name);
  CLEAVE_CHECK(found != by_name_.end(), Code::kUsage, "tensor '", name,
               "' is not among those to be written");
  const StoredTensor& tensor = *found->second;
  BlockWalk walk(tensor.shape, item_bytes(tensor.dtype), slices);
  CLEAVE_CHECK(walk.bytes() == data.size(), Code::kUsage, "tensor '", name, "': the block has ",
               walk.bytes(), " bytes; ", data.size(), " were given");
  if (data.empty() && tensor.begin != tensor.end) return;
  const std::string& file_name = plan_.files()[tensor.file].name;
  const uint64_t checksum = hash_bytes(data);
  File& file = open_[tensor.file];
  if (!file.is_open()) file = File::open_write(folder_ / file_name);
  while (const auto piece = walk.next()) {
    file.write_at(tensor.begin + piece->offset, data.first(piece->bytes));
    data = data.subspan(piece->bytes);
  }
  written_.push_back({file_name, tensor.name, std::move(slices), checksum});
}

std::vector<WrittenBlock> SafetensorsWriter::finish() {
  for (auto& [index, file] : open_) {
    file.sync();
    file.close();
  }
  open_.clear();
  return std::move(written_);
}

}  // namespace cleave::inline format
