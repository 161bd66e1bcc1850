#pragma once
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cleave/base/dtype.h"

namespace cleave::inline format {

/// A tensor inside a saved value: a view of one of the file's storages.
struct SavedTensor {
  DType dtype = DType::kF32;
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;  ///< in elements, one per dim, >= 0
  uint64_t first = 0;            ///< offset in the storage, in elements
  size_t storage = 0;            ///< index into the file's storages

  /// A row-major tensor that covers a whole storage.
  static SavedTensor whole(DType dtype, std::vector<int64_t> shape, size_t storage);
  [[nodiscard]] bool is_contiguous() const;  ///< row-major without gaps
  friend bool operator==(const SavedTensor&, const SavedTensor&) = default;
};

struct SavedMember;
struct SavedValue;
/// A Python list.
using SavedList = std::vector<SavedValue>;
/// A Python dict: members in order, keys unique.
using SavedDict = std::vector<SavedMember>;
/// Key of a dict.
using SavedKey = std::variant<int64_t, std::string>;

/// A Python tuple.
struct SavedTuple {
  SavedList items;
  friend bool operator==(const SavedTuple& a, const SavedTuple& b);
};

/// A value that torch.save wrote: None, bools, numbers, strings, tensors, and nested lists, tuples
/// and dicts of them.
struct SavedValue {
  /// std::monostate is None.
  std::variant<std::monostate, bool, int64_t, double, std::string, SavedList, SavedTuple, SavedDict,
               SavedTensor>
      content;

  /// The value if it has type T, otherwise null.
  template <class T>
  [[nodiscard]] const T* get() const {
    return std::get_if<T>(&content);
  }
  /// Member of a dict; null if this is not a dict or has no such key.
  [[nodiscard]] const SavedValue* find(std::string_view key) const;
  /// The type for messages: "a dict", "a tensor", ...
  [[nodiscard]] std::string_view kind() const;
  friend bool operator==(const SavedValue& a, const SavedValue& b);
};

/// Member of a dict.
struct SavedMember {
  SavedKey key;
  SavedValue value;
  friend bool operator==(const SavedMember& a, const SavedMember& b);
};

}  // namespace cleave::inline format
