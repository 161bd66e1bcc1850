#include "cleave/format/safetensors.h"

#include <algorithm>
#include <array>
#include <cstring>
#include <set>
#include <utility>

#include "cleave/base/suggest.h"
#include "cleave/format/block.h"
#include "cleave/text/json.h"

namespace cleave {
namespace {

namespace fs = std::filesystem;

// Pieces below this size are not worth a system call each: their surroundings are read at once.
constexpr uint64_t kSmallPiece = 1024;
constexpr uint64_t kWindow = uint64_t{64} << 10;
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

/// Reads small pieces through a window of the file that moves forward.
class Window {
 public:
  Window(const File& file, uint64_t limit) : file_(file), limit_(limit) {}

  void copy(uint64_t offset, std::span<std::byte> out) {
    if (offset < begin_ || offset + out.size() > begin_ + buffer_.size()) {
      begin_ = offset;
      buffer_.resize(std::min(kWindow, limit_ - offset));
      file_.read_at(begin_, buffer_);
    }
    std::memcpy(out.data(), buffer_.data() + (offset - begin_), out.size());
  }

 private:
  const File& file_;
  uint64_t limit_;
  uint64_t begin_ = 0;
  std::vector<std::byte> buffer_;
};

std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  JsonLimits limits;
  limits.max_bytes = kMaxIndexBytes;
  limits.max_depth = 16;
  const Json index = Json::parse(read_file(path, kMaxIndexBytes), path.string(), limits);
  const Json weights = index.at("weight_map");
  if (!weights.is(Json::Type::kObject) || weights.size() == 0) {
    weights.fail("expected an object from tensor names to file names");
  }
  std::map<std::string, std::string> weight_map;
  for (size_t i = 0; i < weights.size(); ++i) {
    const Json file = weights.at(i);
    if (!is_file_name(file.as_string())) {
      file.fail("expected the name of a file in this folder, not a path");
    }
    weight_map[weights.key(i)] = file.as_string();
  }
  return weight_map;
}

}  // namespace

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
    for (const std::string& name : names) set.add_file(File::open_read_below(path, name), name);
    set.index_names();
    set.check_index(weight_map, index.string());
    return set;
  }
  set.index_names();
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
  for (StoredTensor& tensor : header.tensors) {
    tensor.file = files_.size();
    tensors_.push_back(std::move(tensor));
  }
  files_.push_back({std::move(name), 8 + header_size, std::move(header.metadata), std::move(file)});
}

void Safetensors::index_names() {
  for (size_t i = 0; i < tensors_.size(); ++i) {
    const auto [at, added] = by_name_.emplace(tensors_[i].name, i);
    CLEAVE_CHECK(added, Code::kFormat, path_, ": tensor '", tensors_[i].name, "' is both in ",
                 files_[tensors_[at->second].file].name, " and in ", files_[tensors_[i].file].name);
  }
}

void Safetensors::check_index(const std::map<std::string, std::string>& weight_map,
                              const std::string& source) const {
  for (const auto& [name, file] : weight_map) {
    const StoredTensor* tensor = find(name);
    CLEAVE_CHECK(tensor != nullptr, Code::kFormat, source, ": tensor '", name,
                 "' is not in the file it is said to be in, ", file);
    CLEAVE_CHECK(files_[tensor->file].name == file, Code::kFormat, source, ": tensor '", name,
                 "' is said to be in ", file, "; it is in ", files_[tensor->file].name);
  }
  for (const StoredTensor& tensor : tensors_) {
    CLEAVE_CHECK(weight_map.contains(tensor.name), Code::kFormat, source, ": tensor '", tensor.name,
                 "' of ", files_[tensor.file].name, " is missing from the index");
  }
}

const StoredTensor* Safetensors::find(std::string_view name) const {
  const auto at = by_name_.find(name);
  return at == by_name_.end() ? nullptr : &tensors_[at->second];
}

const StoredTensor& Safetensors::at(std::string_view name) const {
  if (const StoredTensor* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (const StoredTensor& tensor : tensors_) names.push_back(tensor.name);
  throw Error(Code::kFormat,
              str(path_, ": there is no tensor '", name, "'", did_you_mean(name, names)));
}

uint64_t Safetensors::block_bytes(const StoredTensor& tensor, std::span<const Slice> slices) {
  return BlockWalk(tensor.shape, item_bytes(tensor.dtype), slices).bytes();
}

void Safetensors::read_block(const StoredTensor& tensor, std::span<const Slice> slices,
                             std::span<std::byte> out) const {
  BlockWalk walk(tensor.shape, item_bytes(tensor.dtype), slices);
  CLEAVE_CHECK(walk.bytes() == out.size(), Code::kUsage, "tensor '", tensor.name,
               "': the block has ", walk.bytes(), " bytes; the memory for it ", out.size());
  const File& file = files_[tensor.file].file;
  Window window(file, tensor.begin + walk.end());
  while (const auto piece = walk.next()) {
    const auto to = out.first(piece->bytes);
    if (piece->bytes < kSmallPiece) {
      window.copy(tensor.begin + piece->offset, to);
    } else {
      file.read_at(tensor.begin + piece->offset, to);
    }
    out = out.subspan(piece->bytes);
  }
}

bool has_safetensors(const fs::path& folder, std::string_view stem) {
  return fs::exists(folder / str(stem, ".safetensors")) ||
         fs::exists(folder / str(stem, ".safetensors.index.json"));
}

}  // namespace cleave
