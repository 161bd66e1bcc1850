// Reads pickles: a stack machine that can only build values.
//   1. Each operation pushes a node, joins nodes, or stores one in the memo. A node has 16 bytes,
//      an operation creates at most one; nodes, uses of nodes, marks and memo entries are bounded.
//   2. After STOP the remaining node becomes a SavedValue. Nodes may be shared (a tuple of
//      constants), so the size of the expanded value is bounded: its number of values, and the
//      bytes of its strings and shapes.
// Source: Python's pickletools module, protocol 2.
#include <algorithm>
#include <array>
#include <bit>
#include <deque>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <unordered_map>

#include "cleave/base/checked.h"
#include "cleave/format/block.h"
#include "cleave/format/pickle.h"
#include "cleave/text/utf8.h"

namespace cleave::inline format {
namespace {

constexpr size_t kMaxDims = 64;

/// The names that a pickle may use: the first four build values, the others are element types.
enum class Name : uint8_t { kOrderedDict, kTensor, kParameter, kSize, kStorageType };
struct KnownName {
  std::string_view module, name;
  Name meaning;
  DType dtype = DType::kF32;
};
constexpr std::array kKnownNames{
    KnownName{"collections", "OrderedDict", Name::kOrderedDict},
    KnownName{"torch._utils", "_rebuild_tensor_v2", Name::kTensor},
    KnownName{"torch._utils", "_rebuild_parameter", Name::kParameter},
    KnownName{"torch", "Size", Name::kSize},
    KnownName{"torch", "FloatStorage", Name::kStorageType, DType::kF32},
    KnownName{"torch", "DoubleStorage", Name::kStorageType, DType::kF64},
    KnownName{"torch", "BFloat16Storage", Name::kStorageType, DType::kBf16},
    KnownName{"torch", "HalfStorage", Name::kStorageType, DType::kF16},
    KnownName{"torch", "LongStorage", Name::kStorageType, DType::kI64},
    KnownName{"torch", "IntStorage", Name::kStorageType, DType::kI32},
    KnownName{"torch", "ShortStorage", Name::kStorageType, DType::kI16},
    KnownName{"torch", "CharStorage", Name::kStorageType, DType::kI8},
    KnownName{"torch", "ByteStorage", Name::kStorageType, DType::kU8},
    KnownName{"torch", "BoolStorage", Name::kStorageType, DType::kBool}};

uint64_t shape_bytes(const SavedTensor& tensor) {
  return (tensor.shape.size() + tensor.strides.size()) * sizeof(int64_t);
}

class Unpickler {
 public:
  Unpickler(std::string_view bytes, const std::string& source) : bytes_(bytes), source_(source) {}

  Unpickled run() {
    check(bytes_.size() <= kMaxPickleBytes, "the pickle has ", bytes_.size(),
          " bytes; expected at most ", kMaxPickleBytes);
    check(!bytes_.empty() && bytes_[0] == '\x80', "the pickle does not begin with its protocol");
    while (!is_stopped_) step();
    check(at_ == bytes_.size(), "there are bytes after the pickle's end");
    check(stack_.size() == 1 && marks_.empty(), "the pickle leaves ", stack_.size(), " values and ",
          marks_.size(), " marks; expected one value");
    Unpickled unpickled;
    unpickled.value = build(stack_[0], 0);
    unpickled.storages = std::move(storages_);
    return unpickled;
  }

 private:
  enum class Kind : uint8_t {
    kNone,
    kBool,
    kInt,
    kFloat,
    kText,   // bits: offset << 32 | length
    kTuple,  // bits of these four: index into children_
    kList,
    kDict,  // children: key, value, key, ...
    kOrderedDict,
    kName,     // bits: index into kKnownNames
    kStorage,  // bits: index into storages_
    kTensor,   // bits: index into tensors_
  };
  struct Node {
    Kind kind = Kind::kNone;
    uint64_t bits = 0;
  };
  using Index = uint32_t;

  template <class... Parts>
  void check(bool holds, const Parts&... parts) const {
    if (!holds) [[unlikely]] {
      throw Error(Code::kFormat, str(source_, ": ", parts..., " (byte ", at_, " of the pickle)"));
    }
  }

