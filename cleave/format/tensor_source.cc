#include "cleave/format/tensor_source.h"

#include <algorithm>
#include <utility>

#include "cleave/base/error.h"
#include "cleave/base/suggest.h"
#include "cleave/file/file.h"
#include "cleave/file/model_path.h"
#include "cleave/format/block.h"
#include "cleave/format/gguf.h"
#include "cleave/format/safetensors.h"
#include "cleave/format/torch_bin.h"
#include "cleave/text/json.h"

namespace cleave::inline format {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kModelStem = "model";
constexpr uint64_t kMaxIndexBytes = uint64_t{64} << 20;

/// Refuses a folder that has some of several files and not their index.
void require_index(const fs::path& folder, std::string_view stem, std::string_view extension) {
  const std::string begin = str(stem, "-");
  for (const fs::directory_entry& entry : fs::directory_iterator(folder)) {
    const fs::path name = entry.path().filename();
    const bool is_part = name.string().starts_with(begin) && name.extension() == extension;
    CLEAVE_CHECK(!is_part, Code::kIo, folder.string(), " has files such as ", name.string(),
                 " and no ", stem, extension,
                 ".index.json, which names the tensors of each; "
                 "copy it from where the files are from",
                 download_advice(folder));
  }
}

}  // namespace

const TensorInfo& TensorSource::at(std::string_view name) const {
  if (const TensorInfo* tensor = find(name)) return *tensor;
  std::vector<std::string> names;
  for (TensorInfo& tensor : list()) names.push_back(std::move(tensor.name));
  throw Error(Code::kFormat,
              str(path(), ": there is no tensor '", name, "'", did_you_mean(name, names)));
}

void TensorSource::read_int4(std::string_view name, const Int4Block& /*block*/,
                             const Int4Memory& /*out*/) const {
  CLEAVE_BUG(path(), ": tensor '", name, "' is not in 4 bits");
}

uint64_t block_bytes(const TensorInfo& tensor, std::span<const Slice> slices) {
  return BlockWalk(tensor.shape, item_bytes(tensor.dtype), slices).bytes();
}

uint64_t checked_block_bytes(const TensorInfo& tensor, std::span<const Slice> slices,
                             std::span<const std::byte> out) {
  const uint64_t bytes = block_bytes(tensor, slices);
  CLEAVE_CHECK(bytes == out.size(), Code::kUsage, tensor.name, ": the block has ", bytes,
               " bytes; the memory for it ", out.size());
  return bytes;
}

std::unique_ptr<TensorSource> open_tensors(const fs::path& path, std::string_view stem) {
  if (is_gguf(path)) return std::make_unique<Gguf>(Gguf::open(path));
  const bool is_folder = fs::is_directory(path);
  const fs::path older_adapter = path / str(stem, ".bin");
  if (is_folder && stem != kModelStem && !has_safetensors(path, stem) &&
      fs::exists(older_adapter)) {
    return std::make_unique<TorchBin>(TorchBin::open(older_adapter));
  }
  if (is_folder ? !has_safetensors(path, stem) && has_torch_bin(path)
                : is_torch_file_name(path.filename().string())) {
    return std::make_unique<TorchBin>(TorchBin::open(path));
  }
  if (is_folder && !has_safetensors(path, stem)) {
    require_index(path, stem, ".safetensors");
    require_index(path, kTorchBinStem, ".bin");
    std::string advice = download_advice(path);
    if (const fs::path sizes = path / "config.json"; advice.empty() && fs::exists(sizes)) {
      advice = str("; cleave train --model ", sizes.string(), " makes new weights");
    }
    throw Error(Code::kIo, str(path.string(), " has neither ", stem, ".safetensors nor ",
                               stem == kModelStem ? kTorchBinStem : stem,
                               ".bin, nor their index files; expected a model folder", advice));
  }
  return std::make_unique<Safetensors>(Safetensors::open(path, stem));
}

std::map<std::string, std::string> read_weight_map(const fs::path& path) {
  JsonLimits limits;
  limits.max_bytes = kMaxIndexBytes;
  limits.max_depth = 16;
  limits.max_values = size_t{1} << 19;
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

void check_weight_map(const std::map<std::string, std::string>& weight_map,
                      const std::map<std::string, std::string>& found, const std::string& source) {
  for (const auto& [name, file] : weight_map) {
    const auto at = found.find(name);
    CLEAVE_CHECK(at != found.end(), Code::kFormat, source, ": tensor '", name,
                 "' is not in the file that the index names, ", file);
    CLEAVE_CHECK(at->second == file, Code::kFormat, source, ": the index has tensor '", name,
                 "' in ", file, "; it is in ", at->second);
  }
  for (const auto& [name, file] : found) {
    CLEAVE_CHECK(weight_map.contains(name), Code::kFormat, source, ": tensor '", name, "' of ",
                 file, " is missing from the index");
  }
}

void check_tensor_name(std::string_view name, const std::string& source) {
  const bool is_printable = std::all_of(name.begin(), name.end(), [](char c) {
    return static_cast<unsigned char>(c) >= 0x20 && c != 0x7f;
  });
  CLEAVE_CHECK(is_printable && !name.empty(), Code::kFormat, source, ": a tensor's name of ",
               name.size(), " bytes is empty or has control characters; expected a printable name");
  CLEAVE_CHECK(name.size() <= kMaxTensorName, Code::kFormat, source, ": a tensor's name has ",
               name.size(), " bytes; expected at most ", kMaxTensorName);
}

void for_each_chunk(const TensorInfo& tensor, const std::vector<Slice>& slices,
                    const std::function<void(const std::vector<Slice>&)>& take,
                    uint64_t most_bytes) {
  const uint64_t bytes = block_bytes(tensor, slices);
  if (bytes <= most_bytes || tensor.shape.empty()) return take(slices);
  std::vector<Slice> piece = slices;
  auto rows = std::find_if(piece.begin(), piece.end(), [](const Slice& s) { return s.dim == 0; });
  if (rows == piece.end()) rows = piece.insert(rows, {0, {{0, tensor.shape[0]}}});
  const std::vector<Range> ranges = std::exchange(rows->ranges, {});
  uint64_t num_rows = 0;
  for (const Range& range : ranges) num_rows += static_cast<uint64_t>(range.size());
  const auto most = static_cast<int64_t>(std::max<uint64_t>(1, most_bytes * num_rows / bytes));
  int64_t held = 0;
  for (Range left : ranges) {
    while (left.size() > 0) {
      const int64_t now = std::min(left.size(), most - held);
      rows->ranges.push_back({left.begin, left.begin + now});
      left.begin += now;
      held += now;
      if (held < most) continue;
      take(piece);
      rows->ranges.clear();
      held = 0;
    }
  }
  if (held > 0) take(piece);
}

}  // namespace cleave::inline format
