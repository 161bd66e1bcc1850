// Random bytes as a torch file: a refusal is Error(kFormat); every tensor of an accepted file can
// be read completely, and has no more elements than the file has bytes.
#include <cstddef>
#include <cstdint>
#include <vector>

#include "cleave/base/error.h"
#include "cleave/format/block.h"
#include "cleave/format/torch_file.h"
#include "tests/fuzz/input.h"

namespace {

using cleave::fuzz::require;

void read_tensors(const cleave::TorchFile& file, const cleave::SavedValue& value, size_t limit) {
  if (const auto* tensor = value.get<cleave::SavedTensor>()) {
    const uint64_t count = cleave::num_elements(tensor->shape, "tensor");
    require(count <= limit);
    std::vector<std::byte> bytes(count * static_cast<uint64_t>(cleave::item_bytes(tensor->dtype)));
    file.read_block(*tensor, {}, bytes);
  }
  if (const auto* list = value.get<cleave::SavedList>()) {
    for (const cleave::SavedValue& item : *list) read_tensors(file, item, limit);
  }
  if (const auto* tuple = value.get<cleave::SavedTuple>()) {
    for (const cleave::SavedValue& item : tuple->items) read_tensors(file, item, limit);
  }
  if (const auto* dict = value.get<cleave::SavedDict>()) {
    for (const auto& [key, member] : *dict) read_tensors(file, member, limit);
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  const cleave::fuzz::MemoryFile input({data, size});
  try {
    const auto file = cleave::TorchFile::open(input.path());
    read_tensors(file, file.value(), size);
  } catch (const cleave::Error& error) {
    require(error.code() == cleave::Code::kFormat);
  }
  return 0;
}
