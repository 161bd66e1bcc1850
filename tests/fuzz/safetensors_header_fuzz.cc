// The safetensors header on any bytes, read as a whole file: a refusal is Error(kFormat); what is
// accepted covers the data exactly, tensor after tensor.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "cleave/base/error.h"
#include "cleave/format/safetensors_header.h"

namespace {

void require(bool holds) {
  if (!holds) std::abort();
}

void check_file(const uint8_t* data, size_t size) {
  const auto* first = reinterpret_cast<const std::byte*>(data);
  const uint64_t bytes = cleave::safetensors_header_size(first, size, "input");
  require(bytes > 0 && bytes <= size - 8);
  const std::string_view json(reinterpret_cast<const char*>(data) + 8, bytes);
  const auto header = cleave::parse_safetensors_header(json, size, "input");
  uint64_t end = 8 + bytes;
  for (const auto& tensor : header.tensors) {
    require(tensor.begin == end && tensor.end >= tensor.begin);
    end = tensor.end;
  }
  require(end == size);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;  // the reader of files refuses these before it gets here
  try {
    check_file(data, size);
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
  }
  return 0;
}
