#include "cleave/format/torch_bin.h"

#include <set>

#include "cleave/base/error.h"
#include "cleave/format/indexed_file.h"

namespace cleave::inline format {
namespace {

namespace fs = std::filesystem;

fs::path single_path(const fs::path& folder) {
  return folder / str(kTorchBinStem, ".bin");
}
fs::path index_path(const fs::path& folder) {
  return folder / str(kTorchBinStem, ".bin.index.json");
}

}  // namespace

std::vector<std::pair<std::string, SavedTensor>> state_dict_tensors(const SavedValue& value,
                                                                    const std::string& source) {
  const auto* dict = value.get<SavedDict>();
  CLEAVE_CHECK(dict != nullptr, Code::kFormat, source, " holds ", value.kind(),
               "; expected a dict from names to tensors");
  std::vector<std::pair<std::string, SavedTensor>> tensors;
  for (const auto& [key, member] : *dict) {
    const auto* name = std::get_if<std::string>(&key);
    CLEAVE_CHECK(name != nullptr, Code::kFormat, source, " has the number ",
                 name == nullptr ? std::get<int64_t>(key) : 0,
                 " as a key; expected names of tensors");
    check_tensor_name(*name, source);
    const auto* tensor = member.get<SavedTensor>();
    CLEAVE_CHECK(tensor != nullptr, Code::kFormat, source, ": '", *name, "' is ", member.kind(),
                 "; expected a tensor, as a model's state dict has");
    tensors.emplace_back(*name, *tensor);
  }
  return tensors;
}

TorchBin TorchBin::open(const fs::path& path) {
  TorchBin set;
  set.path_ = path.string();
  if (!fs::is_directory(path)) {
    set.add_file(TorchFile::open(path), path.filename().string());
    return set;
  }
  const fs::path single = single_path(path);
  if (fs::exists(single)) {
    set.add_file(TorchFile::open(single), single.filename().string());
    return set;
  }
  const fs::path index = index_path(path);
  CLEAVE_CHECK(fs::exists(index), Code::kIo, path.string(), " has neither ",
               single.filename().string(), " nor ", index.filename().string(),
               "; expected a model folder");
  const auto weight_map = read_weight_map(index);
  std::set<std::string> names;
  for (const auto& [tensor, file] : weight_map) names.insert(file);
  for (const std::string& name : names) {
    set.add_file(TorchFile(open_indexed(index, name)), name);
  }
  std::map<std::string, std::string> found;
  for (const TorchBinTensor& t : set.tensors_) found[t.name] = set.names_[t.file];
  check_weight_map(weight_map, found, index.string());
  return set;
}

void TorchBin::add_file(TorchFile file, std::string name) {
  names_.push_back(std::move(name));
  for (const auto& [key, saved] : state_dict_tensors(file.value(), file.path())) {
    const TorchBinTensor* earlier = add({{key, saved.dtype, saved.shape}, saved, files_.size()});
    CLEAVE_CHECK(earlier == nullptr, Code::kFormat, path_, ": tensor '", key, "' is both in ",
                 names_[earlier->file], " and in ", names_.back());
  }
  files_.push_back(std::move(file));
}

void TorchBin::read_block(std::string_view name, std::span<const Slice> slices,
                          std::span<std::byte> out) const {
  const TorchBinTensor& tensor = at(name);
  files_[tensor.file].read_block(tensor.saved, slices, out);
}

bool has_torch_bin(const fs::path& folder) {
  return fs::exists(single_path(folder)) || fs::exists(index_path(folder));
}

}  // namespace cleave::inline format
