#include "cleave/format/torch_writer.h"

#include <algorithm>
#include <map>
#include <string_view>
#include <utility>
#include <zlib.h>

#include "cleave/base/checked.h"
#include "cleave/format/block.h"

namespace cleave::inline format {
namespace {

// The entries around the storages. Any folder name works; torch uses the file's name.
constexpr std::string_view kPickleEntry = "archive/data.pkl", kOrderEntry = "archive/byteorder";
constexpr std::string_view kVersionEntry = "archive/version";
constexpr std::string_view kOrder = "little", kVersion = "3\n";
constexpr size_t kFirstStorage = 2;  // index of its entry

uint32_t checksum_of(std::span<const std::byte> bytes, uint32_t before = 0) {
  return static_cast<uint32_t>(
      crc32_z(before, reinterpret_cast<const Bytef*>(bytes.data()), bytes.size()));
}
std::span<const std::byte> bytes_of(std::string_view text) {
  return std::as_bytes(std::span(text));
}

using Found = std::map<size_t, SavedStorage>;

void add_storage(const SavedTensor& tensor, Found& found) {
  uint64_t end = checked_add(tensor.first, 1, "tensor");
  for (size_t dim = 0; dim < tensor.shape.size(); ++dim) {
    const auto last = static_cast<uint64_t>(std::max<int64_t>(tensor.shape[dim], 1) - 1);
    end = checked_add(
        end, checked_mul(last, static_cast<uint64_t>(tensor.strides.at(dim)), "tensor"), "tensor");
  }
  if (num_elements(tensor.shape, "tensor") == 0) end = 0;
  SavedStorage& storage = found[tensor.storage];
  CLEAVE_CHECK(storage.key.empty() || storage.dtype == tensor.dtype, Code::kUsage, "storage ",
               tensor.storage, " cannot be saved as ", name(storage.dtype), " and as ",
               name(tensor.dtype));
  storage = {std::to_string(tensor.storage), tensor.dtype, std::max(storage.num_elements, end)};
}

void find_storages(const SavedValue& value, Found& found) {
  if (const auto* tensor = value.get<SavedTensor>()) add_storage(*tensor, found);
  if (const auto* list = value.get<SavedList>()) {
    for (const SavedValue& item : *list) find_storages(item, found);
  }
  if (const auto* tuple = value.get<SavedTuple>()) {
    for (const SavedValue& item : tuple->items) find_storages(item, found);
  }
  if (const auto* dict = value.get<SavedDict>()) {
    for (const auto& [key, member] : *dict) find_storages(member, found);
  }
}

std::vector<SavedStorage> storages_of(const SavedValue& value) {
  Found found;
  find_storages(value, found);
  std::vector<SavedStorage> storages;
  for (auto& [index, storage] : found) {
    CLEAVE_CHECK(index == storages.size(), Code::kUsage, "no tensor uses storage ", storages.size(),
                 "; expected storages counted from 0 without gaps");
    storages.push_back(std::move(storage));
  }
  return storages;
}

std::vector<ZipPlan::Item> items_of(const std::vector<SavedStorage>& storages,
                                    const std::string& pickle) {
  std::vector<ZipPlan::Item> items = {{std::string(kPickleEntry), pickle.size()},
                                      {std::string(kOrderEntry), kOrder.size()}};
  for (const SavedStorage& storage : storages) {
    const auto item = static_cast<uint64_t>(item_bytes(storage.dtype));
    items.push_back(
        {str("archive/data/", storage.key), checked_mul(storage.num_elements, item, "storage")});
  }
  items.push_back({std::string(kVersionEntry), kVersion.size()});
  return items;
}

}  // namespace

SavedValue state_dict_of(const std::vector<TensorInfo>& tensors) {
  SavedDict dict;
  for (size_t i = 0; i < tensors.size(); ++i) {
    const TensorInfo& tensor = tensors[i];
    dict.push_back({tensor.name, {SavedTensor::whole(tensor.dtype, tensor.shape, i)}});
  }
  return {std::move(dict)};
}

TorchPlan::TorchPlan(const SavedValue& value)
    : storages_(storages_of(value)),
      pickle_(write_pickle(value, storages_)),
      zip_(items_of(storages_, pickle_)) {}

TorchWriter::TorchWriter(File file, const TorchPlan& plan)
    : file_(std::move(file)), plan_(plan), progress_(plan.storages().size()) {}

void TorchWriter::write(size_t storage, std::span<const std::byte> bytes) {
  const ZipEntry& entry = plan_.zip_.entries().at(kFirstStorage + storage);
  Progress& progress = progress_.at(storage);
  CLEAVE_CHECK(bytes.size() <= entry.end - entry.begin - progress.written, Code::kUsage, "storage ",
               storage, " has ", entry.end - entry.begin, " bytes; ",
               progress.written + bytes.size(), " were given");
  file_.write_at(entry.begin + progress.written, bytes);
  progress.written += bytes.size();
  progress.checksum = checksum_of(bytes, progress.checksum);
}

void TorchWriter::finish() {
  const std::vector<ZipEntry>& entries = plan_.zip_.entries();
  std::vector<uint32_t> checksums;
  const auto write_text = [&](size_t entry, std::string_view text) {
    file_.write_at(entries[entry].begin, bytes_of(text));
    checksums.push_back(checksum_of(bytes_of(text)));
  };
  write_text(0, plan_.pickle_);
  write_text(1, kOrder);
  for (size_t i = 0; i < progress_.size(); ++i) {
    const ZipEntry& entry = entries[kFirstStorage + i];
    CLEAVE_CHECK(progress_[i].written == entry.end - entry.begin, Code::kUsage, "storage ", i,
                 " has ", entry.end - entry.begin, " bytes; ", progress_[i].written, " were given");
    checksums.push_back(progress_[i].checksum);
  }
  write_text(entries.size() - 1, kVersion);
  plan_.zip_.write_headers(file_, checksums);
  file_.sync();
  file_.close();
}

}  // namespace cleave::inline format
