#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cleave/base/dtype.h"

namespace cleave {

/// A tensor inside a saved value: a view of one of the file's storages.
struct SavedTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  ///< in elements, one a dim, >= 0
  uint64_t first = 0;            ///< element of the storage where the tensor begins
  size_t storage = 0;            ///< index among the file's storages

  /// A whole storage, row-major.
  static SavedTensor whole(DType dtype, std::vector<int64_t> shape, size_t storage);
  [[nodiscard]] bool is_contiguous() const;  ///< row-major without gaps
  friend bool operator==(const SavedTensor&, const SavedTensor&) = default;
};

struct SavedMember;
struct SavedValue;
/// A list, and a dict: members in order, keys unique.
using SavedList = std::vector<SavedValue>;
using SavedDict = std::vector<SavedMember>;
/// Key of a dict.
using SavedKey = std::variant<int64_t, std::string>;

/// A tuple: as a list, but of another type in Python.
struct SavedTuple {
  SavedList items;
  friend bool operator==(const SavedTuple& a, const SavedTuple& b);
};

/// What torch.save wrote: None, numbers, texts, lists, tuples, dicts and tensors, nested.
struct SavedValue {
  /// std::monostate: None.
  std::variant<std::monostate, bool, int64_t, double, std::string, SavedList, SavedTuple, SavedDict,
               SavedTensor>
      content;

  /// The alternative T, null when the value is another.
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&content);
  }
  /// Member of a dict; null when this is no dict or has no such key.
  [[nodiscard]] const SavedValue* find(std::string_view key) const;
  /// "a dict", "a tensor", ... for messages.
  [[nodiscard]] std::string_view kind() const;
  friend bool operator==(const SavedValue& a, const SavedValue& b);
};

/// Member of a dict.
struct SavedMember {
  SavedKey key;
  SavedValue value;
  friend bool operator==(const SavedMember& a, const SavedMember& b);
};

}  // namespace cleave
