#include "cleave/format/gguf_writer.h"

#include <bit>

#include "cleave/base/checked.h"
#include "cleave/format/block.h"

namespace cleave::inline format {
namespace {

/// Appends `bytes` little-endian bytes.
void put_number(std::string& out, uint64_t value, size_t bytes) {
  for (size_t i = 0; i < bytes; ++i) out.push_back(static_cast<char>(value >> (8 * i)));
}

void put_string(std::string& out, const std::string& text) {
  put_number(out, text.size(), 8);
  out += text;
}

void put_kind(std::string& out, GgufKind kind) {
  put_number(out, static_cast<uint64_t>(kind), 4);
}

/// The elements that are written: bool, u8, i32, u32, u64, f32 and strings.
void put_element(std::string& out, GgufKind kind, int64_t value) {
  const bool is_byte = kind == GgufKind::kBool || kind == GgufKind::kU8;
  const size_t bytes = is_byte ? 1 : kind == GgufKind::kU64 ? 8 : 4;
  CLEAVE_CHECK(bytes == 8 || (value >= INT32_MIN && value <= UINT32_MAX), Code::kUsage,
               "a metadata value is ", value, "; expected a number of 32 bits");
  put_number(out, static_cast<uint64_t>(value), bytes);
}

void put_element(std::string& out, GgufKind /*kind*/, double value) {
  put_number(out, std::bit_cast<uint32_t>(static_cast<float>(value)), 4);
}

void put_element(std::string& out, GgufKind /*kind*/, const std::string& value) {
  put_string(out, value);
}

template <class List>
void put_array(std::string& out, GgufKind kind, const List& list) {
  put_kind(out, GgufKind::kArray);
  put_kind(out, kind);
  put_number(out, list.size(), 8);
  for (const auto& element : list) put_element(out, kind, element);
}

void put_value(std::string& out, const GgufValue& value) {
  const auto scalar = [&](const auto& element) {
    put_kind(out, value.kind);
    put_element(out, value.kind, element);
  };
  if (const auto* flag = std::get_if<bool>(&value.value)) return scalar(int64_t{*flag});
  if (const auto* number = std::get_if<int64_t>(&value.value)) return scalar(*number);
  if (const auto* number = std::get_if<double>(&value.value)) return scalar(*number);
  if (const auto* text = std::get_if<std::string>(&value.value)) return scalar(*text);
  if (const auto* list = std::get_if<GgufValue::Ints>(&value.value)) {
    return put_array(out, value.kind, *list);
  }
  if (const auto* list = std::get_if<GgufValue::Numbers>(&value.value)) {
    return put_array(out, value.kind, *list);
  }
  put_array(out, value.kind, std::get<GgufValue::Strings>(value.value));
}

}  // namespace

GgufPlan::GgufPlan(const GgufMetadata& metadata, std::vector<GgufTensor> tensors)
    : tensors_(std::move(tensors)) {
  constexpr uint64_t kVersion = 3;
  head_ = "GGUF";
  put_number(head_, kVersion, 4);
  put_number(head_, tensors_.size(), 8);
  put_number(head_, metadata.entries().size(), 8);
  for (const auto& [key, value] : metadata.entries()) {
    put_string(head_, key);
    put_value(head_, value);
  }
  uint64_t next = 0;
  for (GgufTensor& tensor : tensors_) {
    const std::string what = str("tensor '", tensor.name, "'");
    const GgufBlock block = block_of(tensor.type);
    const int64_t row = tensor.shape.empty() ? 1 : tensor.shape.back();
    CLEAVE_CHECK(row % block.elements == 0, Code::kUsage, what, " has rows of ", row, " elements; ",
                 block.name, " needs multiples of ", block.elements);
    tensor.dtype = block.dtype;
    tensor.bytes =
        checked_mul(num_elements(tensor.shape, what) / static_cast<uint64_t>(block.elements),
                    static_cast<uint64_t>(block.bytes), what);
    put_string(head_, tensor.name);
    put_number(head_, tensor.shape.size(), 4);
    for (size_t dim = tensor.shape.size(); dim-- > 0;) {
      put_number(head_, static_cast<uint64_t>(tensor.shape[dim]), 8);
    }
    put_number(head_, static_cast<uint64_t>(tensor.type), 4);
    put_number(head_, next, 8);
    tensor.begin = next;
    next = gguf_aligned(checked_add(next, tensor.bytes, what), kGgufAlignment, what);
  }
  const uint64_t data_begin = gguf_aligned(head_.size(), kGgufAlignment, "the header");
  head_.resize(static_cast<size_t>(data_begin), '\0');
  for (GgufTensor& tensor : tensors_) tensor.begin += data_begin;
  total_bytes_ = checked_add(data_begin, next, "the file");
}

}  // namespace cleave::inline format