  // Bytes of the pickle.
  std::string_view take(size_t count) {
    check(count <= bytes_.size() - at_, "the pickle ends where ", count,
          " more bytes are expected");
    const std::string_view taken = bytes_.substr(at_, count);
    at_ += count;
    return taken;
  }
  uint64_t take_number(size_t num_bytes) {
    const std::string_view raw = take(num_bytes);
    uint64_t value = 0;
    for (size_t i = num_bytes; i-- > 0;) value = value << 8 | static_cast<unsigned char>(raw[i]);
    return value;
  }
  int64_t take_signed(size_t num_bytes) {
    if (num_bytes == 0) return 0;
    const size_t unused = 64 - 8 * num_bytes;
    return static_cast<int64_t>(take_number(num_bytes) << unused) >> unused;
  }
  std::string_view take_line() {
    const size_t end = bytes_.find('\n', at_);
    check(end != std::string_view::npos, "a name in the pickle has no end");
    const std::string_view line = take(end - at_);
    take(1);
    return line;
  }

  // The stack.
  void push(Kind kind, uint64_t bits = 0) {
    check(nodes_.size() < kMaxPickleValues, "the pickle has more than ", kMaxPickleValues,
          " values");
    push_again(static_cast<Index>(nodes_.size()));
    nodes_.push_back({kind, bits});
  }
  void push_again(Index index) {
    check(++num_pushed_ <= 2 * kMaxPickleValues, "the pickle uses values more than ",
          2 * kMaxPickleValues, " times");
    stack_.push_back(index);
  }
  void push_group(Kind kind, std::vector<Index> children) {
    push(kind, children_.size());
    children_.push_back(std::move(children));
  }
  [[nodiscard]] size_t floor() const { return marks_.empty() ? 0 : marks_.back(); }
  Index top() const {
    check(stack_.size() > floor(), "the pickle pops a value where there is none");
    return stack_.back();
  }
  Index pop() {
    const Index index = top();
    stack_.pop_back();
    return index;
  }
  std::vector<Index> pop_to_mark() {
    check(!marks_.empty(), "the pickle pops to a mark where there is none");
    const auto begin = stack_.begin() + static_cast<std::ptrdiff_t>(marks_.back());
    std::vector<Index> items(begin, stack_.end());
    stack_.erase(begin, stack_.end());
    marks_.pop_back();
    return items;
  }
  std::vector<Index> pop_several(size_t count) {
    std::vector<Index> items(count);
    for (size_t i = count; i-- > 0;) items[i] = pop();
    return items;
  }

  // Nodes.
  std::vector<Index>& children(Index index) { return children_[nodes_[index].bits]; }
  [[nodiscard]] bool is_dict(Index index) const {
    return nodes_[index].kind == Kind::kDict || nodes_[index].kind == Kind::kOrderedDict;
  }
  std::string_view text(Index index) const {
    check(nodes_[index].kind == Kind::kText, "expected a string");
    return bytes_.substr(nodes_[index].bits >> 32, nodes_[index].bits & UINT32_MAX);
  }
  uint64_t whole_number(Index index) const {
    const Node& node = nodes_[index];
    check(node.kind == Kind::kInt && static_cast<int64_t>(node.bits) >= 0,
          "a tensor's size, stride or offset is not an integer or is negative");
    return node.bits;
  }
  std::vector<int64_t> sizes(Index index) {
    check(nodes_[index].kind == Kind::kTuple && children(index).size() <= kMaxDims,
          "a tensor's shape or strides are not a tuple, or have more than ", kMaxDims, " dims");
    std::vector<int64_t> values;
    for (const Index child : children(index)) {
      values.push_back(static_cast<int64_t>(whole_number(child)));
    }
    return values;
  }
  const KnownName& known_name(Index index) const {
    check(nodes_[index].kind == Kind::kName, "the pickle calls a value that is not a name");
    return kKnownNames[nodes_[index].bits];
  }

  // Operations.
  void step();
  bool step_constant(char operation);
  bool step_group(char operation);
  bool step_memo(char operation);
  void push_text(size_t num_bytes);
  void push_name();
  void append(Index list, std::span<const Index> items);
  void set_items(Index dict, std::span<const Index> items);
  void call();
  void set_state();
  void push_storage();
  void push_tensor(std::vector<Index> arguments);

  // The result.
  /// Counts bytes of strings and shapes before they are copied.
  void grow(uint64_t num_bytes) {
    num_grown_ += num_bytes;
    check(num_grown_ <= bytes_.size() + kMaxPickleGrowth,
          "the pickle's strings and shapes, counted with repetitions, have more than ",
          bytes_.size() + kMaxPickleGrowth, " bytes");
  }
  std::string shared_text(Index index) {
    grow(text(index).size());
    return std::string(text(index));
  }
  SavedValue build(Index index, int depth);
  SavedList build_items(Index index, int depth);
  SavedDict build_dict(Index index, int depth);

