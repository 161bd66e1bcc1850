#pragma once
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <variant>
#include <vector>

#include "cleave/text/json.h"

namespace cleave::inline chat::jinja {

class Object;
class Value;
struct List;
struct Dict;
struct Method;

/// The contents of values, which copies share.
using Text = std::shared_ptr<const std::string>;
/// A list or tuple.
using ListPtr = std::shared_ptr<const List>;
/// A dict.
using DictPtr = std::shared_ptr<const Dict>;
/// A method with its subject.
using MethodPtr = std::shared_ptr<const Method>;

/// A name or key that has no value. Prints as nothing; most operations on it are errors.
struct Undefined {
  Undefined() = default;
  /// Keeps the first 120 bytes: copies of the value copy the text.
  explicit Undefined(std::string text);

  std::string what;  ///< for messages: "'tools' is undefined"
};

/// An integer of more than 64 bits, as Python's have, in decimal digits. It can be printed and
/// compared for equality; a template that computes with it fails.
struct LongInt {
  Text digits;
};

/// A value of a template. Strings, lists and dicts are immutable and shared; an Object belongs to
/// the run of a template.
class Value {
 public:
  /// The value in its C++ type.
  using Data = std::variant<Undefined, std::nullptr_t, bool, int64_t, double, Text, ListPtr,
                            DictPtr, MethodPtr, Object*, LongInt>;

  Value() = default;                            ///< undefined
  Value(Data data) : data_(std::move(data)) {}  // NOLINT(google-explicit-constructor)
  template <class Number>
  requires std::same_as<Number, bool> || std::same_as<Number, int64_t> ||
      std::same_as<Number, double>
      Value(Number number) : data_(number) {}  // NOLINT(google-explicit-constructor)
  Value(std::nullptr_t none) : data_(none) {}  // NOLINT(google-explicit-constructor)
  // NOLINTNEXTLINE(google-explicit-constructor)
  Value(Undefined undefined) : data_(std::move(undefined)) {}
  Value(Object* object) : data_(object) {}  // NOLINT(google-explicit-constructor)
  /// A string.
  static Value text(std::string text);
  /// A list, or a tuple.
  static Value list(std::vector<Value> items, bool is_tuple = false);
  /// A dict. The keys must be distinct.
  static Value dict(std::vector<std::pair<Value, Value>> items);
  /// The value of a JSON text.
  static Value from_json(const Json& json);

  /// Whether the value has this type of Data.
  template <class T>
  [[nodiscard]] bool is() const {
    return std::holds_alternative<T>(data_);
  }
  /// The value in its type of Data, which it must have.
  template <class T>
  [[nodiscard]] const T& as() const {
    return std::get<T>(data_);
  }
  [[nodiscard]] bool is_undefined() const { return is<Undefined>(); }
  [[nodiscard]] bool is_none() const { return is<std::nullptr_t>(); }
  [[nodiscard]] bool is_text() const { return is<Text>(); }
  [[nodiscard]] bool is_list() const { return is<ListPtr>(); }
  [[nodiscard]] bool is_dict() const { return is<DictPtr>(); }
  /// A bool or an integer, which Python counts as one.
  [[nodiscard]] bool is_integral() const { return is<bool>() || is<int64_t>(); }
  [[nodiscard]] bool is_number() const { return is_integral() || is<double>(); }
  [[nodiscard]] const std::string& string() const { return *as<Text>(); }
  [[nodiscard]] const std::vector<Value>& items() const;
  [[nodiscard]] const std::vector<std::pair<Value, Value>>& members() const;
  /// The value as a double; call it only if is_number().
  [[nodiscard]] double number() const;
  /// The value of a bool or an integer.
  [[nodiscard]] int64_t integer() const;

  /// Python's bool().
  [[nodiscard]] bool truth() const;
  /// Levels of lists, dicts and methods; 0 for others.
  [[nodiscard]] int depth() const;
  /// Python's name of the type, for messages.
  [[nodiscard]] std::string_view type_name() const;

 private:
  Data data_;
};

/// A list or tuple.
struct List {
  std::vector<Value> items;
  bool is_tuple = false;
  int depth = 1;
};

/// A dict in the order of insertion.
struct Dict {
  std::vector<std::pair<Value, Value>> items;
  int depth = 1;
};

/// A method of a string, list or dict, with its subject.
struct Method {
  Value self;
  std::string name;
};

/// Arguments of a call.
struct Arguments {
  std::vector<Value> values{};
  std::vector<std::pair<std::string, Value>> named{};

  /// The argument at `index`, or of that name; null if neither is given.
  [[nodiscard]] const Value* find(size_t index, std::string_view name) const;
  /// As find(); `fallback` if it is missing.
  [[nodiscard]] Value get(size_t index, std::string_view name, const Value& fallback) const;
};

/// Counts what a run of a template uses. Throws Error(kFormat) when a limit is exceeded.
class Budget {
 public:
  Budget(uint64_t max_steps, uint64_t max_bytes) : steps_(max_steps), bytes_(max_bytes) {}
  void step(uint64_t count = 1);  ///< counts operations
  /// Counts a search in `text_bytes` for `wanted_bytes`, whose time may be their product.
  void search(uint64_t text_bytes, uint64_t wanted_bytes);
  void bytes(uint64_t count);  ///< counts bytes of new text and new values

 private:
  uint64_t steps_, bytes_;
};

/// Throws Error(kFormat). The interpreter puts file and line before it.
[[noreturn]] void fail(const std::string& message);

/// Python's ==, over the types that templates have.
bool equal(const Value& a, const Value& b, Budget& budget);
/// Python's <. Throws Error(kFormat) for types without an order.
bool less(const Value& a, const Value& b, Budget& budget);
/// Python's str(): what a template prints.
std::string to_text(const Value& value, Budget& budget);
/// Python's repr().
std::string to_repr(const Value& value, Budget& budget);
/// Python's repr() of a float.
std::string float_text(double value);

/// How json.dumps writes.
struct JsonStyle {
  bool ascii = false;       ///< escape all other characters
  bool sorted = false;      ///< keys in order
  bool multi_line = false;  ///< one element per line
  std::string indent{};     ///< of one level
  std::string item_separator = ", ";
  std::string key_separator = ": ";
};
/// Python's json.dumps(). Throws Error(kFormat) for values that JSON does not have.
std::string to_json(const Value& value, const JsonStyle& style, Budget& budget);

/// The member of a dict; null if it has none.
const Value* find_member(const Value& dict, const Value& key, Budget& budget);

}  // namespace cleave::inline chat::jinja
