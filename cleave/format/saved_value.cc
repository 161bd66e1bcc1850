#include "cleave/format/saved_value.h"

#include <algorithm>
#include <array>

namespace cleave::inline format {
namespace {

std::vector<int64_t> row_major(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size());
  uint64_t stride = 1;  // can wrap only if another size is 0, when strides do not matter
  for (size_t dim = shape.size(); dim-- > 0;) {
    strides[dim] = static_cast<int64_t>(stride);
    if (shape[dim] > 1) stride *= static_cast<uint64_t>(shape[dim]);
  }
  return strides;
}

}  // namespace

SavedTensor SavedTensor::whole(DType dtype, std::vector<int64_t> shape, size_t storage) {
  std::vector<int64_t> strides = row_major(shape);
  return {dtype, std::move(shape), std::move(strides), 0, storage};
}

bool SavedTensor::is_contiguous() const {
  const std::vector<int64_t> wanted = row_major(shape);
  if (std::find(shape.begin(), shape.end(), 0) != shape.end()) return true;
  for (size_t dim = 0; dim < shape.size(); ++dim) {
    if (shape[dim] != 1 && strides[dim] != wanted[dim]) return false;
  }
  return true;
}

bool operator==(const SavedTuple& a, const SavedTuple& b) {
  return a.items == b.items;
}
bool operator==(const SavedValue& a, const SavedValue& b) {
  return a.content == b.content;
}
bool operator==(const SavedMember& a, const SavedMember& b) {
  return a.key == b.key && a.value == b.value;
}

const SavedValue* SavedValue::find(std::string_view key) const {
  const auto* dict = get<SavedDict>();
  if (dict == nullptr) return nullptr;
  for (const auto& [name, value] : *dict) {
    const std::string* text = std::get_if<std::string>(&name);
    if (text != nullptr && *text == key) return &value;
  }
  return nullptr;
}

std::string_view SavedValue::kind() const {
  constexpr std::array<std::string_view, 9> kKinds = {"None",    "a bool",   "an integer",
                                                      "a float", "a string", "a list",
                                                      "a tuple", "a dict",   "a tensor"};
  return kKinds[content.index()];
}

}  // namespace cleave::inline format