  std::string_view bytes_;
  const std::string& source_;
  size_t at_ = 0;
  bool is_stopped_ = false;
  // Deques, because a vector holds its elements twice while it grows.
  std::deque<Node> nodes_;
  std::deque<std::vector<Index>> children_;
  std::vector<Index> stack_;
  std::vector<size_t> marks_;
  std::unordered_map<uint32_t, Index> memo_;
  std::vector<SavedStorage> storages_;
  std::map<std::string, size_t, std::less<>> storage_of_key_;
  std::vector<SavedTensor> tensors_;
  uint64_t num_pushed_ = 0, num_built_ = 0, num_grown_ = 0;
};

void Unpickler::step() {
  const char operation = take(1)[0];
  if (step_constant(operation) || step_group(operation) || step_memo(operation)) return;
  switch (operation) {
    case '\x80': {
      const uint64_t protocol = take_number(1);
      check(protocol == 2 && at_ == 2, "the pickle sets protocol ", protocol,
            "; expected protocol 2, once and first");
      return;
    }
    case 'c':
      return push_name();
    case 'R':
      return call();
    case 'b':
      return set_state();
    case 'Q':
      return push_storage();
    case '.':
      is_stopped_ = true;
      return;
    default:
      check(false, "operation ", static_cast<int>(static_cast<unsigned char>(operation)),
            " is not among those that torch.save writes");
  }
}

bool Unpickler::step_constant(char operation) {
  switch (operation) {
    case 'N':
      push(Kind::kNone);
      return true;
    case '\x88':
      push(Kind::kBool, 1);
      return true;
    case '\x89':
      push(Kind::kBool, 0);
      return true;
    case 'K':
      push(Kind::kInt, take_number(1));
      return true;
    case 'M':
      push(Kind::kInt, take_number(2));
      return true;
    case 'J':
      push(Kind::kInt, static_cast<uint64_t>(take_signed(4)));
      return true;
    case '\x8a': {
      const uint64_t num_bytes = take_number(1);
      check(num_bytes <= 8, "an integer of ", num_bytes, " bytes does not fit in 64 bits");
      push(Kind::kInt, static_cast<uint64_t>(take_signed(num_bytes)));
      return true;
    }
    case 'G': {
      uint64_t bits = 0;  // the only big-endian number of the format
      for (const char byte : take(8)) bits = bits << 8 | static_cast<unsigned char>(byte);
      push(Kind::kFloat, bits);
      return true;
    }
    case 'X':
      push_text(take_number(4));
      return true;
    case 'U':
      push_text(take_number(1));
      return true;
    default:
      return false;
  }
}

bool Unpickler::step_group(char operation) {
  switch (operation) {
    case '(':
      check(marks_.size() < kMaxPickleValues, "the pickle has more than ", kMaxPickleValues,
            " open marks");
      marks_.push_back(stack_.size());
      return true;
    case ')':
      push_group(Kind::kTuple, {});
      return true;
    case ']':
      push_group(Kind::kList, {});
      return true;
    case '}':
      push_group(Kind::kDict, {});
      return true;
    case 't':
      push_group(Kind::kTuple, pop_to_mark());
      return true;
    case '\x85':
      push_group(Kind::kTuple, pop_several(1));
      return true;
    case '\x86':
      push_group(Kind::kTuple, pop_several(2));
      return true;
    case '\x87':
      push_group(Kind::kTuple, pop_several(3));
      return true;
    case 'a':
    case 'e': {
      const std::vector<Index> items = operation == 'e' ? pop_to_mark() : pop_several(1);
      append(top(), items);
      return true;
    }
    case 's':
    case 'u': {
      const std::vector<Index> items = operation == 'u' ? pop_to_mark() : pop_several(2);
      set_items(top(), items);
      return true;
    }
    default:
      return false;
  }
}

bool Unpickler::step_memo(char operation) {
  const bool is_long = operation == 'r' || operation == 'j';
  switch (operation) {
    case 'q':
    case 'r':
      memo_[static_cast<uint32_t>(take_number(is_long ? 4 : 1))] = top();
      check(memo_.size() <= kMaxPickleValues, "the pickle's memo has more than ", kMaxPickleValues,
            " entries");
      return true;
    case 'h':
    case 'j': {
      const auto entry = static_cast<uint32_t>(take_number(is_long ? 4 : 1));
      const auto found = memo_.find(entry);
      check(found != memo_.end(), "the pickle reads entry ", entry,
            " of its memo, which is not set");
      push_again(found->second);
      return true;
    }
    default:
      return false;
  }
}

void Unpickler::push_text(size_t num_bytes) {
  const size_t begin = at_;
  const std::string_view bytes = take(num_bytes);
  check(first_bad_utf8(bytes) == bytes.size(), "a string of the pickle is not UTF-8");
  push(Kind::kText, begin << 32 | num_bytes);
}

void Unpickler::push_name() {
  const std::string_view module = take_line();
  const std::string_view name = take_line();
  constexpr size_t kShown = 100;
  for (size_t i = 0; i < kKnownNames.size(); ++i) {
    if (kKnownNames[i].module == module && kKnownNames[i].name == name) {
      return push(Kind::kName, i);
    }
  }
  check(false, "the pickle uses '", replace_bad_utf8(module.substr(0, kShown)), ".",
        replace_bad_utf8(name.substr(0, kShown)),
        "', which is not one of the names that plain tensors need; no code was run");
}

void Unpickler::append(Index list, std::span<const Index> items) {
  check(nodes_[list].kind == Kind::kList, "the pickle appends to a value that is not a list");
  auto& to = children(list);
  to.insert(to.end(), items.begin(), items.end());
}

void Unpickler::set_items(Index dict, std::span<const Index> items) {
  check(is_dict(dict), "the pickle sets members of a value that is not a dict");
  check(items.size() % 2 == 0, "the pickle sets a key without a value");
  auto& to = children(dict);
  to.insert(to.end(), items.begin(), items.end());
}

void Unpickler::call() {
  const Index argument = pop();
  const KnownName& callee = known_name(pop());
  check(nodes_[argument].kind == Kind::kTuple, "the pickle calls ", callee.name,
        " with a value that is not a tuple");
  const std::vector<Index> arguments = children(argument);
  const auto expect = [&](size_t count) {
    check(arguments.size() == count, callee.name, " is called with ", arguments.size(),
          " values; expected ", count);
  };
  switch (callee.meaning) {
    case Name::kOrderedDict:
      expect(0);
      return push_group(Kind::kOrderedDict, {});
    case Name::kTensor:
      expect(6);
      return push_tensor(arguments);
    case Name::kParameter:
      expect(3);
      check(nodes_[arguments[0]].kind == Kind::kTensor, "a parameter's data is not a tensor");
      push_again(arguments[0]);
      return;
    case Name::kSize:
      expect(1);
      (void)sizes(arguments[0]);
      push_again(arguments[0]);
      return;
    case Name::kStorageType:
      check(false, "the pickle calls a storage type, ", callee.name);
  }
}

/// Attributes of a state dict ("_metadata") are checked and ignored.
void Unpickler::set_state() {
  const Index state = pop();
  check(nodes_[top()].kind == Kind::kOrderedDict && is_dict(state),
        "the pickle sets attributes of a value that is not an OrderedDict");
}

/// Arguments: ('storage', type, key, device, number of elements).
void Unpickler::push_storage() {
  const Index id = pop();
  check(nodes_[id].kind == Kind::kTuple && children(id).size() == 5,
        "a storage's id is not a tuple of 5 values");
  const std::vector<Index> parts = children(id);
  check(text(parts[0]) == "storage", "a storage's id does not begin with 'storage'");
  const KnownName& type = known_name(parts[1]);
  check(type.meaning == Name::kStorageType, "a storage is of type ", type.name);
  const std::string_view key = text(parts[2]);
  (void)text(parts[3]);
  const uint64_t num_elements = whole_number(parts[4]);
  const auto found = storage_of_key_.find(key);
  if (found == storage_of_key_.end()) {
    push(Kind::kStorage, storages_.size());
    storage_of_key_.emplace(key, storages_.size());
    storages_.push_back({std::string(key), type.dtype, num_elements});
    return;
  }
  const SavedStorage& same = storages_[found->second];
  check(same.dtype == type.dtype && same.num_elements == num_elements, "storage '", key,
        "' is declared with ", num_elements, " ", name(type.dtype), " and ", same.num_elements, " ",
        name(same.dtype));
  push(Kind::kStorage, found->second);
}

/// Arguments: (storage, offset in elements, shape, strides, requires_grad, hooks).
void Unpickler::push_tensor(std::vector<Index> arguments) {
  check(nodes_[arguments[0]].kind == Kind::kStorage, "a tensor's first argument is not a storage");
  check(nodes_[arguments[4]].kind == Kind::kBool, "a tensor's requires_grad is not a bool");
  check(is_dict(arguments[5]) && children(arguments[5]).empty(), "a tensor has hooks");
  SavedTensor tensor;
  tensor.storage = nodes_[arguments[0]].bits;
  const SavedStorage& storage = storages_[tensor.storage];
  tensor.dtype = storage.dtype;
  tensor.first = whole_number(arguments[1]);
  tensor.shape = sizes(arguments[2]);
  tensor.strides = sizes(arguments[3]);
  grow(shape_bytes(tensor));
  check(tensor.shape.size() == tensor.strides.size(), "a tensor has ", tensor.shape.size(),
        " dims and ", tensor.strides.size(), " strides");
  const std::string what = source_ + ": a tensor in storage '" + storage.key + '\'';
  const uint64_t count = num_elements(tensor.shape, what);
  (void)checked_mul(count, static_cast<uint64_t>(item_bytes(tensor.dtype)), what);
  uint64_t end = tensor.first;
  for (size_t dim = 0; count > 0 && dim < tensor.shape.size(); ++dim) {
    end = checked_add(end,
                      checked_mul(static_cast<uint64_t>(tensor.shape[dim] - 1),
                                  static_cast<uint64_t>(tensor.strides[dim]), what),
                      what);
  }
  if (count > 0) end = checked_add(end, 1, what);
  check(end <= storage.num_elements, "a tensor ends at element ", end, " of storage '", storage.key,
        "', which has ", storage.num_elements);
  check(count <= storage.num_elements, "a tensor has ", count, " elements, more than its storage '",
        storage.key, "' with ", storage.num_elements,
        "; expanded tensors are not supported, save a copy (.contiguous())");
  push(Kind::kTensor, tensors_.size());
  tensors_.push_back(std::move(tensor));
}

SavedList Unpickler::build_items(Index index, int depth) {
  SavedList items;
  items.reserve(children(index).size());  // repeated growth would hold the items twice
  for (const Index child : children(index)) items.push_back(build(child, depth + 1));
  return items;
}

SavedDict Unpickler::build_dict(Index index, int depth) {
  const std::vector<Index>& members = children(index);
  SavedDict dict;
  dict.reserve(members.size() / 2);
  std::set<SavedKey> keys;
  for (size_t i = 0; i < members.size(); i += 2) {
    const Node& node = nodes_[members[i]];
    SavedKey key = static_cast<int64_t>(node.bits);
    if (node.kind != Kind::kInt) {
      check(node.kind == Kind::kText, "a key of a dict is neither a string nor an integer");
      key = shared_text(members[i]);
    }
    const std::string* name = std::get_if<std::string>(&key);
    check(keys.insert(key).second, "a dict has the key '",
          name != nullptr ? *name : std::to_string(std::get<int64_t>(key)), "' twice");
    dict.push_back({std::move(key), build(members[i + 1], depth + 1)});
  }
  return dict;
}

SavedValue Unpickler::build(Index index, int depth) {
  check(depth < kMaxPickleDepth, "values are nested deeper than ", kMaxPickleDepth,
        ", or one contains itself");
  check(++num_built_ <= kMaxPickleValues,
        "the pickle's values, counted with repetitions, are more than ", kMaxPickleValues);
  const Node node = nodes_[index];
  switch (node.kind) {
    case Kind::kNone:
      return {};
    case Kind::kBool:
      return {node.bits != 0};
    case Kind::kInt:
      return {static_cast<int64_t>(node.bits)};
    case Kind::kFloat:
      return {std::bit_cast<double>(node.bits)};
    case Kind::kText:
      return {shared_text(index)};
    case Kind::kTuple:
      return {SavedTuple{build_items(index, depth)}};
    case Kind::kList:
      return {build_items(index, depth)};
    case Kind::kDict:
    case Kind::kOrderedDict:
      return {build_dict(index, depth)};
    case Kind::kTensor:
      grow(shape_bytes(tensors_[node.bits]));
      return {tensors_[node.bits]};
    case Kind::kName:
    case Kind::kStorage:
      break;
  }
  check(false, "the pickle holds a bare name or storage where a value is expected");
  return {};
}

}  // namespace

Unpickled read_pickle(std::string_view bytes, const std::string& source) {
  return Unpickler(bytes, source).run();
}

}  // namespace cleave::inline format
