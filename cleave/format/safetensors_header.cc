#include "cleave/format/safetensors_header.h"

#include <algorithm>

#include "cleave/base/checked.h"
#include "cleave/format/block.h"
#include "cleave/format/tensor_source.h"
#include "cleave/text/json.h"

namespace cleave::inline format {
namespace {

constexpr std::string_view kRemedy = "; get the file again, or use another checkpoint";

constexpr size_t kMaxDims = 64;

std::map<std::string, std::string> read_metadata(const Json& json) {
  if (!json.is(Json::Type::kObject)) json.fail("expected an object of strings");
  std::map<std::string, std::string> metadata;
  for (size_t i = 0; i < json.size(); ++i) metadata[json.key(i)] = json.at(i).as_string();
  return metadata;
}

std::vector<int64_t> read_shape(const Json& json) {
  if (!json.is(Json::Type::kArray)) json.fail("expected an array of sizes");
  if (json.size() > kMaxDims) json.fail(str("expected at most ", kMaxDims, " dims"));
  std::vector<int64_t> shape;
  for (size_t i = 0; i < json.size(); ++i) shape.push_back(json.at(i).as_int(0));
  return shape;
}

StoredTensor read_tensor(const std::string& name, const Json& json, const std::string& source) {
  check_tensor_name(name, source);
  if (!json.is(Json::Type::kObject))
    json.fail("expected an object with dtype, shape, data_offsets");
  for (size_t i = 0; i < json.size(); ++i) {
    const std::string& key = json.key(i);
    if (key != "dtype" && key != "shape" && key != "data_offsets") {
      json.at(i).fail("unknown field; expected dtype, shape and data_offsets");
    }
  }
  StoredTensor tensor;
  tensor.name = name;
  const Json dtype = json.at("dtype");
  const auto known = dtype_from_file_name(dtype.as_string());
  if (!known) dtype.fail("expected one of F32, F64, BF16, F16, I64, I32, I16, I8, U8, BOOL");
  tensor.dtype = *known;
  tensor.shape = read_shape(json.at("shape"));
  const Json offsets = json.at("data_offsets");
  if (!offsets.is(Json::Type::kArray) || offsets.size() != 2) offsets.fail("expected [begin, end]");
  tensor.begin = static_cast<uint64_t>(offsets.at(size_t{0}).as_int(0));
  tensor.end = static_cast<uint64_t>(offsets.at(size_t{1}).as_int(0));

  const std::string what = str(source, ": tensor '", name, "'");
  const uint64_t bytes = checked_mul(num_elements(tensor.shape, what),
                                     static_cast<uint64_t>(item_bytes(tensor.dtype)), what);
  const bool fits = tensor.begin <= tensor.end && tensor.end - tensor.begin == bytes;
  CLEAVE_CHECK(fits, Code::kFormat, what, " has data_offsets [", tensor.begin, ", ", tensor.end,
               "]; its shape and dtype need ", bytes, " bytes");
  return tensor;
}

/// Checks that every byte of the data belongs to exactly one tensor, and makes the offsets relative
/// to the file.
void check_coverage(std::vector<StoredTensor>& tensors, uint64_t data_begin, uint64_t file_size,
                    const std::string& source) {
  std::sort(tensors.begin(), tensors.end(), [](const StoredTensor& a, const StoredTensor& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.end < b.end;
  });
  uint64_t covered = 0;
  for (StoredTensor& tensor : tensors) {
    CLEAVE_CHECK(tensor.begin == covered, Code::kFormat, source, ": tensor '", tensor.name,
                 "' begins at byte ", tensor.begin, " of the data; expected ", covered,
                 tensor.begin < covered ? ", it overlaps another tensor" : ", there is a hole");
    covered = tensor.end;
    CLEAVE_CHECK(covered <= file_size - data_begin, Code::kFormat, source, ": tensor '",
                 tensor.name, "' ends at byte ", covered, " of the data; the file has ",
                 file_size - data_begin, " bytes of data, it is truncated", kRemedy);
    tensor.begin += data_begin;
    tensor.end += data_begin;
  }
  CLEAVE_CHECK(covered == file_size - data_begin, Code::kFormat, source, " has ",
               file_size - data_begin, " bytes of data; its tensors need ", covered, kRemedy);
}

}  // namespace

uint64_t safetensors_header_size(const std::byte* first8, uint64_t file_size,
                                 const std::string& source) {
  uint64_t size = 0;
  for (size_t i = file_size < 8 ? 0 : 8; i-- > 0;) {
    size = size << 8 | static_cast<uint64_t>(first8[i]);
  }
  const bool is_header = size > 0 && size <= kMaxSafetensorsHeader;
  CLEAVE_CHECK(is_header || source.ends_with(".safetensors"), Code::kFormat, source,
               ": is not a safetensors, .bin or GGUF file");
  CLEAVE_CHECK(file_size >= 8, Code::kFormat, source, " has ", file_size,
               " bytes; a safetensors file has at least 8, it is truncated", kRemedy);
  CLEAVE_CHECK(is_header, Code::kFormat, source, ": header of ", size, " bytes; expected 1 to ",
               kMaxSafetensorsHeader, ", perhaps this is not a safetensors file");
  CLEAVE_CHECK(size <= file_size - 8, Code::kFormat, source, ": header of ", size,
               " bytes; the file has ", file_size, " in total, it is truncated", kRemedy);
  return size;
}

SafetensorsHeader parse_safetensors_header(std::string_view json, uint64_t file_size,
                                           const std::string& source) {
  CLEAVE_CHECK(!json.empty() && json.front() == '{', Code::kFormat, source,
               ": the header does not begin with '{'");
  const size_t last = json.find_last_not_of(' ');
  CLEAVE_CHECK(json[last] == '}', Code::kFormat, source,
               ": the header does not end in '}' and spaces");
  JsonLimits limits;
  limits.max_bytes = kMaxSafetensorsHeader;
  limits.max_depth = 4;
  limits.max_values = kMaxSafetensorsValues;
  const Json root = Json::parse(json, source, limits);
  SafetensorsHeader header;
  for (size_t i = 0; i < root.size(); ++i) {
    if (root.key(i) == "__metadata__") {
      header.metadata = read_metadata(root.at(i));
    } else {
      header.tensors.push_back(read_tensor(root.key(i), root.at(i), source));
    }
  }
  check_coverage(header.tensors, 8 + json.size(), file_size, source);
  return header;
}

}  // namespace cleave::inline format
