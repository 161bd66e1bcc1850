// Writes pickles without a memo, so that equal values give equal bytes.
#include <bit>
#include <limits>

#include "cleave/base/error.h"
#include "cleave/format/pickle.h"

namespace cleave::inline format {
namespace {

std::string_view storage_type(DType dtype) {
  switch (dtype) {
    case DType::kF32:
      return "FloatStorage";
    case DType::kF64:
      return "DoubleStorage";
    case DType::kBf16:
      return "BFloat16Storage";
    case DType::kF16:
      return "HalfStorage";
    case DType::kI64:
      return "LongStorage";
    case DType::kI32:
      return "IntStorage";
    case DType::kI16:
      return "ShortStorage";
    case DType::kI8:
      return "CharStorage";
    case DType::kU8:
      return "ByteStorage";
    case DType::kBool:
      return "BoolStorage";
  }
  CLEAVE_BUG("no storage type for dtype ", static_cast<int>(dtype));
}

class Pickler {
 public:
  explicit Pickler(const std::vector<SavedStorage>& storages) : storages_(storages) {}

  std::string run(const SavedValue& value) {
    out_ = "\x80\x02";
    put(value, 0);
    return std::move(out_) + ".";
  }

 private:
  void put_bytes(uint64_t value, int num_bytes) {
    for (int i = 0; i < num_bytes; ++i) out_.push_back(static_cast<char>(value >> 8 * i & 0xff));
  }
  void put_int(int64_t value) {
    if (value >= std::numeric_limits<int32_t>::min() &&
        value <= std::numeric_limits<int32_t>::max()) {
      out_.push_back('J');
      put_bytes(static_cast<uint64_t>(value), 4);
    } else {
      out_ += "\x8a\x08";
      put_bytes(static_cast<uint64_t>(value), 8);
    }
  }
  void put_float(double value) {
    out_.push_back('G');
    const auto bits = std::bit_cast<uint64_t>(value);
    for (int i = 8; i-- > 0;) out_.push_back(static_cast<char>(bits >> 8 * i & 0xff));
  }
  void put_text(std::string_view text) {
    CLEAVE_CHECK(text.size() <= kMaxPickleBytes, Code::kUsage, "a string of ", text.size(),
                 " bytes cannot be saved; expected at most ", kMaxPickleBytes);
    out_.push_back('X');
    put_bytes(text.size(), 4);
    out_ += text;
  }
  void put_sizes(const std::vector<int64_t>& sizes) {
    out_.push_back('(');
    for (const int64_t size : sizes) put_int(size);
    out_.push_back('t');
  }
  void put_tensor(const SavedTensor& tensor) {
    CLEAVE_CHECK(
        tensor.storage < storages_.size() && storages_[tensor.storage].dtype == tensor.dtype,
        Code::kUsage, "a tensor in storage ", tensor.storage,
        " cannot be saved; expected one of the ", storages_.size(),
        " storages, with the tensor's dtype");
    const SavedStorage& storage = storages_[tensor.storage];
    out_ += "ctorch._utils\n_rebuild_tensor_v2\n((";
    put_text("storage");
    ((out_ += "ctorch\n") += storage_type(tensor.dtype)) += "\n";
    put_text(storage.key);
    put_text("cpu");
    put_int(static_cast<int64_t>(storage.num_elements));
    out_ += "tQ";
    put_int(static_cast<int64_t>(tensor.first));
    put_sizes(tensor.shape);
    put_sizes(tensor.strides);
    out_ +=
        "\x89"
        "ccollections\nOrderedDict\n)RtR";
  }
  void put_items(const SavedList& items, int depth) {
    for (const SavedValue& item : items) put(item, depth + 1);
  }
  void put_dict(const SavedDict& dict, int depth) {
    out_ += "}(";
    for (const auto& [key, value] : dict) {
      if (const auto* text = std::get_if<std::string>(&key)) {
        put_text(*text);
      } else {
        put_int(std::get<int64_t>(key));
      }
      put(value, depth + 1);
    }
    out_.push_back('u');
  }
  void put(const SavedValue& value, int depth);

  const std::vector<SavedStorage>& storages_;
  std::string out_;
};

void Pickler::put(const SavedValue& value, int depth) {
  CLEAVE_CHECK(depth < kMaxPickleDepth, Code::kUsage, "a value nested deeper than ",
               kMaxPickleDepth, " cannot be saved");
  if (value.get<std::monostate>() != nullptr) {
    out_.push_back('N');
  } else if (const auto* truth = value.get<bool>()) {
    out_.push_back(*truth ? '\x88' : '\x89');
  } else if (const auto* number = value.get<int64_t>()) {
    put_int(*number);
  } else if (const auto* real = value.get<double>()) {
    put_float(*real);
  } else if (const auto* text = value.get<std::string>()) {
    put_text(*text);
  } else if (const auto* list = value.get<SavedList>()) {
    out_ += "](";
    put_items(*list, depth);
    out_.push_back('e');
  } else if (const auto* tuple = value.get<SavedTuple>()) {
    out_.push_back('(');
    put_items(tuple->items, depth);
    out_.push_back('t');
  } else if (const auto* dict = value.get<SavedDict>()) {
    put_dict(*dict, depth);
  } else {
    put_tensor(std::get<SavedTensor>(value.content));
  }
}

}  // namespace

std::string write_pickle(const SavedValue& value, const std::vector<SavedStorage>& storages) {
  return Pickler(storages).run(value);
}

}  // namespace cleave::inline format
