#include "cleave/format/safetensors.h"

#include <array>
#include <set>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/format/block.h"
#include "cleave/format/indexed_file.h"

namespace cleave::inline format {

namespace fs = std::filesystem;

Safetensors Safetensors::open(const fs::path& path, std::string_view stem) {
  Safetensors set;
  set.path_ = path.string();
  const fs::path single = path / str(stem, ".safetensors");
  const fs::path index = path / str(stem, ".safetensors.index.json");
  if (!fs::is_directory(path)) {
    set.add_file(File::open_read(path), path.filename().string());
  } else if (fs::exists(single)) {
    set.add_file(File::open_read(single), single.filename().string());
  } else {
    CLEAVE_CHECK(fs::exists(index), Code::kIo, path.string(), " has neither ",
                 single.filename().string(), " nor ", index.filename().string(),
                 "; expected a model folder");
    const auto weight_map = read_weight_map(index);
    std::set<std::string> names;
    for (const auto& [tensor, file] : weight_map) names.insert(file);
    for (const std::string& name : names) set.add_file(open_indexed(index, name), name);
    std::map<std::string, std::string> found;
    for (const StoredTensor& t : set.tensors_) found[t.name] = set.files_[t.file].name;
    check_weight_map(weight_map, found, index.string());
  }
  return set;
}

void Safetensors::add_file(File file, std::string name) {
  const uint64_t size = file.size();
  std::array<std::byte, 8> first8{};
  if (size >= 8) file.read_at(0, first8);
  const uint64_t header_size = safetensors_header_size(first8.data(), size, file.path());
  std::string json(header_size, '\0');
  file.read_at(8, std::as_writable_bytes(std::span(json)));
  SafetensorsHeader header = parse_safetensors_header(json, size, file.path());
  files_.push_back({std::move(name), 8 + header_size, std::move(header.metadata), std::move(file)});
  for (StoredTensor& tensor : header.tensors) {
    tensor.file = files_.size() - 1;
    const StoredTensor* earlier = add(std::move(tensor));
    CLEAVE_CHECK(earlier == nullptr, Code::kFormat, path_, ": tensor '", tensors_.back().name,
                 "' is both in ", files_[earlier->file].name, " and in ", files_.back().name);
  }
}

std::vector<std::string> Safetensors::file_names() const {
  std::vector<std::string> names;
  for (const TensorFile& file : files_) names.push_back(file.name);
  return names;
}

void Safetensors::read_block(const StoredTensor& tensor, std::span<const Slice> slices,
                             std::span<std::byte> out) const {
  const StoredElements elements = {tensor.begin, item_bytes(tensor.dtype), tensor.shape};
  read_elements(files_[tensor.file].file, elements, slices, out, str("tensor '", tensor.name, "'"));
}

bool has_safetensors(const fs::path& folder, std::string_view stem) {
  return fs::exists(folder / str(stem, ".safetensors")) ||
         fs::exists(folder / str(stem, ".safetensors.index.json"));
}

}  // namespace cleave::inline format
