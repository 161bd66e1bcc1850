// Random bytes as a safetensors file: a refusal is Error(kFormat); the tensors of an accepted
// header cover the data exactly, and the header written again reads the same.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/format/safetensors_header.h"
#include "cleave/format/safetensors_writer.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::SafetensorsHeader;
using cleave::fuzz::require;

/// The header of a whole file.
SafetensorsHeader header_of(std::string_view head, uint64_t file_size) {
  const auto* first = reinterpret_cast<const std::byte*>(head.data());
  const uint64_t bytes = cleave::safetensors_header_size(first, file_size, "input");
  require(bytes > 0 && bytes <= file_size - 8 && bytes <= head.size() - 8);
  return cleave::parse_safetensors_header(head.substr(8, bytes), file_size, "input");
}

void check_coverage(const SafetensorsHeader& header, uint64_t file_size, uint64_t data_begin) {
  uint64_t end = data_begin;
  for (const auto& tensor : header.tensors) {
    require(tensor.begin == end && tensor.end >= tensor.begin);
    end = tensor.end;
  }
  require(end == file_size);
}

void check_written_again(const SafetensorsHeader& header, uint64_t file_size) {
  cleave::SafetensorsPlanOptions options;
  options.max_file_bytes = file_size;
  options.metadata = header.metadata;
  const cleave::SafetensorsPlan plan({header.tensors.begin(), header.tensors.end()}, options);
  require(plan.files().size() == 1);
  const auto& file = plan.files().front();
  SafetensorsHeader again = header_of(file.head, file.size);
  require(again.metadata == header.metadata && again.tensors.size() == header.tensors.size());
  const auto by_name = [](const auto& a, const auto& b) { return a.name < b.name; };
  auto tensors = header.tensors;
  std::sort(tensors.begin(), tensors.end(), by_name);
  std::sort(again.tensors.begin(), again.tensors.end(), by_name);
  for (size_t i = 0; i < tensors.size(); ++i) {
    require(again.tensors[i].name == tensors[i].name);
    require(again.tensors[i].dtype == tensors[i].dtype);
    require(again.tensors[i].shape == tensors[i].shape);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  if (size < 8) return 0;  // the file reader refuses these before it parses the header
  const std::string_view file = cleave::fuzz::text_of(data, size);
  try {
    const SafetensorsHeader header = header_of(file, size);
    const auto* first = reinterpret_cast<const std::byte*>(data);
    check_coverage(header, size, 8 + cleave::safetensors_header_size(first, size, "input"));
    check_written_again(header, size);
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
  }
  return 0;
}
